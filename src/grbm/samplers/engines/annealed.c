// Annealed importance sampling: chains along a path of inverse temperatures, each with its log weight, in one call.
//
// The definition is samplers/path.py. The tables of each inverse temperature are made on the way (Energy.temper), and a
// step computes the logits once: for the weight and for the draw of h.

#include "steps.h"

typedef struct {
    Walk walk;                  // at beta = 1, its n_steps those of the path; the start in v, h is room for the draws
    const double *betas;        // (n_steps + 1,)
    const float *base_mean, *base_inverse_var;  // (row)
    int64_t back;               // from the last inverse temperature to the first
    float *tables;              // by chunk: (4, row), the tempered mu, gain, shrink and noise_std
    float *logits;              // by chunk: (chunk, row), those at beta = 1
    double *log_weight;         // (n_chains,)
} AnnealedPath;

// The logits at beta = 1: l = W'(v/var) + b
static void all_logits(const AnnealedPath *p) {
    const Walk *w = &p->walk;
    for (int64_t j = 0; j < panels(w->n_hidden); j++) {
        const int64_t width = width_of(w->n_hidden, j);
        memset(w->tile, 0, w->n_chains * PANEL * sizeof(float));
        product(0, w->n_chains, width, w->n_visible, w->v, w->v_row, 1, w->up + j * w->n_visible * PANEL, PANEL, w->tile, PANEL);
        for (int64_t c = 0; c < w->n_chains; c++)
            for (int64_t i = 0; i < width; i += L)
                store(p->logits + c * w->h_row + j * PANEL + i, load(w->tile + c * PANEL + i) + load(w->b + j * PANEL + i));
    }
}

// log_weight += F_low(v) - F_high(v), where F_beta = (1 - beta) E_0 + beta E_1 - sum of softplus(beta l). The difference
// of two softplus is taken as (high - low) max(l, 0) + log((1 + exp(-high |l|))/(1 + exp(-low |l|))), without cancellation.
static void weigh(const AnnealedPath *p, double low, double high) {
    const Walk *w = &p->walk;
    vi lane = (vi){};
    for (int i = 0; i < L; i++) lane[i] = i;
    for (int64_t c = 0; c < w->n_chains; c++) {
        vf positive = fill(0), logs = fill(0), quadratic = fill(0);
        const float *logits = p->logits + c * w->h_row, *v = w->v + c * w->v_row;
        for (int64_t j = 0; j < w->n_hidden; j += 4 * L) {  // one logarithm for four
            vf above = fill(1), below = fill(1);
            for (int64_t i = j; i < j + 4 * L && i < w->n_hidden; i += L) {
                const vf l = load(logits + i), size = choose(l > 0.0f, l, -l);
                const vi real = lane < (int32_t)(w->n_hidden - i);
                positive += choose(real, choose(l > 0.0f, l, fill(0)), fill(0));
                above *= 1.0f + choose(real, exp_of(-(float)high * size), fill(0));
                below *= 1.0f + choose(real, exp_of(-(float)low * size), fill(0));
            }
            logs += log_of(above) - log_of(below);
        }
        for (int64_t i = 0; i < w->n_visible; i += L) {
            const vf one = load(v + i) - load(w->mu + i), zero = load(v + i) - load(p->base_mean + i);
            quadratic += (zero * zero * load(p->base_inverse_var + i) - one * one * load(w->inverse_var + i)) * load(w->real + i);
        }
        p->log_weight[c] += (high - low) * (0.5 * total(quadratic) + total(positive)) + total(logs);
    }
}

// h ~ p(h | v) at beta, then v' ~ p(v | h) there
static void step(const AnnealedPath *p, float beta, uint32_t draw) {
    Walk w = p->walk;
    for (int64_t c = 0; c < w.n_chains; c++)
        for (int64_t j = 0; j < panels(w.n_hidden); j++)
            for (int first = 0; first < 16; first += L) {
                vu word[4];
                philox((Place){w.key, w.first_chain + c, draw, 0}, j, first, word);
                for (int64_t k = 0; 16 * k < width_of(w.n_hidden, j); k++) {
                    const int64_t unit = j * PANEL + 16 * k + first;
                    const vf e = exp_of(-beta * load(p->logits + c * w.h_row + unit)), u = uniform(word[k]);
                    store(w.h + c * w.h_row + unit, (vf)((u * e + u < 1.0f) & (vi)fill(1.0f)));
                }
            }
    float *mu = p->tables, *gain = mu + w.v_row, *shrink = gain + w.v_row, *noise_std = shrink + w.v_row;
    for (int64_t i = 0; i < w.v_row; i += L) {
        const vf none = (1 - beta) * load(p->base_inverse_var + i), all = beta * load(w.inverse_var + i);
        const vf var = choose(load(w.real + i) > 0.0f, 1.0f / (none + all), fill(0));
        store(mu + i, var * (none * load(p->base_mean + i) + all * load(w.mu + i)));
        store(gain + i, var * all), store(shrink + i, fill(0)), store(noise_std + i, root(var));
    }
    w.mu = mu, w.gain = gain, w.shrink = shrink, w.noise_std = noise_std, w.move_row = 0;
    visible_mean(&w, w.h, w.mean);
    move(&w, 0, draw + 1, w.v, w.v);
}

static void part(const void *all, int64_t k) {
    AnnealedPath p = *(const AnnealedPath *)all;
    Walk *w = &p.walk;
    const int64_t c = w->chunk, first = k * c, n = w->n_steps;
    w->n_chains = w->n_chains - first < c ? w->n_chains - first : c;
    w->first_chain += first;
    w->v += first * w->v_row, w->h += first * w->h_row, w->mean += first * w->v_row;
    w->tile += first * PANEL, w->log_q += first;
    p.tables += k * 4 * w->v_row, p.logits += first * w->h_row, p.log_weight += first;
    memset(p.log_weight, 0, w->n_chains * sizeof(double));
    uint32_t draw = w->first_draw;
    all_logits(&p);
    for (int64_t t = 0; t < n; t++, draw += 2) {
        const int64_t to = p.back ? n - t : t + 1;
        if (!p.back) weigh(&p, p.betas[to - 1], p.betas[to]);
        step(&p, (float)p.betas[to], draw);
        all_logits(&p);
        if (p.back) weigh(&p, p.betas[to - 1], p.betas[to]);
    }
}

void grbm_anneal(const AnnealedPath *all, int64_t threads) {
    share(part, all, (all->walk.n_chains + all->walk.chunk - 1) / all->walk.chunk, threads);
}

HANDED(AnnealedPath)
