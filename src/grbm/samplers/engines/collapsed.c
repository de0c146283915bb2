// Hidden units drawn one by one with v integrated out: a sweep of many chains, 64 of them at a time.
//
// The definition is samplers/collapsed.py. A block of chains is a matrix (units, 64), so that its chains are the lanes.

#include "steps.h"

typedef struct {
    int64_t n_hidden, n_blocks;
    const float *J;      // (n_hidden, n_hidden)
    const float *bar;    // (n_blocks, n_hidden, PANEL): what the log-odds must exceed, less what is the same for all h
    float *h, *field;    // likewise: the units, and J h, which is kept up to date
} Sweep;

static void block(const void *all, int64_t k) {
    const Sweep *s = all;
    const int64_t M = s->n_hidden, place = k * M * PANEL;
    float *h = s->h + place, *field = s->field + place;
    for (int64_t j = 0; j < M; j++) {
        const float *couplings = s->J + j * M;
        const vf own = fill(couplings[j]);
        vf change[PANEL / L];
        vi changed = (vi){};
        for (int64_t i = 0; i < PANEL / L; i++) {
            const int64_t at = j * PANEL + i * L;
            const vf old = load(h + at);
            const vf new = (vf)((load(field + at) - own * old > load(s->bar + place + at)) & (vi)fill(1.0f));
            change[i] = new - old;
            changed |= change[i] != 0.0f;
            store(h + at, new);
        }
        int any = 0;
        for (int i = 0; i < L; i++) any |= changed[i];
        if (!any) continue;
        for (int64_t m = 0; m < M; m++) {
            const vf coupling = fill(couplings[m]);
            for (int64_t i = 0; i < PANEL / L; i++) {
                float *at = field + m * PANEL + i * L;
                store(at, load(at) + coupling * change[i]);
            }
        }
    }
}

void grbm_sweep(const Sweep *all, int64_t threads) { share(block, all, all->n_blocks, threads); }

int64_t grbm_sweep_size(void) { return sizeof(Sweep); }
