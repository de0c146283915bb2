// Walks of chains that jump: sweeps over hidden units, local moves, and proposals from a mixture.
//
// The definition is samplers/global_moves.py. Densities of the mixture have PANEL chains as lanes.

#include "steps.h"

enum { VECTORS = PANEL / L };

// v ~ the mixture, into a row
static void propose(const Mixture *q, const Walk *w, uint32_t draw, int64_t c, float *restrict v) {
    const int64_t N = w->n_visible;
    const uint32_t chain = w->first_chain + c;
    vu word[4];
    float noise[PANEL];
    philox((Place){w->key, chain, draw, 0}, 0, 0, word);
    const float u = uniform(word[0])[0];
    int64_t k = 0;
    while (k < q->n_components - 1 && q->edges[k] <= u) k++;
    const float *factor = q->factors + k * N * (q->diagonal ? 1 : N);
    memset(v, 0, w->v_row * sizeof(float));
    for (int64_t j = 0; j < panels(N); j++) {
        for (int first = 0; first < 16; first += L) {
            vf xi[4];
            philox((Place){w->key, chain, draw + 1, 0}, j, first, word);
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

// The log-density of n <= PANEL rows of v
static void log_density(const Mixture *q, const Walk *w, const float *v, int64_t n, float *room, float *out) {
    const int64_t N = w->n_visible, K = q->n_components;
    float *const units = room, *const apart = units + N * PANEL, *const parts = apart + N * PANEL;
    memset(units, 0, N * PANEL * sizeof(float));
    for (int64_t c = 0; c < n; c++)
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
    float found[PANEL];
    for (int x = 0; x < PANEL; x += L) {
        vf top = load(parts + x), sum = fill(0);
        for (int64_t k = 1; k < K; k++) {
            const vf part = load(parts + k * PANEL + x);
            top = choose(part > top, part, top);
        }
        for (int64_t k = 0; k < K; k++) sum += exp_of(load(parts + k * PANEL + x) - top);
        store(found + x, top + log_of(sum));
    }
    memcpy(out, found, n * sizeof(float));
}

// Chains of part k jump, each with the probability min(1, p(v') q(v) / (p(v) q(v')))
static void jump(const void *all, int64_t k) {
    const Jumps *s = all;
    const Walk w = one(&s->walk, k);
    const int64_t N = w.n_visible, M = w.n_hidden, C = w.n_chains;
    const uint32_t draw = w.first_draw + 2 * w.n_steps;  // behind those of the moves
    float *const old = w.v, *const new = w.v + w.chunk * w.v_row, *const room = s->room + k * s->room_size;
    float *const free_energy = room, *const new_free_energy = room + w.chunk, *const accept = s->accept + k * w.chunk;
    float *const log_q = room + 2 * w.chunk, *const new_log_q = room + 3 * w.chunk, *const rest = room + 4 * w.chunk;
    into_rows(old, w.v_row, w.last_v, N, C);
    for (int64_t c = 0; c < C; c++) propose(&s->mixture, &w, draw, c, new + c * w.v_row);
    hidden(&w, 0, old, 0, 0, free_energy);
    hidden(&w, draw + 3, new, w.h, w.p, new_free_energy);
    for (int64_t c = 0; c < C; c += PANEL) {
        const int64_t n = C - c < PANEL ? C - c : PANEL;
        log_density(&s->mixture, &w, old + c * w.v_row, n, rest, log_q + c);
        log_density(&s->mixture, &w, new + c * w.v_row, n, rest, new_log_q + c);
    }
    for (int64_t c = 0; c < C; c++) {
        const float log_ratio = free_energy[c] - new_free_energy[c] + log_q[c] - new_log_q[c];
        const float probability = log_ratio >= 0 ? 1 : log_ratio > -87 ? exp_of(fill(log_ratio))[0] : 0;  // NaN: 0
        vu word[4];
        philox((Place){w.key, w.first_chain + c, draw + 2, 0}, 0, 0, word);
        accept[c] += probability;
        if (!(uniform(word[0])[0] < probability)) continue;
        memcpy(w.last_v + c * N, new + c * w.v_row, N * sizeof(float));
        memcpy(w.last_h + c * M, w.h + c * w.h_row, M * sizeof(float));
        memcpy(w.last_p + c * M, w.p + c * w.h_row, M * sizeof(float));
    }
}

// Adds the states of part k to its sums
static void count(const void *all, int64_t k) {
    const Jumps *s = all;
    const Walk w = one(&s->walk, k);
    into_rows(w.v, w.v_row, w.last_v, w.n_visible, w.n_chains);
    into_rows(w.probabilities ? w.p : w.h, w.h_row, w.probabilities ? w.last_p : w.last_h, w.n_hidden, w.n_chains);
    add(&w, 0, 1);
}

void grbm_walk(const Walk *all, int64_t threads);
void grbm_sweep(const Sweep *all, int64_t threads);

void grbm_jump(const Jumps *all, int64_t threads) {
    Jumps s = *all;
    Walk start = s.walk;
    start.n_steps = 0;
    grbm_walk(&start, threads);  // sets sums to 0, and leaves where the chains begin in last_v, last_h and last_p
    Walk *const moves = &s.walk;
    moves->first_draw += moves->draw_start, moves->draw_start = 0;
    moves->start_v = moves->last_v, moves->start_h = s.sweep.swept, moves->start_p = moves->last_p;
    s.sweep.h = moves->last_h;
    const int64_t parts = (moves->n_chains + moves->chunk - 1) / moves->chunk;
    for (int64_t t = 0; t < s.n_steps; t++) {
        s.sweep.draw = moves->first_draw++;
        grbm_sweep(&s.sweep, threads);
        moves->sum_v = 0;
        grbm_walk(moves, threads);
        share(jump, &s, parts, threads);
        moves->first_draw += 2 * moves->n_steps + 4;
        moves->sum_v = start.sum_v;
        if (moves->sum_v && t >= s.burn_in) share(count, &s, parts, threads);
    }
}

HANDED(Mixture) HANDED(Jumps)
