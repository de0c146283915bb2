// Parameters as walks read them: numbers of units in rows, and W in panels of 64 columns, each panel's rows one after
// another.
//
// `up` is W/sigma^2 by visible units and `down` is W^T by hidden ones; with `half` both are of W/sigma, in bfloat16, a
// pair of neighbouring rows in the place of a float.

#include "arithmetic.h"

// out (rows, row): row k is row k / repeat of x (., n), or ones where x is null, and from unit n on the padding
typedef struct {
    const float *x;
    float *out;
    int64_t rows, repeat, n, row, kind;
    float padding;
} Table;

enum { AS_IT_IS, INVERSE, ROOT, INVERSE_ROOT };  // kinds: x, 1/x, sqrt x, 1/sqrt x

void grbm_lay(const Table *tables, int64_t n_tables) {
    for (const Table *t = tables; t < tables + n_tables; t++)
        for (int64_t k = 0; k < t->rows; k++) {
            const float *const x = t->x ? t->x + k / t->repeat * t->n : 0;
            float *const out = t->out + k * t->row;
            for (int64_t i = 0; i < t->n; i++) {
                const float number = x ? x[i] : 1, root = t->kind >= ROOT ? sqrtf(number) : number;
                out[i] = t->kind == INVERSE || t->kind == INVERSE_ROOT ? 1 / root : root;
            }
            for (int64_t i = t->n; i < t->row; i++) out[i] = t->padding;
        }
}

typedef struct {
    int64_t n_visible, n_hidden, half;
    const float *W;       // (n_visible, n_hidden)
    const float *unit;    // (n_visible,): sigma^2, or with `half` sigma
    float *up, *down;     // (panels of hidden, rows, PANEL) and (panels of visible, rows, PANEL); down may be null
} Packing;

static void pack_up(const Packing *p, int64_t k) {  // row k of all panels: W is read as it lies
    const int64_t N = p->n_visible, M = p->n_hidden, step = p->half ? 2 : 1, rows = (N + step - 1) / step;
    float row[2][PANEL];
    memset(row, 0, sizeof row);
    for (int64_t panel = 0; panel < panels(M); panel++) {
        const int64_t first = panel * PANEL, width = M - first < PANEL ? M - first : PANEL;
        float *out = p->up + (panel * rows + k) * PANEL;
        for (int64_t s = 0; s < step; s++) {
            const int64_t i = step * k + s;
            if (i < N)
                for (int64_t c = 0; c < width; c++) row[s][c] = p->W[i * M + first + c] / p->unit[i];
        }
        if (width < PANEL)
            for (int64_t s = 0; s < step; s++) memset(row[s] + width, 0, (PANEL - width) * sizeof(float));
        for (int64_t c = 0; c < PANEL; c += L) {
            if (p->half) store(out + c, (vf)(half_of(load(row[0] + c)) | half_of(load(row[1] + c)) << 16));
            else store(out + c, load(row[0] + c));
        }
    }
}

static void pack_down(const Packing *p, int64_t panel) {
    enum { BLOCK = 64 };  // columns of W read together, so that whole cache lines are used
    const int64_t N = p->n_visible, M = p->n_hidden, first = panel * PANEL, width = N - first < PANEL ? N - first : PANEL;
    const int64_t step = p->half ? 2 : 1, rows = (M + step - 1) / step;
    float block[BLOCK][PANEL];
    memset(block, 0, sizeof block);
    for (int64_t j = 0; j < M; j += BLOCK) {
        for (int64_t c = 0; c < width; c++) {
            const float *w = p->W + (first + c) * M + j, unit = p->half ? p->unit[first + c] : 1;
            for (int64_t k = 0; k < BLOCK; k++) block[k][c] = j + k < M ? w[k] / unit : 0;
        }
        for (int64_t k = 0; k < BLOCK && j + k < M; k += step) {
            float *out = p->down + (panel * rows + (j + k) / step) * PANEL;
            for (int64_t c = 0; c < PANEL; c += L) {
                if (p->half) store(out + c, (vf)(half_of(load(block[k] + c)) | half_of(load(block[k + 1] + c)) << 16));
                else store(out + c, load(block[k] + c));
            }
        }
    }
}

enum { TOGETHER = 16 };  // rows that a thread takes at a time

static int64_t rows_up(const Packing *p) { return p->half ? (p->n_visible + 1) / 2 : p->n_visible; }

static void part(const void *all, int64_t k) {
    const Packing *p = all;
    const int64_t n_up = (rows_up(p) + TOGETHER - 1) / TOGETHER;
    if (k >= n_up) pack_down(p, k - n_up);
    else
        for (int64_t i = k * TOGETHER; i < (k + 1) * TOGETHER && i < rows_up(p); i++) pack_up(p, i);
}

void grbm_pack(const Packing *all, int64_t threads) {
    share(part, all, (rows_up(all) + TOGETHER - 1) / TOGETHER + (all->down ? panels(all->n_visible) : 0), threads);
}

HANDED(Table) HANDED(Packing)
