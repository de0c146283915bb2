// Chains under measurements: block Gibbs on p(v, h | y), and by chain the sums of the conditional mean of v.
//
// The definition is samplers/conditional.py: v | h, y has the mean m + g (y - m), with m = mu + W h, and a deviation of its
// own in every chain; where v is known to lie in an interval, it is truncated to that (samplers/truncated.py).

#include "steps.h"

typedef struct {
    Walk walk;                         // v, h, p hold a state of each chain: the start, and at the end the last
    int64_t burn_in;                   // states after so many steps are summed
    const float *given, *share, *std;  // (n_chains, v_row): y, g and the deviation
    const float *low, *high;           // (n_chains, v_row): intervals; or null, where there are none
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

// log R(-y) less log sqrt(pi/2), R the ratio of distribution function to density of a normal, y >= 0, to 1.2e-7 (the rational
// approximation of erfcc in Numerical Recipes)
ALWAYS vf log_mills(vf y) {
    const vf t = 1.0f / (1.0f + 0.35355339059f * y);
    vf p = fill(0.17087277f);
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    p = p * t - 1.26551223f;
    return log_of(t) + p;
}

// log Phi(-y - d) - log Phi(-y), where `from` is log_mills(y): without a difference of large numbers in a tail
ALWAYS vf log_fall(vf y, vf d, vf from) { return log_mills(y + d) - from - y * d - 0.5f * d * d; }

#define LOG_ROOT 0.22579135f  // log sqrt(pi/2)

ALWAYS vf larger(vf a, vf b) { return choose(a > b, a, b); }

ALWAYS vf distribution(vf x) {  // Phi
    const vf y = choose(x < 0.0f, -x, x);
    const vf half = exp_of(larger(log_mills(y) + LOG_ROOT - 0.91893853f - 0.5f * y * y, fill(-87.0f)));
    return choose(x < 0.0f, half, 1.0f - half);
}

// N(m, s^2) between low and high by inversion at u in [0, 1): the definition is truncated_normal. Where the interval lies in
// a tail, its end nearer to m is -y, and what is solved for is the distance d beyond it; else y is 0 and d one from m.
ALWAYS vf truncated(vf m, vf s, vf low, vf high, vf u) {
    const vf a = (low - m) / s, b = (high - m) / s, w = 1.0f - u - 0x1p-26f;
    const vi flip = a + b > 0.0f;  // NaN, of no ends, is not
    const vf far = choose(flip, -b, a), near = choose(flip, -a, b);
    const vi tail = near < 0.0f;
    const vf y = choose(tail, -near, fill(0)), from = log_mills(y);
    const vf width = choose(near - far < 1e4f, near - far, fill(1e4f));  // infinite ones too
    const vf beyond = exp_of(larger(log_fall(y, width, from), fill(-87.0f)));
    const vf in_tail = 1.0f - w * (1.0f - beyond);
    const vf p = distribution(within(near, -13, 13)), gap = w * (p - distribution(within(far, -13, 13)));
    const vf above = distribution(-within(near, -13, 13)) + gap, below = p - gap;
    const vi up = above < below;
    const vf q = log_of(larger(choose(tail, in_tail, 2.0f * choose(up, above, below)), fill(1e-30f)));
    const vf share = choose(q < 0.0f, q, fill(0));
    vf d = -2.0f * share / (y + root(y * y - 2.0f * share) + 1e-30f);
    for (int k = 0; k < 3; k++) {  // Newton
        const vf ratio = exp_of(log_mills(y + d) + LOG_ROOT);
        d = larger(d + (log_fall(y, d, from) - share) * ratio, fill(0));
    }
    const vf in_middle = m + s * choose((flip & ~up) | (~flip & up), d, -d);
    const vf v = choose(tail, choose(flip, low + s * d, high - s * d), in_middle);
    return choose(v < low, low, choose(v > high, high, v));
}

// v of all chains, given their means, truncated to their intervals; what is known stays
static void draw_truncated(const Given *g, uint32_t draw) {
    const Walk *w = &g->walk;
    for (int64_t c = 0; c < w->n_chains; c++)
        for (int64_t j = 0; j < panels(w->n_visible); j++)
            for (int first = 0; first < 16; first += L) {
                vu word[4];
                philox((Place){w->key, w->first_chain + c, draw, w->replica}, j, first, word);
                for (int64_t k = 0; 16 * k < width_of(w->n_visible, j); k++) {
                    const int64_t i = c * w->v_row + j * PANEL + 16 * k + first;
                    const vf m = load(w->mean + i), s = load(g->std + i);
                    const vf v = truncated(m, s, load(g->low + i), load(g->high + i), uniform(word[k]));
                    store(w->v + i, choose(s > 0.0f, v, m));
                }
            }
}

static void part(const void *all, int64_t k) {
    Given g = *(const Given *)all;
    Walk *w = &g.walk;
    const int64_t c = w->chunk, first = k * c, v = first * w->v_row, h = first * w->h_row;
    w->n_chains = w->n_chains - first < c ? w->n_chains - first : c;
    w->first_chain += first;
    w->v += v, w->mean += v, w->h += h, w->p += h, w->tile += first * PANEL, w->log_q += first;
    g.given += v, g.share += v, g.std += v, g.noise += v;
    if (g.low) g.low += v, g.high += v;
    if (w->half) w->halves += k * (c + 1) * (w->v_row + w->h_row) / 2;
    if (g.total) g.total += v, g.squares += v;
    uint32_t draw = w->first_draw;
    if (w->draw_start) hidden(w, draw++, w->v, w->h, w->p, 0);
    Walk noise = *w;
    noise.mean = (float *)g.zero, noise.shrink = g.zero, noise.noise_std = g.one, noise.move_row = 0;
    for (int64_t t = 0; t < w->n_steps; t++) {
        given_mean(&g, t - 1);  // of the state before: no state counts before the first step
        if (g.low) draw_truncated(&g, draw++);
        else {
            move(&noise, 0, draw++, w->v, g.noise);
            for (int64_t i = 0; i < w->n_chains * w->v_row; i += L)
                store(w->v + i, load(w->mean + i) + load(g.std + i) * load(g.noise + i));
        }
        hidden(w, draw++, w->v, w->h, w->p, 0);
    }
    if (g.total) given_mean(&g, w->n_steps - 1);
}

void grbm_walk_given(const Given *all, int64_t threads) {
    share(part, all, (all->walk.n_chains + all->walk.chunk - 1) / all->walk.chunk, threads);
}

HANDED(Given)
