// Hidden units drawn one by one with v integrated out: a sweep of many chains, 64 of them at a time.
//
// The definition is samplers/collapsed.py. A block of chains is a matrix (units, 64), so that its chains are the lanes.

#include "steps.h"

typedef struct {
    int64_t n_hidden, n_blocks;
    const float *J;      // (n_hidden, n_hidden), symmetric
    const float *bar;    // (n_blocks, n_hidden, PANEL): what the log-odds must exceed, less what is the same for all h
    float *h, *field;    // likewise: the units, and room for J h
} Sweep;

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

static void block(const void *all, int64_t k) {
    const Sweep *s = all;
    const int64_t M = s->n_hidden, place = k * M * PANEL;
    float *h = s->h + place, *field = s->field + place;
    vf change[VECTORS];
    memset(field, 0, M * PANEL * sizeof(float));
    for (int64_t j = 0; j < M; j++) {
        for (int i = 0; i < VECTORS; i++) change[i] = load(h + j * PANEL + i * L);
        couple(s, j, change, field);
    }
    for (int64_t j = 0; j < M; j++) {
        const vf own = fill(s->J[j * M + j]);
        for (int i = 0; i < VECTORS; i++) {
            const int64_t at = j * PANEL + i * L;
            const vf old = load(h + at), on = load(field + at) - own * old;
            const vf new = (vf)((on > load(s->bar + place + at)) & (vi)fill(1.0f));
            change[i] = new - old;
            store(h + at, new);
        }
        couple(s, j, change, field);
    }
}

void grbm_sweep(const Sweep *all, int64_t threads) { share(block, all, all->n_blocks, threads); }

HANDED(Sweep)
