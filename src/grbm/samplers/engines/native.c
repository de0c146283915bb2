// A walk of Markov chains on a CPU: products, random numbers and moments in one pass, for one block of chains.

#include "steps.h"

#if defined(PROFILE)
double grbm_seconds[5];
#endif

// ------------------------------------------------------------------------------------------------------------- the walk

static void run(Walk w) {
    const int64_t v_size = w.chunk * w.v_row, h_size = w.chunk * w.h_row;
    uint32_t draw = w.first_draw;
    if (w.sum_v) {
        memset(w.sum_v, 0, w.v_row * sizeof(float)), memset(w.sum_v2, 0, w.v_row * sizeof(float));
        memset(w.sum_h, 0, w.h_row * sizeof(float)), memset(w.sum_vh, 0, w.n_visible * w.h_row * sizeof(float));
    }
    into_rows(w.v, w.v_row, w.start_v, w.n_visible, w.n_chains);
    into_rows(w.h, w.h_row, w.start_h, w.n_hidden, w.n_chains);
    into_rows(w.p, w.h_row, w.start_p, w.n_hidden, w.n_chains);
    int64_t first = w.burn_in < 0 ? 0 : 1;  // the first slot that is not summed yet
    float *const p_start = w.keep_p || w.n_steps == 0 ? w.p : 0, *const F = w.adjusted ? w.free_energy : 0;
    w.held = !w.draw_start;
    if (w.draw_start || w.adjusted) TIMED(3, hidden(&w, draw, w.v, w.h, p_start, F));
    w.held = 0, draw += w.draw_start != 0;
    if (w.adjusted) visible_mean(&w, w.mean_field ? w.p : w.h, w.mean);
    for (int64_t t = 0; t < w.n_steps; t++) {
        const int64_t old = t % w.ring, new = (t + 1) % w.ring;
        if (new == 0) {
            if (w.sum_v) TIMED(4, add(&w, first, w.ring));
            first = 0;
        }
        if (t < w.burn_in) first = new + 1;
        float *v = w.v + old * v_size, *h = w.h + old * h_size, *p = w.keep_p ? w.p + old * h_size : 0;
        float *v_new = w.v + new * v_size, *h_new = w.h + new * h_size, *p_new = w.keep_p ? w.p + new * h_size : 0;
        if (t == w.n_steps - 1 && !w.keep_p) p_new = w.p;
        if (!w.adjusted) TIMED(0, visible_mean(&w, w.mean_field ? p : h, w.mean));
        TIMED(1, move(&w, t, draw++, v, v_new));
        if (w.adjusted) {
            float *swap = w.mean;
            w.mean = w.old_mean, w.old_mean = swap;
            swap = w.free_energy, w.free_energy = w.old_free_energy, w.old_free_energy = swap;
            swap = w.log_p, w.log_p = w.old_log_p, w.old_log_p = swap;
        }
        TIMED(3, hidden(&w, draw++, v_new, h_new, p_new, w.adjusted ? w.free_energy : 0));
        if (w.adjusted) {
            visible_mean(&w, w.mean_field ? p_new : h_new, w.mean);
            if (t >= w.adjust_from) w.accept[t] = accept(&w, t, draw++, v, h, p, v_new, h_new, p_new);
        }
    }
    const int64_t slot = w.n_steps % w.ring;
    if (w.sum_v) TIMED(4, add(&w, first, slot + 1));
    if (w.half && w.sum_vh)  // from (v - mu)/sigma to v
        for (int64_t i = 0; i < w.n_visible; i++)
            for (int64_t j = 0; j < w.n_hidden; j += L) {
                float *const sum = w.sum_vh + i * w.h_row + j;
                store(sum, w.gain[i] * load(sum) + w.mu[i] * load(w.sum_h + j));
            }
    out_of_rows(w.last_v, w.n_visible, w.v + slot * v_size, w.v_row, w.n_chains);
    out_of_rows(w.last_h, w.n_hidden, w.h + slot * h_size, w.h_row, w.n_chains);
    out_of_rows(w.last_p, w.n_hidden, w.p + (w.keep_p ? slot * h_size : 0), w.h_row, w.n_chains);
}

static void part(const void *all, int64_t k) {
    run(one(all, k));
}

void grbm_walk(const Walk *all, int64_t threads) {
    share(part, all, all->n_replicas * ((all->n_chains + all->chunk - 1) / all->chunk), threads);
}

// F(v) where the walk would begin
typedef struct {
    Walk walk;
    float *free_energy;  // (n_chains,)
} Start;

static void free_energy_part(const void *all, int64_t k) {
    const Start *s = all;
    const Walk w = one(&s->walk, k);
    into_rows(w.v, w.v_row, w.start_v, w.n_visible, w.n_chains);
    hidden(&w, 0, w.v, 0, 0, s->free_energy + k * w.chunk);
}

void grbm_free_energy(const Start *s, int64_t threads) {
    share(free_energy_part, s, (s->walk.n_chains + s->walk.chunk - 1) / s->walk.chunk, threads);
}

HANDED(Walk) HANDED(Start)

// How "fast" multiplies: on matrix units, else on vectors where they multiply pairs of bfloat16 faster than floats. Intel's
// take twice as long for them (83 GFLOP/s against 170 for floats), AMD's half as long.
int64_t grbm_half(void) {
#if defined(CHOSEN)
    return CHOSEN;  // by a test
#else
    if (HAS_TILES && tiles_allowed()) return IN_TILES;
#if defined(__AVX512BF16__)
    if (__builtin_cpu_is("intel")) return 0;
#endif
    return HAS_HALF;
#endif
}
