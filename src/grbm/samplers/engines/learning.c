// From the moments at data and chains to the gradient, each number of theirs read once.
//
// The definition is PyTorch: samplers/moments.py. Sums by block are of float32 and are added in float64, exactly, so that
// blocks may be divided in any way among processes, which exchange what `grbm_pool` writes before `grbm_ascend` reads it.

#include "steps.h"

enum { ROWS_TOGETHER = 16 };  // of W, in a part whose sums by column are taken together

// Sums of moments by block: of v, v^2 (blocks, n_visible), h (blocks, n_hidden), v h' (blocks, n_visible, n_hidden)
typedef struct {
    int64_t n_blocks, v_row, v2_row, h_row, vh_block, vh_row;  // floats from one block, or row, to the next
    const float *v, *v2, *h, *vh;
} Sums;

typedef struct {
    int64_t n_visible, n_hidden;
    double n_data, n_chains;  // states that the sums go over, in this process
    Sums data, chains;
    double *v, *v2, *h, *vh;                // data n_chains - chains n_data: the difference of means but for 1/(n_data n_chains)
    double *data_v, *data_h, *chains_v2;
} Pool;

typedef struct {
    int64_t n_visible, n_hidden, h_row, centred;
    double scale, n_data;  // 1/(n_data n_chains) and n_data, of all processes together
    const Pool *own;       // where no other process has a part: pooled on the way, v h' without being kept; or null
    const double *v, *v2, *h, *vh, *data_v, *data_h;  // as pooled
    const float *W, *mu, *var;
    float *grad_W, *grad_b, *grad_mu, *grad_log_var;  // of the descent: minus the gradient of the log-likelihood
    float *slope_b, *offset_h;  // (h_row,), 0 beyond the last unit: the plain gradient by b, and the mean of h at the data
    float *columns;             // (parts, h_row): sums over a part's rows of offset_v times the gradient
    double *squares;            // (parts,), and at the end their sum in the first
} Ascent;

ALWAYS double summed(int64_t n_blocks, const float *x, int64_t row, int64_t i) {
    double sum = 0;
    for (int64_t k = 0; k < n_blocks; k++) sum += x[k * row + i];
    return sum;
}

// The sum over blocks of n numbers of row i of v h', from number `first` on
static void add_blocks(const Sums *s, int64_t i, int64_t first, int64_t n, double *restrict sum) {
    for (int64_t b = 0; b < s->n_blocks; b++) {
        const float *x = s->vh + b * s->vh_block + i * s->vh_row + first;
        for (int64_t j = 0; j < n; j++) sum[j] += x[j];
    }
}

enum { PIECE = 256 };  // numbers whose sums stay in the first cache

// The difference of n numbers of row i of v h', from number `first` on
static void pool_piece(const Pool *p, int64_t i, int64_t first, int64_t n, double *restrict out) {
    double at_data[PIECE] = {0}, at_chains[PIECE] = {0};
    add_blocks(&p->data, i, first, n, at_data), add_blocks(&p->chains, i, first, n, at_chains);
    for (int64_t j = 0; j < n; j++) out[j] = at_data[j] * p->n_chains - at_chains[j] * p->n_data;
}

static void pool_rows(const void *all, int64_t k) {
    const Pool *p = all;
    const int64_t M = p->n_hidden, end = (k + 1) * ROWS_TOGETHER < p->n_visible ? (k + 1) * ROWS_TOGETHER : p->n_visible;
    for (int64_t i = k * ROWS_TOGETHER; i < end; i++)
        for (int64_t first = 0; first < M; first += PIECE)
            pool_piece(p, i, first, M - first < PIECE ? M - first : PIECE, p->vh + i * M + first);
}

// What is pooled of single units
static void pool_units(const Pool *p) {
    for (int64_t i = 0; i < p->n_visible; i++) {
        const double at_data = summed(p->data.n_blocks, p->data.v, p->data.v_row, i);
        const double squares = summed(p->chains.n_blocks, p->chains.v2, p->chains.v2_row, i);
        p->data_v[i] = at_data, p->chains_v2[i] = squares;
        p->v[i] = at_data * p->n_chains - summed(p->chains.n_blocks, p->chains.v, p->chains.v_row, i) * p->n_data;
        p->v2[i] = summed(p->data.n_blocks, p->data.v2, p->data.v2_row, i) * p->n_chains - squares * p->n_data;
    }
    for (int64_t j = 0; j < p->n_hidden; j++) {
        const double at_data = summed(p->data.n_blocks, p->data.h, p->data.h_row, j);
        p->data_h[j] = at_data;
        p->h[j] = at_data * p->n_chains - summed(p->chains.n_blocks, p->chains.h, p->chains.h_row, j) * p->n_data;
    }
}

void grbm_pool(const Pool *p, int64_t threads) {
    pool_units(p);
    share(pool_rows, p, (p->n_visible + ROWS_TOGETHER - 1) / ROWS_TOGETHER, threads);
}

// n of L numbers, the rest 0; a row of W may end anywhere
ALWAYS vf some(const float *x, int64_t n) {
    if (n == L) return load(x);
    vf found = fill(0);
    for (int64_t l = 0; l < n; l++) found[l] = x[l];
    return found;
}

ALWAYS vf some_scaled(const double *x, double scale, int64_t n) {
    float scaled[L] = {0};
    if (n == L)
        for (int64_t l = 0; l < L; l++) scaled[l] = (float)(x[l] * scale);
    else
        for (int64_t l = 0; l < n; l++) scaled[l] = (float)(x[l] * scale);
    return load(scaled);
}

static void ascend_rows(const void *all, int64_t k) {
    const Ascent *a = all;
    const int64_t M = a->n_hidden, end = (k + 1) * ROWS_TOGETHER < a->n_visible ? (k + 1) * ROWS_TOGETHER : a->n_visible;
    float *column = a->columns + k * a->h_row;
    double squares = 0;
    memset(column, 0, a->h_row * sizeof(float));
    for (int64_t i = k * ROWS_TOGETHER; i < end; i++) {
        const float var = a->var[i], mean_v = (float)(a->v[i] * a->scale), mean_v2 = (float)(a->v2[i] * a->scale);
        const float slope = mean_v / var, shift = a->centred ? slope : 0;
        const float offset_v = a->centred ? (float)a->data_v[i] / (float)a->n_data / var : 0;
        vf drive = fill(0), held = fill(0), square = fill(0);
        double piece[PIECE];
        for (int64_t j = 0; j < M; j += L) {
            const int64_t n = M - j < L ? M - j : L;
            const double *pooled = a->own ? piece + j % PIECE : a->vh + i * M + j;
            if (a->own && j % PIECE == 0) pool_piece(a->own, i, j, M - j < PIECE ? M - j : PIECE, piece);
            const vf difference = some_scaled(pooled, a->scale, n), offset_h = load(a->offset_h + j);
            const vf g = difference / var - shift * offset_h - offset_v * load(a->slope_b + j);
            drive += some(a->W + i * M + j, n) * difference, held += g * offset_h, square += g * g;
            store(column + j, load(column + j) + offset_v * g);
            float *out = a->grad_W + i * M + j;
            if (n == L) store(out, -g);
            else
                for (int64_t l = 0; l < n; l++) out[l] = -g[l];
        }
        const float by_mu = slope - (a->centred ? total(held) : 0);
        const float by_log_var = (0.5f * mean_v2 - a->mu[i] * mean_v - total(drive)) / var;
        a->grad_mu[i] = -by_mu, a->grad_log_var[i] = -by_log_var;
        squares += (double)total(square) + (double)by_mu * by_mu + (double)by_log_var * by_log_var;
    }
    a->squares[k] = squares;
}

void grbm_ascend(const Ascent *a, int64_t threads) {
    const int64_t parts = (a->n_visible + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
    if (a->own) pool_units(a->own);
    for (int64_t j = 0; j < a->n_hidden; j++) {
        a->slope_b[j] = (float)(a->h[j] * a->scale);
        a->offset_h[j] = (float)a->data_h[j] / (float)a->n_data;
    }
    share(ascend_rows, a, parts, threads);
    double squares = 0;
    for (int64_t k = 0; k < parts; k++) squares += a->squares[k];
    for (int64_t j = 0; j < a->n_hidden; j++) {
        double sum = 0;
        for (int64_t k = 0; a->centred && k < parts; k++) sum += a->columns[k * a->h_row + j];
        const float by_b = a->slope_b[j] - (float)sum;
        a->grad_b[j] = -by_b;
        squares += (double)by_b * by_b;
    }
    a->squares[0] = squares;
}

// Both phases of an update in this process alone, and its gradient
typedef struct {
    Walk data, chains;
    const Jumps *jumps;  // in place of the chains' walk, or null
    Ascent ascent;
} Phases;

void grbm_walk(const Walk *all, int64_t threads);
void grbm_jump(const Jumps *all, int64_t threads);

void grbm_learn(const Phases *p, int64_t threads) {
    grbm_walk(&p->data, threads);
    if (p->jumps) grbm_jump(p->jumps, threads);
    else grbm_walk(&p->chains, threads);
    grbm_ascend(&p->ascent, threads);
}

// Parameters that follow their clipped gradient downhill
typedef struct {
    int64_t n;
    float *x, *grad;
    float rate, least;  // x is at least that afterwards
} Follower;

typedef struct {
    int64_t n;
    const Follower *followers;
    float clip;  // factor of all gradients
} Descent;

enum { STRIDE = 1 << 14 };  // numbers that a thread takes at a time

static void follow(const void *all, int64_t k) {
    const Descent *d = all;
    const Follower *f = d->followers;
    for (int64_t parts; k >= (parts = (f->n + STRIDE - 1) / STRIDE); f++) k -= parts;
    const int64_t end = (k + 1) * STRIDE < f->n ? (k + 1) * STRIDE : f->n;
    for (int64_t i = k * STRIDE; i < end; i++) {
        const float grad = f->grad[i] * d->clip, x = f->x[i] - f->rate * grad;
        f->grad[i] = grad, f->x[i] = x < f->least ? f->least : x;
    }
}

void grbm_descend(const Descent *d, int64_t threads) {
    int64_t parts = 0;
    for (int64_t k = 0; k < d->n; k++) parts += (d->followers[k].n + STRIDE - 1) / STRIDE;
    share(follow, d, parts, threads);
}

HANDED(Sums) HANDED(Phases) HANDED(Descent) HANDED(Follower) HANDED(Pool) HANDED(Ascent)
