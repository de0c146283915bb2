// A step of chains that jump: a sweep over hidden units, local moves, and a proposal from a mixture that knows the data.
//
// The definition is samplers/global_moves.py. Densities of the mixture have a block's chains as lanes.

#include "steps.h"

// A mixture of Gaussians
typedef struct {
    int64_t n_components, diagonal;
    const float *edges;             // (n_components - 1,): weights, added up
    const float *means, *peak;      // (n_components, n_visible), (n_components,): the log of a component's mass and height
    const float *factors;           // (n_components, n_visible, n_visible): of covariances, lower; if diagonal, that
    const float *inverse;           // of the factors, transposed: upper; likewise
} Mixture;

typedef struct {
    Sweep sweep;
    Walk walk;          // which begins where the sweep ends; what it leaves in last_v, last_h, last_p is jumped from
    Mixture mixture;
    uint32_t draw;      // of the proposal: its component, its place, its acceptance and its h
    float *accept;      // (n_chains,): the probability
    float *room;        // by part: room_for floats
    int64_t room_size;
} Jumps;

enum { VECTORS = PANEL / L };

// v ~ the mixture, into a row
static void propose(const Jumps *s, const Walk *w, int64_t c, float *restrict v) {
    const Mixture *q = &s->mixture;
    const int64_t N = w->n_visible;
    const uint32_t chain = w->first_chain + c;
    vu word[4];
    float noise[PANEL];
    philox((Place){w->key, chain, s->draw, 0}, 0, 0, word);
    const float u = uniform(word[0])[0];
    int64_t k = 0;
    while (k < q->n_components - 1 && q->edges[k] <= u) k++;
    const float *factor = q->factors + k * N * (q->diagonal ? 1 : N);
    memset(v, 0, w->v_row * sizeof(float));
    for (int64_t j = 0; j < panels(N); j++) {
        for (int first = 0; first < 16; first += L) {
            vf xi[4];
            philox((Place){w->key, chain, s->draw + 1, 0}, j, first, word);
            normal(word[0], word[1], xi, xi + 1), normal(word[2], word[3], xi + 2, xi + 3);
            for (int i = 0; i < 4; i++) store(noise + 16 * i + first, xi[i]);
        }
        const int64_t begin = j * PANEL, end = N - begin < PANEL ? N : begin + PANEL;
        for (int64_t i = begin; i < (q->diagonal ? end : N); i++) {
            if (q->diagonal) v[i] = factor[i] * noise[i - begin];
            else for (int64_t m = begin; m < end && m <= i; m++) v[i] += factor[i * N + m] * noise[m - begin];
        }
    }
    for (int64_t i = 0; i < N; i++) v[i] += q->means[k * N + i];
}

// The log-density of n rows of v, (PANEL,)
static void log_density(const Mixture *q, const Walk *w, const float *v, float *room, float *out) {
    const int64_t N = w->n_visible, K = q->n_components;
    float *const units = room, *const apart = units + N * PANEL, *const parts = apart + N * PANEL;
    memset(units, 0, N * PANEL * sizeof(float));
    for (int64_t c = 0; c < w->n_chains; c++)
        for (int64_t i = 0; i < N; i++) units[i * PANEL + c] = v[c * w->v_row + i];
    for (int64_t k = 0; k < K; k++) {
        const float *inverse = q->inverse + k * N * (q->diagonal ? 1 : N);
        vf squares[VECTORS];
        for (int x = 0; x < VECTORS; x++) squares[x] = fill(0);
        for (int64_t i = 0; i < N; i++) {
            vf z[VECTORS];
            for (int x = 0; x < VECTORS; x++) {
                z[x] = fill(0);
                store(apart + i * PANEL + x * L, load(units + i * PANEL + x * L) - q->means[k * N + i]);
            }
            for (int64_t m = q->diagonal ? i : 0; m <= i; m++)
                for (int x = 0; x < VECTORS; x++)
                    z[x] += inverse[q->diagonal ? i : m * N + i] * load(apart + m * PANEL + x * L);
            for (int x = 0; x < VECTORS; x++) squares[x] += z[x] * z[x];
        }
        for (int x = 0; x < VECTORS; x++) store(parts + k * PANEL + x * L, q->peak[k] - 0.5f * squares[x]);
    }
    for (int x = 0; x < PANEL; x += L) {
        vf top = load(parts + x), sum = fill(0);
        for (int64_t k = 1; k < K; k++) {
            const vf part = load(parts + k * PANEL + x);
            top = choose(part > top, part, top);
        }
        for (int64_t k = 0; k < K; k++) sum += exp_of(load(parts + k * PANEL + x) - top);
        store(out + x, top + log_of(sum));
    }
}

// Chains of part k jump, each with the probability min(1, p(v') q(v) / (p(v) q(v')))
static void jump(const void *all, int64_t k) {
    const Jumps *s = all;
    const Walk w = one(&s->walk, k);
    const int64_t N = w.n_visible, M = w.n_hidden;
    float *const old = w.v, *const new = w.v + w.chunk * w.v_row, *room = s->room + k * s->room_size;
    float *const free_energy = room, *const new_free_energy = room + PANEL;
    float *const log_q = room + 2 * PANEL, *const new_log_q = room + 3 * PANEL;
    float *const accept = s->accept + (w.first_chain - s->walk.first_chain);
    room += 4 * PANEL;
    into_rows(old, w.v_row, w.last_v, N, w.n_chains);
    for (int64_t c = 0; c < w.n_chains; c++) propose(s, &w, c, new + c * w.v_row);
    hidden(&w, 0, old, 0, 0, free_energy);
    hidden(&w, s->draw + 3, new, w.h, w.p, new_free_energy);
    log_density(&s->mixture, &w, old, room, log_q), log_density(&s->mixture, &w, new, room, new_log_q);
    for (int64_t c = 0; c < w.n_chains; c++) {
        const float log_ratio = free_energy[c] - new_free_energy[c] + log_q[c] - new_log_q[c];
        accept[c] = log_ratio >= 0 ? 1 : log_ratio > -87 ? exp_of(fill(log_ratio))[0] : 0;  // NaN: 0
        vu word[4];
        philox((Place){w.key, w.first_chain + c, s->draw + 2, 0}, 0, 0, word);
        if (!(uniform(word[0])[0] < accept[c])) continue;
        memcpy(w.last_v + c * N, new + c * w.v_row, N * sizeof(float));
        memcpy(w.last_h + c * M, w.h + c * w.h_row, M * sizeof(float));
        memcpy(w.last_p + c * M, w.p + c * w.h_row, M * sizeof(float));
    }
}

void grbm_walk(const Walk *all, int64_t threads);
void grbm_sweep(const Sweep *all, int64_t threads);

void grbm_jump(const Jumps *s, int64_t threads) {
    grbm_sweep(&s->sweep, threads);
    grbm_walk(&s->walk, threads);
    share(jump, s, (s->walk.n_chains + s->walk.chunk - 1) / s->walk.chunk, threads);
}

HANDED(Mixture) HANDED(Jumps)
