// Hidden units drawn one by one with v integrated out: sweeps of many chains, 64 of them at a time, and annealing.
//
// The definition is samplers/collapsed.py. A block of chains is a matrix (units, 64), so that its chains are the lanes;
// it is a population of annealing.

#include "steps.h"

enum { VECTORS = PANEL / L };

// field += J_j change, for all units; nothing where no chain has changed
static void couple(const Sweep *s, int64_t j, const vf *change, float *field) {
    vi any = (vi){};
    for (int i = 0; i < VECTORS; i++) any |= change[i] != 0.0f;
    int changed = 0;
    for (int i = 0; i < L; i++) changed |= any[i];
    if (!changed) return;
    for (int64_t m = 0; m < s->n_hidden; m++) {
        const vf coupling = fill(s->J[j * s->n_hidden + m]);
        float *at = field + m * PANEL;
        for (int i = 0; i < VECTORS; i++) store(at + i * L, load(at + i * L) + coupling * change[i]);
    }
}

// Fills column c of `bar` with (logit(u) - alone)/beta: a unit is on where J h without the unit itself exceeds it
static void draw_bars(const Sweep *s, int64_t c, uint32_t chain, float *bar) {
    for (int64_t j = 0; j < panels(s->n_hidden); j++)
        for (int first = 0; first < 16; first += L) {
            vu word[4];
            philox((Place){s->key, chain, s->draw, 0}, j, first, word);
            for (int k = 0; k < 4; k++) {
                const int64_t unit = j * PANEL + 16 * k + first, left = s->n_hidden - unit;
                const vf u = uniform(word[k]);
                const vf logit = choose(u > 0.0f, log_of(u) - log_of(1.0f - u), fill(-INFINITY));
                for (int64_t i = 0; i < L && i < left; i++)
                    bar[(unit + i) * PANEL + c] = (logit[i] - s->alone[unit + i]) / s->beta;
            }
        }
}

// Numbers of the n chains of block k: their h, the field J h, and room for bars
typedef struct {
    int64_t start, n;
    float *h, *field, *bar;
} Block;

static Block begin(const Sweep *s, int64_t k) {
    const int64_t M = s->n_hidden, start = k * PANEL, n = s->n_chains - start < PANEL ? s->n_chains - start : PANEL;
    float *const h = s->room + 3 * k * M * PANEL, *const field = h + M * PANEL, *const bar = field + M * PANEL;
    vf change[VECTORS];
    memset(h, 0, 3 * M * PANEL * sizeof(float));
    for (int64_t c = 0; c < n; c++)
        for (int64_t j = 0; j < M; j++) h[j * PANEL + c] = s->h[(start + c) * M + j];
    for (int64_t j = 0; j < M; j++) {
        for (int i = 0; i < VECTORS; i++) change[i] = load(h + j * PANEL + i * L);
        couple(s, j, change, field);
    }
    return (Block){start, n, h, field, bar};
}

static void draw_units(const Sweep *s, const Block *b) {
    vf change[VECTORS];
    for (int64_t c = 0; c < b->n; c++) draw_bars(s, c, s->first_chain + b->start + c, b->bar);
    for (int64_t j = 0; j < s->n_hidden; j++) {
        const vf own = fill(s->J[j * s->n_hidden + j]);
        for (int i = 0; i < VECTORS; i++) {
            const int64_t at = j * PANEL + i * L;
            const vf old = load(b->h + at), on = load(b->field + at) - own * old;
            const vf new = (vf)((on > load(b->bar + at)) & (vi)fill(1.0f));
            change[i] = new - old;
            store(b->h + at, new);
        }
        couple(s, j, change, b->field);
    }
}

static void finish(const Sweep *s, const Block *b) {
    for (int64_t c = 0; c < b->n; c++)
        for (int64_t j = 0; j < s->n_hidden; j++)
            s->swept[(b->start + c) * s->n_hidden + j] = b->h[j * PANEL + c];
}

static void sweep(const void *all, int64_t k) {
    const Sweep *s = all;
    const Block b = begin(s, k);
    draw_units(s, &b);
    finish(s, &b);
}

// Chain c goes on from where chain which[c] is, each of them as often as its share of exp(log_weight)
static void resample(const Block *b, int64_t M, const double *log_weight, double total, double offset) {
    int64_t which[PANEL];
    double cumulative = exp(log_weight[0] - total);
    for (int64_t c = 0, i = 0; c < b->n; c++) {
        while (i < b->n - 1 && cumulative < (c + offset) / b->n) cumulative += exp(log_weight[++i] - total);
        which[c] = i;
    }
    for (float *row = b->h; row < b->h + 2 * M * PANEL; row += PANEL) {  // h, and the field behind it
        float from[PANEL];
        memcpy(from, row, sizeof from);
        for (int64_t c = 0; c < b->n; c++) row[c] = from[which[c]];
    }
}

static void population(const void *all, int64_t k) {
    const Annealing *a = all;
    Sweep s = a->sweep;
    const int64_t M = s.n_hidden, T = a->n_steps;
    const Block b = begin(&s, k);
    double log_weight[PANEL] = {0};
    a->log_ratio[k] = 0;
    for (int64_t t = 0; t < T; t++, s.alone += M) {
        double mass[PANEL] = {0}, top = -INFINITY, sum = 0, squares = 0;
        for (int64_t j = 0; j < M; j++)
            for (int c = 0; c < PANEL; c++) mass[c] += b.h[j * PANEL + c] * (a->c[j] + 0.5f * b.field[j * PANEL + c]);
        for (int64_t c = 0; c < b.n; c++) {
            log_weight[c] += (a->betas[t + 1] - a->betas[t]) * mass[c];
            if (log_weight[c] > top) top = log_weight[c];
        }
        for (int64_t c = 0; c < b.n; c++) {
            const double weight = exp(log_weight[c] - top);
            sum += weight, squares += weight * weight;
        }
        if (sum * sum < a->share * b.n * squares || t == T - 1) {
            vu word[4];
            philox((Place){s.key, s.first_chain + b.start, s.draw, 0}, 0, 0, word);
            resample(&b, M, log_weight, top + log(sum), uniform(word[0])[0]);
            a->log_ratio[k] += top + log(sum / b.n);
            memset(log_weight, 0, sizeof log_weight);
        }
        s.draw++;
        s.beta = a->betas[t + 1];
        draw_units(&s, &b);
        s.draw++;
    }
    finish(&s, &b);
}

static int64_t blocks(const Sweep *s) { return (s->n_chains + PANEL - 1) / PANEL; }

void grbm_sweep(const Sweep *all, int64_t threads) { share(sweep, all, blocks(all), threads); }

void grbm_anneal(const Annealing *all, int64_t threads) { share(population, all, blocks(&all->sweep), threads); }

HANDED(Sweep) HANDED(Annealing)
