// Hidden units drawn one by one with v integrated out: a sweep of many chains, 64 of them at a time.
//
// The definition is samplers/collapsed.py. A block of chains is a matrix (units, 64), so that its chains are the lanes.

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

static void block(const void *all, int64_t k) {
    const Sweep *s = all;
    const int64_t M = s->n_hidden, start = k * PANEL, n = s->n_chains - start < PANEL ? s->n_chains - start : PANEL;
    float *const h = s->room + 3 * k * M * PANEL, *const field = h + M * PANEL, *const bar = field + M * PANEL;
    vf change[VECTORS];
    memset(h, 0, 3 * M * PANEL * sizeof(float));
    for (int64_t c = 0; c < n; c++) {
        for (int64_t j = 0; j < M; j++) h[j * PANEL + c] = s->h[(start + c) * M + j];
        draw_bars(s, c, s->first_chain + start + c, bar);
    }
    for (int64_t j = 0; j < M; j++) {
        for (int i = 0; i < VECTORS; i++) change[i] = load(h + j * PANEL + i * L);
        couple(s, j, change, field);
    }
    for (int64_t j = 0; j < M; j++) {
        const vf own = fill(s->J[j * M + j]);
        for (int i = 0; i < VECTORS; i++) {
            const int64_t at = j * PANEL + i * L;
            const vf old = load(h + at), on = load(field + at) - own * old;
            const vf new = (vf)((on > load(bar + at)) & (vi)fill(1.0f));
            change[i] = new - old;
            store(h + at, new);
        }
        couple(s, j, change, field);
    }
    for (int64_t c = 0; c < n; c++)
        for (int64_t j = 0; j < M; j++) s->swept[(start + c) * M + j] = h[j * PANEL + c];
}

void grbm_sweep(const Sweep *all, int64_t threads) { share(block, all, (all->n_chains + PANEL - 1) / PANEL, threads); }

HANDED(Sweep)
