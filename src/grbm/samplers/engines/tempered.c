// A walk of parallel tempering: all replicas of a block of chains, their swaps and moves, in one call.
//
// The definition is ParallelTempering.bind (samplers/tempering.py). A chain swaps with its own replicas alone, so blocks
// of chains never wait for one another.

#include "steps.h"

typedef struct {
    Walk walk;                           // its ring holds the states at beta = 1; v, h and p of all replicas are here
    const float *gaps;                   // (n_replicas - 1,): from one inverse temperature to the next
    const float *base_mean, *base_inverse_var;    // (row): E_0
    const float *plain_mu, *plain_inverse_var;    // (row): E_1
    float *v, *h, *p;                    // by chunk: (n_replicas, chunk, row)
    float *difference;                   // by chunk: (n_replicas, chunk), E_1 - E_0
    int64_t *accepted;                   // by chunk: (n_replicas - 1,), sums of acceptance probabilities in 2^-30
} Ladder;

// The walk as replica r sees it
static Walk rung(const Ladder *l, int64_t r) {
    Walk w = l->walk;
    w.replica = r;
    w.beta += r, w.b += r * w.h_row, w.mu += r * w.v_row, w.gain += r * w.v_row;
    w.shrink += r * w.v_row, w.noise_std += r * w.v_row;
    w.coupling = l->difference + r * w.chunk;
    return w;
}

// h ~ p(h | v) of replica r, and D = E_1 - E_0
static void draw_hidden(const Ladder *l, int64_t r, uint32_t draw, int held, int probabilities) {
    Walk w = rung(l, r);
    w.held = held;
    const int64_t place = r * w.chunk;
    const float *v = l->v + place * w.v_row;
    hidden(&w, draw, v, l->h + place * w.h_row, probabilities ? l->p + place * w.h_row : 0, 0);
    for (int64_t c = 0; c < w.n_chains; c++) {
        vf sum = fill(0);
        for (int64_t i = 0; i < w.n_visible; i += L) {
            const vf x = load(v + c * w.v_row + i);
            const vf one = x - load(l->plain_mu + i), zero = x - load(l->base_mean + i);
            sum += (one * one * load(l->plain_inverse_var + i) - zero * zero * load(l->base_inverse_var + i)) * load(w.real + i);
        }
        w.coupling[c] = 0.5f * total(sum) - w.coupling[c];
    }
}

static void exchange(float *a, float *b, int64_t n) {
    for (int64_t i = 0; i < n; i += L) {
        const vf x = load(a + i);
        store(a + i, load(b + i)), store(b + i, x);
    }
}

// Pairs (first, first + 1), (first + 2, first + 3), ... swap their states with log A = gap (D_{r+1} - D_r)
static void swap(const Ladder *l, int64_t first, uint32_t draw) {
    const Walk *w = &l->walk;
    for (int64_t r = first; r + 1 < w->n_replicas; r += 2)
        for (int64_t c = 0; c < w->n_chains; c += L) {
            vu word[4];
            philox_of_unit((Place){w->key, w->first_chain + c, draw, r}, 0, word);
            const vf u = uniform(word[0]);
            for (int64_t k = c; k < c + L && k < w->n_chains; k++) {
                const int64_t low = r * w->chunk + k, high = low + w->chunk;
                const float log_ratio = l->gaps[r] * (l->difference[high] - l->difference[low]);
                const float probability = log_ratio >= 0 ? 1 : log_ratio > -87 ? exp_of(fill(log_ratio))[0] : 0;  // NaN: 0
                l->accepted[r] += (int64_t)(probability * 0x1p30 + 0.5);
                if (!(u[k - c] < probability)) continue;
                const float d = l->difference[low];
                l->difference[low] = l->difference[high], l->difference[high] = d;
                exchange(l->v + low * w->v_row, l->v + high * w->v_row, w->v_row);
                exchange(l->h + low * w->h_row, l->h + high * w->h_row, w->h_row);
            }
        }
}

// The state at beta = 1 goes into the ring, which is summed when it is full
static int64_t keep(const Ladder *l, int64_t slot) {
    const Walk *w = &l->walk;
    const int64_t top = (w->n_replicas - 1) * w->chunk, n = w->n_chains;
    memcpy(w->v + slot * n * w->v_row, l->v + top * w->v_row, n * w->v_row * sizeof(float));
    const float *h = w->probabilities ? l->p : l->h;
    memcpy((w->probabilities ? w->p : w->h) + slot * n * w->h_row, h + top * w->h_row, n * w->h_row * sizeof(float));
    if (slot + 1 < w->ring) return slot + 1;
    add(w, 0, w->ring);
    return 0;
}

static void run(Ladder l) {
    const Walk *w = &l.walk;
    const int64_t R = w->n_replicas;
    uint32_t draw = w->first_draw;
    int64_t slot = 0;
    if (w->sum_v) {
        memset(w->sum_v, 0, w->v_row * sizeof(float)), memset(w->sum_v2, 0, w->v_row * sizeof(float));
        memset(w->sum_h, 0, w->h_row * sizeof(float)), memset(w->sum_vh, 0, w->n_visible * w->h_row * sizeof(float));
    }
    memset(l.accepted, 0, (R - 1) * sizeof(int64_t));
    for (int64_t r = 0; r < R; r++) draw_hidden(&l, r, draw, !w->draw_start, w->n_steps == 0 || w->probabilities);
    draw += w->draw_start != 0;
    if (w->sum_v && w->burn_in < 0) slot = keep(&l, slot);
    for (int64_t t = 0; t < w->n_steps; t++) {
        swap(&l, 0, draw++);
        swap(&l, 1, draw++);
        for (int64_t r = 0; r < R; r++) {
            const Walk at = rung(&l, r);
            float *v = l.v + r * w->chunk * w->v_row;
            visible_mean(&at, l.h + r * w->chunk * w->h_row, at.mean);
            move(&at, t, draw, v, v);
            draw_hidden(&l, r, draw + 1, 0, t == w->n_steps - 1 || (w->probabilities && r == R - 1));
        }
        draw += 2;
        if (w->sum_v && t >= w->burn_in) slot = keep(&l, slot);
    }
    if (w->sum_v) add(w, 0, slot);
}

// Part number k of those that `all` describes
static void part(const void *all, int64_t k) {
    Ladder l = *(const Ladder *)all;
    Walk *w = &l.walk;
    const int64_t c = w->chunk, R = w->n_replicas, v = w->v_row, h = w->h_row, first = k * c;
    w->n_chains = w->n_chains - first < c ? w->n_chains - first : c;
    w->first_chain += first;
    w->v += k * w->ring * c * v, w->h += k * w->ring * c * h, w->p += k * w->ring * c * h;
    w->mean += k * c * v, w->tile += k * c * PANEL, w->log_q += k * c;
    if (w->sum_v) w->sum_v += k * v, w->sum_v2 += k * v, w->sum_h += k * h, w->sum_vh += k * w->n_visible * h;
    l.v += k * R * c * v, l.h += k * R * c * h, l.p += k * R * c * h, l.difference += k * R * c, l.accepted += k * (R - 1);
    for (int64_t r = 0; r < R; r++) {
        const int64_t from = r * ((const Ladder *)all)->walk.n_chains + first;
        into_rows(l.v + r * c * v, v, w->start_v + from * w->n_visible, w->n_visible, w->n_chains);
        if (w->start_h) into_rows(l.h + r * c * h, h, w->start_h + from * w->n_hidden, w->n_hidden, w->n_chains);
    }
    run(l);
    for (int64_t r = 0; r < R; r++) {
        const int64_t to = r * ((const Ladder *)all)->walk.n_chains + first;
        out_of_rows(w->last_v + to * w->n_visible, w->n_visible, l.v + r * c * v, v, w->n_chains);
        out_of_rows(w->last_h + to * w->n_hidden, w->n_hidden, l.h + r * c * h, h, w->n_chains);
        out_of_rows(w->last_p + to * w->n_hidden, w->n_hidden, l.p + r * c * h, h, w->n_chains);
    }
}

void grbm_temper(const Ladder *all, int64_t threads) {
    share(part, all, (all->walk.n_chains + all->walk.chunk - 1) / all->walk.chunk, threads);
}

HANDED(Ladder)
