// Chains under measurements: block Gibbs on p(v, h | y), and by chain the sums of the conditional mean of v.
//
// The definition is samplers/conditional.py: v | h, y has the mean m + g (y - m), with m = mu + W h, and a deviation of its
// own in every chain.

#include "steps.h"

typedef struct {
    Walk walk;                         // v, h, p hold a state of each chain: the start, and at the end the last
    int64_t burn_in;                   // states after so many steps are summed
    const float *given, *share, *std;  // (n_chains, v_row): y, g and the deviation
    float *noise;                      // (n_chains, v_row): room for the draws
    const float *zero, *one;           // (chunk, v_row) of zeros, (v_row,) of ones: a move from nothing is its noise
    double *total, *squares;           // (n_chains, v_row), or null
} Given;

static void add_to(int64_t n, const float *restrict x, double *restrict total, double *restrict squares) {
    for (int64_t k = 0; k < n; k++) total[k] += x[k], squares[k] += (double)x[k] * x[k];
}

// mean = m + g (y - m), and its sums
static void given_mean(const Given *g, int64_t t) {
    const Walk *w = &g->walk;
    const int64_t n = w->n_chains * w->v_row;
    visible_mean(w, w->h, w->mean);
    for (int64_t i = 0; i < n; i += L) {
        const vf m = load(w->mean + i), share = load(g->share + i), apart = load(g->given + i) - m;
        store(w->mean + i, choose(share < 0.5f, m + share * apart, load(g->given + i) - (1.0f - share) * apart));  // y at 1
    }
    if (g->total && t >= g->burn_in) add_to(n, w->mean, g->total, g->squares);
}

static void part(const void *all, int64_t k) {
    Given g = *(const Given *)all;
    Walk *w = &g.walk;
    const int64_t c = w->chunk, first = k * c, v = first * w->v_row, h = first * w->h_row;
    w->n_chains = w->n_chains - first < c ? w->n_chains - first : c;
    w->first_chain += first;
    w->v += v, w->mean += v, w->h += h, w->p += h, w->tile += first * PANEL, w->log_q += first;
    g.given += v, g.share += v, g.std += v, g.noise += v;
    if (g.total) g.total += v, g.squares += v;
    uint32_t draw = w->first_draw;
    if (w->draw_start) hidden(w, draw++, w->v, w->h, w->p, 0);
    Walk noise = *w;
    noise.mean = (float *)g.zero, noise.shrink = g.zero, noise.noise_std = g.one, noise.move_row = 0;
    for (int64_t t = 0; t < w->n_steps; t++) {
        given_mean(&g, t - 1);  // of the state before: no state counts before the first step
        move(&noise, 0, draw++, w->v, g.noise);
        for (int64_t i = 0; i < w->n_chains * w->v_row; i += L)
            store(w->v + i, load(w->mean + i) + load(g.std + i) * load(g.noise + i));
        hidden(w, draw++, w->v, w->h, w->p, 0);
    }
    if (g.total) given_mean(&g, w->n_steps - 1);
}

void grbm_walk_given(const Given *all, int64_t threads) {
    share(part, all, (all->walk.n_chains + all->walk.chunk - 1) / all->walk.chunk, threads);
}

HANDED(Given)
