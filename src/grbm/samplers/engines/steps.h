// Parts of a step of a chain, for one block of chains; the walks in native.c and tempered.c are made of them.
//
// The definition of every line is in PyTorch: samplers/moves.py (the step), samplers/updates.py (its tails),
// samplers/moments.py (the sums), core/randomness.py (the draws). What a chain does depends on (key, chain, draw) alone:
// not on its block, its neighbours or the number of threads.
//
// Rows of v and h start on 64 bytes; columns come in panels of 64, worked on in multiples of 16 (what lies beyond the
// last unit is padding: W = 0, mu = 0, noise 0, b so low that h = 0).

#pragma once

#include "arithmetic.h"

// All walks of a call: n_replicas times n_chains chains, walked `chunk` at a time. The tables have a row for each
// replica, the memory a part for each chunk.
typedef struct {
    int64_t n_replicas, n_chains, chunk, n_visible, n_hidden, n_steps;
    int64_t burn_in;      // states of steps t >= burn_in are summed; the start is step -1
    int64_t adjusted;     // Metropolis-Hastings from step adjust_from on
    int64_t adjust_from;
    int64_t mean_field;   // the drive is W p(h | v) in place of W h: Langevin
    int64_t probabilities;     // sums take p(h | v) in place of h
    int64_t draw_start;   // h ~ p(h | v) first; otherwise it is given
    int64_t held;         // `hidden` leaves h as it is
    int64_t keep_p;       // p has as many slots as h; otherwise one, for the last state
    int64_t v_row, h_row; // floats from one chain to the next
    int64_t ring;         // slots of states, at least 2, summed when all are full
    int64_t move_row;     // floats from one step's move to the next, 0 where all are the same
    int64_t half;         // operands (v - mu)/sigma, W/sigma and h of products in bfloat16, on vectors (1) or IN_TILES; until
                          // the end sum_vh is that of (v - mu)/sigma
    uint64_t key;
    uint32_t first_chain, first_draw, replica;
    float temperature;
    const float *up, *down;  // W/var (n_visible, panels of hidden) and W^T (n_hidden, panels of visible), packed;
                             // with FEW visible units the latter is W (n_visible, row)
    const float *real;       // 1 for a visible unit, 0 for padding
    const float *inverse;    // 1/sigma, with `half`
    const float *beta, *b, *mu, *gain, *inverse_var;  // (n_replicas, 1 or row)
    const float *shrink, *noise_std;                // (steps, n_replicas, row)
    const float *start_v, *start_h, *start_p;       // (n_replicas, n_chains, units): h and p may be null, with draw_start
    float *v, *h, *p;                // (ring, chunk, row)
    float *last_v, *last_h, *last_p; // (n_replicas, n_chains, units): where the last state goes
    float *mean, *old_mean;  // (chunk, row)
    float *free_energy, *old_free_energy, *log_q, *tile;  // (chunk, 1 or PANEL)
    float *log_p, *old_log_p;                             // log p(h | v) (chunk,), where acceptance is joint; or null
    const float *plain_b;    // b of the untempered energy (row), with `coupling`
    float *coupling;         // (chunk,): where `hidden` leaves the sum of h_j l_j, l the untempered logits; or null
    float *halves;                                        // (ring chunk + 1, (v_row + h_row)/2), with `half`
    float *sum_v, *sum_v2, *sum_h, *sum_vh;               // by chunk; null where nothing is summed
    float *accept;                                        // (n_steps,): sums over chains of the acceptance probability
    float *accept_chain;                                  // (n_replicas, n_chains): sums over steps of the same
} Walk;

// A sweep over hidden units, one by one, with v integrated out
typedef struct {
    int64_t n_chains, n_hidden;
    uint64_t key;
    uint32_t first_chain, draw;
    float beta;
    const float *J;      // (n_hidden, n_hidden), symmetric; the log-odds of unit j are alone_j + beta (J h)_j, without itself
    const float *alone;  // (n_hidden,)
    const float *h;      // (n_chains, n_hidden)
    float *swept;        // likewise
    float *room;         // (blocks of PANEL chains, 3, n_hidden, PANEL)
} Sweep;

// Populations of PANEL chains that are annealed from fair coins
typedef struct {
    int64_t n_steps;
    double share;         // effective part of a population below which it is resampled
    Sweep sweep;          // of h; `alone` has a row for each step
    const float *c;       // (n_hidden,)
    const double *betas;  // (n_steps + 1,)
    double *log_ratio;    // (populations,): what each makes of log Z, less that at the first beta
} Annealing;

// A mixture of Gaussians
typedef struct {
    int64_t n_components, diagonal;
    const float *edges;             // (n_components - 1,): weights, added up
    const float *means, *peak;      // (n_components, n_visible), (n_components,): the log of a component's mass and height
    const float *factors;  // (n_components, n_visible, n_visible): Cholesky factors; (n_components, n_visible) if diagonal
    const float *inverse;  // their inverses, transposed, in the same shape
} Mixture;

// A walk of chains that jump
typedef struct {
    int64_t n_steps, burn_in;  // states of steps t >= burn_in are summed, where the walk has sums
    int64_t room_size;
    Walk walk;                 // the local moves of a step; what they leave in last_v, last_h, last_p is jumped from
    Sweep sweep;               // of last_h
    Mixture mixture;
    float *accept;             // (n_chains,): sums over steps of the probability
    float *room;               // by part: room_size floats
} Jumps;

#if defined(PROFILE)  // for benchmarks/cd_step.py, on one thread
#include <time.h>
extern double grbm_seconds[5];
static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
#define TIMED(part, call) do { const double began = now(); call; grbm_seconds[part] += now() - began; } while (0)
#else
#define TIMED(part, call) call
#endif

// Numbers of n chains, which lie one after another, into rows, and out of them; nothing where there are none
static inline void into_rows(float *rows, int64_t row, const float *x, int64_t units, int64_t n) {
    for (int64_t c = 0; c < n && x; c++) {
        memcpy(rows + c * row, x + c * units, units * sizeof(float));
        memset(rows + c * row + units, 0, (row - units) * sizeof(float));
    }
}

static inline void out_of_rows(float *x, int64_t units, const float *rows, int64_t row, int64_t n) {
    for (int64_t c = 0; c < n; c++) memcpy(x + c * units, rows + c * row, units * sizeof(float));
}

// Walk number k of those that `all` describes
static inline Walk one(const Walk *all, int64_t k) {
    Walk w = *all;
    const int64_t parts = (w.n_chains + w.chunk - 1) / w.chunk, r = k / parts, first = k % parts * w.chunk;
    const int64_t slots = w.ring * w.chunk, v = w.v_row, h = w.h_row, c = w.chunk;
    if (w.n_chains - first < c) w.n_chains -= first;
    else w.n_chains = c;
    w.first_chain += first, w.replica = r;
    w.beta += r, w.b += r * h, w.mu += r * v, w.gain += r * v, w.inverse_var += r * v;
    w.shrink += r * v, w.noise_std += r * v;
    w.v += k * slots * v, w.h += k * slots * h, w.p += k * (w.keep_p ? slots : c) * h;
    w.mean += k * c * v, w.tile += k * c * PANEL, w.log_q += k * c;
    if (w.adjusted) w.old_mean += k * c * v, w.free_energy += k * c, w.old_free_energy += k * c, w.accept += k * w.n_steps;
    if (w.sum_v) w.sum_v += k * v, w.sum_v2 += k * v, w.sum_h += k * h, w.sum_vh += k * w.n_visible * h;
    if (w.half) w.halves += k * (slots + 1) * (v + h) / 2;
    if (w.log_p) w.log_p += k * c, w.old_log_p += k * c;
    const int64_t chain = r * all->n_chains + first;
    if (w.adjusted) w.accept_chain += chain;
    w.start_v += chain * w.n_visible;
    if (w.start_h) w.start_h += chain * w.n_hidden, w.start_p += chain * w.n_hidden;
    w.last_v += chain * w.n_visible, w.last_h += chain * w.n_hidden, w.last_p += chain * w.n_hidden;
    return w;
}

// ------------------------------------------------------------------------------------------------------- parts of a step

// (x - offset) scale, unit by unit
ALWAYS vf operand(const float *x, const float *offset, const float *scale) {
    return offset ? (load(x) - load(offset)) * load(scale) : load(x);
}

// Rows of x as operands: themselves, or pairs of neighbouring units of (x - offset) scale
static inline const float *along_units(const Walk *w, const float *x, int64_t row, const float *offset, const float *scale) {
    if (!w->half) return x;
    for (int64_t c = 0; c < w->n_chains; c++)
        for (int64_t i = 0; i < row; i += L) {
            const vu two = half_of(operand(x + c * row + i, offset + (offset ? i : 0), scale + i));
            bits16 *out = (bits16 *)w->halves + c * row + i;
            for (int k = 0; k < L; k++) out[k] = (bits16)two[k];
        }
    return w->halves;
}

// L units of pair c of neighbouring chains among n rows of x; the last has no partner if n is odd
ALWAYS vu chain_pair(const float *x, int64_t c, int64_t i, int64_t n, int64_t row, const float *offset, const float *scale) {
    const float *o = offset ? offset + i : 0;
    const vu even = half_of(operand(x + 2 * c * row + i, o, scale + i));
    return 2 * c + 1 < n ? even | half_of(operand(x + (2 * c + 1) * row + i, o, scale + i)) << 16 : even;
}

// n rows of x as pairs of neighbouring chains, each pair's units together
static void along_chains(float *out, const float *x, int64_t n, int64_t row, const float *offset, const float *scale) {
    for (int64_t c = 0; 2 * c < n; c++)
        for (int64_t i = 0; i < row; i += L) store(out + c * row + i, (vf)chain_pair(x, c, i, n, row, offset, scale));
}

// The same, each unit's pairs together, as matrix units read them
static void along_chains_by_unit(float *out, const float *x, int64_t n, int64_t row, const float *offset, const float *scale) {
    const int64_t n_pairs = (n + 1) / 2;
    float block[16][L];
    for (int64_t first = 0; first < n_pairs; first += 16) {
        const int64_t width = n_pairs - first < 16 ? n_pairs - first : 16;
        for (int64_t i = 0; i < row; i += L) {
            for (int64_t c = 0; c < width; c++) store(block[c], (vf)chain_pair(x, first + c, i, n, row, offset, scale));
            for (int64_t k = 0; k < L; k++)
                for (int64_t c = 0; c < width; c++) out[(i + k) * n_pairs + first + c] = block[c][k];
        }
    }
}

// mean = mu + gain (W h), the mean of p(v | h)
static inline void visible_mean(const Walk *w, const float *h, float *mean) {
    if (w->n_visible <= FEW) {  // a product would leave most of its columns empty
        for (int64_t c = 0; c < w->n_chains; c++) {
            float *const row = mean + c * w->v_row;
            for (int64_t i = 0; i < w->v_row; i += L) store(row + i, fill(0));
            for (int64_t i = 0; i < w->n_visible; i++) {
                vf sum = fill(0);
                for (int64_t j = 0; j < w->n_hidden; j += L)
                    sum += load(w->down + i * w->h_row + j) * load(h + c * w->h_row + j);
                row[i] = w->mu[i] + w->gain[i] * total(sum);
            }
        }
        return;
    }
    const int64_t K = w->half ? (w->n_hidden + 1) / 2 : w->n_hidden, a_row = w->half ? w->h_row / 2 : w->h_row;
    const float *a = along_units(w, h, w->h_row, 0, 0);
    for (int64_t j = 0; j < panels(w->n_visible); j++) {
        const int64_t width = width_of(w->n_visible, j);
        memset(w->tile, 0, w->n_chains * PANEL * sizeof(float));
        product(w->half, w->n_chains, width, K, a, a_row, 1, w->down + j * K * PANEL, PANEL, w->tile, PANEL);
        for (int64_t c = 0; c < w->n_chains; c++)
            for (int64_t i = 0; i < width; i += L) {
                const int64_t unit = j * PANEL + i;
                store(mean + c * w->v_row + unit, load(w->mu + unit) + load(w->gain + unit) * load(w->tile + c * PANEL + i));
            }
    }
}

// v' = m + shrink (v - m) + noise_std xi, and the log density of xi without its constant
static inline void move(const Walk *w, int64_t t, uint32_t draw, const float *v, float *moved) {
    const float *shrink = w->shrink + t * w->move_row, *noise_std = w->noise_std + t * w->move_row;
    if (w->n_visible <= FEW) {  // draws for L chains at once: a panel of units would be nearly empty
        for (int64_t c = 0; c < w->n_chains; c++) {
            w->log_q[c] = 0;
            for (int64_t i = 0; i < w->v_row; i += L) {  // what is beyond the last unit is 0; v may be moved where it is
                float *const here = moved + c * w->v_row + i;
                store(here, choose(load(w->real + i) > 0.0f, load(here), fill(0)));
            }
        }
        for (int64_t i = 0; i < w->n_visible; i++)
            for (int64_t c = 0; c < w->n_chains; c += L) {
                vu word[4];
                vf xi, unused;
                philox_of_unit((Place){w->key, w->first_chain + c, draw, w->replica}, i, word);
                normal(word[0], word[1], &xi, &unused);
                for (int64_t k = c; k < c + L && k < w->n_chains; k++) {
                    const int64_t place = k * w->v_row + i;
                    moved[place] = w->mean[place] + shrink[i] * (v[place] - w->mean[place]) + noise_std[i] * xi[k - c];
                    w->log_q[k] -= 0.5f * xi[k - c] * xi[k - c];
                }
            }
        return;
    }
    for (int64_t c = 0; c < w->n_chains; c++) {
        const int64_t row = c * w->v_row;
        vf squares = fill(0);
        for (int64_t j = 0; j < panels(w->n_visible); j++) {
            const int64_t width = width_of(w->n_visible, j);
            for (int first = 0; first < 16; first += L) {
                vu word[4];
                vf xi[4];
                philox((Place){w->key, w->first_chain + c, draw, w->replica}, j, first, word);
                normal(word[0], word[1], xi, xi + 1);
                if (width > 32) normal(word[2], word[3], xi + 2, xi + 3);
                for (int64_t k = 0; 16 * k < width; k++) {
                    const int64_t unit = j * PANEL + 16 * k + first;
                    const vf m = load(w->mean + row + unit), s = load(shrink + unit), e = xi[k] * load(w->real + unit);
                    store(moved + row + unit, m + s * (load(v + row + unit) - m) + load(noise_std + unit) * e);
                    squares += e * e;
                }
            }
        }
        w->log_q[c] = -0.5f * total(squares);
    }
}

// What comes of the logits of panel j in the tile: draws, probabilities, and what F(v), the coupling and log p(h | v) gain,
// each where it is asked for; the last with F(v) alone
ALWAYS void hidden_panel(const Walk *w, uint32_t draw, int64_t j, int64_t width, int draws, float *h, float *p,
                         float *free_energy, float *coupling, float *log_p) {
    const float beta = *w->beta, *const b = w->b + j * PANEL;
    for (int64_t c = 0; c < w->n_chains; c++) {
        const float *const tile = w->tile + c * PANEL;
        const int64_t row = c * w->h_row + j * PANEL;
        vf softplus = fill(0), factor = fill(1), coupled = fill(0), on = fill(0);
        for (int first = 0; first < 16; first += L) {
            vu word[4];
            philox((Place){w->key, w->first_chain + c, draw, w->replica}, j, first, word);
#pragma GCC unroll 4
            for (int64_t k = 0; 16 * k < width; k++) {
                const int64_t i = 16 * k + first;
                const vf logit = beta * load(tile + i) + load(b + i);
                const vf e = exp_of(-logit);
                const vf u = uniform(word[k]);
                if (draws) store(h + row + i, (vf)((u * e + u < 1.0f) & (vi)fill(1.0f)));
                if (p) store(p + row + i, 1.0f / (1.0f + e));
                if (coupling) coupled += load(h + row + i) * (load(tile + i) + load(w->plain_b + j * PANEL + i));
                if (log_p) on += load(h + row + i) * choose(logit > -87.0f, logit, fill(0));  // not of padding
                if (free_energy) {  // log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), one logarithm for all
                    const vi positive = logit > 0.0f;
                    softplus += choose(positive, logit, fill(0));
                    factor *= 1.0f + choose(positive, e, exp_of(logit));
                }
            }
        }
        if (coupling) coupling[c] = (j ? coupling[c] : 0) + total(coupled);
        const float all = free_energy ? total(softplus + log_of(factor)) : 0;
        if (free_energy) free_energy[c] -= all;
        if (log_p) log_p[c] = (j ? log_p[c] : 0) + total(on) - all;
    }
}

// h' ~ p(h | v) but where h is held, its probabilities, F(v) and the coupling where asked for
static inline void hidden(const Walk *w, uint32_t draw, const float *v, float *h, float *p, float *free_energy) {
    if (free_energy)
        for (int64_t c = 0; c < w->n_chains; c++) {
            vf sum = fill(0);
            for (int64_t i = 0; i < w->n_visible; i += L) {
                const vf d = load(v + c * w->v_row + i) - load(w->mu + i);
                sum += d * d * load(w->inverse_var + i) * load(w->real + i);
            }
            free_energy[c] = 0.5f * total(sum);
        }
    const int64_t K = w->half ? (w->n_visible + 1) / 2 : w->n_visible, a_row = w->half ? w->v_row / 2 : w->v_row;
    const float *a = along_units(w, v, w->v_row, w->mu, w->inverse);
    const int draws = h && !w->held, plain = draws && !free_energy && !w->coupling;
    for (int64_t j = 0; j < panels(w->n_hidden); j++) {
        const int64_t width = width_of(w->n_hidden, j);
        memset(w->tile, 0, w->n_chains * PANEL * sizeof(float));
        TIMED(2, product(w->half, w->n_chains, width, K, a, a_row, 1, w->up + j * K * PANEL, PANEL, w->tile, PANEL));
        if (plain && !p && width == PANEL) hidden_panel(w, draw, j, PANEL, 1, h, 0, 0, 0, 0);  // known when it is compiled
        else if (plain && width == PANEL) hidden_panel(w, draw, j, PANEL, 1, h, p, 0, 0, 0);
        else hidden_panel(w, draw, j, width, draws, h, p, free_energy, w->coupling, w->log_p);
    }
}

// Eq. 12 as a difference of free energies or, jointly, of energies; the rejected go back to where they were
static inline float accept(const Walk *w, int64_t t, uint32_t draw, const float *v, const float *h, const float *p, float *v_new,
                    float *h_new, float *p_new) {
    const float *shrink = w->shrink + t * w->move_row, *noise_std = w->noise_std + t * w->move_row;
    float sum = 0;
    for (int64_t c = 0; c < w->n_chains; c++) {
        const int64_t row = c * w->v_row, size = w->v_row * sizeof(float);
        vf squares = fill(0);
        for (int64_t i = 0; i < w->n_visible; i += L) {
            const vf m = load(w->mean + row + i), s = load(shrink + i);
            vf xi = (load(v + row + i) - (m + s * (load(v_new + row + i) - m))) / load(noise_std + i);
            xi = choose(load(w->real + i) > 0.0f, xi, fill(0));
            squares += xi * xi;
        }
        float log_ratio = (w->old_free_energy[c] - w->free_energy[c]) / w->temperature;
        log_ratio += -0.5f * total(squares) - w->log_q[c];
        if (w->log_p) log_ratio += (1 - 1 / w->temperature) * (w->old_log_p[c] - w->log_p[c]);
        const float probability = log_ratio >= 0 ? 1 : log_ratio > -87 ? exp_of(fill(log_ratio))[0] : 0;  // NaN: 0
        vu word[4];
        philox((Place){w->key, w->first_chain + c, draw, w->replica}, 0, 0, word);
        sum += probability;
        w->accept_chain[c] += probability;
        if (!(uniform(word[0])[0] < probability)) {
            memcpy(v_new + row, v + row, size);
            memcpy(w->mean + row, w->old_mean + row, size);
            memcpy(h_new + c * w->h_row, h + c * w->h_row, w->h_row * sizeof(float));
            if (p) memcpy(p_new + c * w->h_row, p + c * w->h_row, w->h_row * sizeof(float));
            w->free_energy[c] = w->old_free_energy[c];
            if (w->log_p) w->log_p[c] = w->old_log_p[c];
        }
    }
    return sum;
}

// Adds the states in slots first..last - 1, which lie one after another
static inline void add(const Walk *w, int64_t first, int64_t last) {
    const int64_t n = (last - first) * w->n_chains;
    if (n <= 0) return;
    const float *v = w->v + first * w->n_chains * w->v_row;
    const float *h = (w->probabilities ? w->p : w->h) + first * w->n_chains * w->h_row;
    for (int64_t i = 0; i < w->n_visible; i += L) {
        vf sum = fill(0), squares = fill(0);
        for (int64_t c = 0; c < n; c++) {
            const vf x = load(v + c * w->v_row + i);
            sum += x, squares += x * x;
        }
        store(w->sum_v + i, load(w->sum_v + i) + sum);
        store(w->sum_v2 + i, load(w->sum_v2 + i) + squares);
    }
    for (int64_t j = 0; j < w->n_hidden; j += L) {
        vf sum = fill(0);
        for (int64_t c = 0; c < n; c++) sum += load(h + c * w->h_row + j);
        store(w->sum_h + j, load(w->sum_h + j) + sum);
    }
    int64_t inner = n, v_unit = 1, v_state = w->v_row;  // floats from one unit, and from one state or pair, to the next
    if (w->half) {
        float *const pairs_v = w->halves, *const pairs_h = pairs_v + (n + 1) / 2 * w->v_row;
        inner = (n + 1) / 2;
        if (w->half == IN_TILES) along_chains_by_unit(pairs_v, v, n, w->v_row, w->mu, w->inverse), v_unit = inner, v_state = 1;
        else along_chains(pairs_v, v, n, w->v_row, w->mu, w->inverse);
        along_chains(pairs_h, h, n, w->h_row, 0, 0);
        v = pairs_v, h = pairs_h;
    }
    for (int64_t j = 0; j < panels(w->n_hidden); j++)
        product(w->half, w->n_visible, width_of(w->n_hidden, j), inner, v, v_unit, v_state, h + j * PANEL, w->h_row,
                w->sum_vh + j * PANEL, w->h_row);
}
