// Whole rows of random numbers, a row for each chain: where chains start, and which of them start again.
//
// The definition is `grbm.core.randomness.Philox`.

#include "arithmetic.h"

typedef struct {
    int64_t n_chains, n, uniform;  // numbers of a row; uniform in [0, 1), or else standard normal
    uint64_t key;
    uint32_t first_chain, first_draw;
    float *out;  // (n_chains, n)
} Noise;

enum { TOGETHER = 16 };  // rows that a thread takes at a time

static void draw_row(const Noise *d, int64_t c) {
    for (int64_t j = 0; j < panels(d->n); j++) {
        const int64_t left = d->n - j * PANEL, width = left < PANEL ? left : PANEL;
        float panel[PANEL];
        for (int first = 0; first < 16; first += L) {
            vu word[4];
            vf x[4];
            philox((Place){d->key, d->first_chain + c, d->first_draw, 0}, j, first, word);
            if (d->uniform)
                for (int k = 0; k < 4; k++) x[k] = uniform(word[k]);
            else normal(word[0], word[1], x, x + 1), normal(word[2], word[3], x + 2, x + 3);
            for (int k = 0; k < 4; k++) store(panel + 16 * k + first, x[k]);
        }
        memcpy(d->out + c * d->n + j * PANEL, panel, width * sizeof(float));
    }
}

static void draw_rows(const void *all, int64_t k) {
    const Noise *d = all;
    for (int64_t c = k * TOGETHER; c < (k + 1) * TOGETHER && c < d->n_chains; c++) draw_row(d, c);
}

void grbm_draw(const Noise *all, int64_t threads) { share(draw_rows, all, (all->n_chains + TOGETHER - 1) / TOGETHER, threads); }

HANDED(Noise)
