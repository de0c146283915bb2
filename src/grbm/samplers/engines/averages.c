// Free energies of many states, and weighted means of v, v^2, h and v h' over them, in float64 and in one pass.
//
// The definition is learning/quasi_newton.py. States go in parts, whose probabilities p(h | v) stay in the cache;
// weights of a part are relative to its largest, so that nothing needs to be known of the others. The parts' sums are
// then added in their order, the same for any number of threads.

#include "averages.h"

enum { TOGETHER = 4, WIDE = 2 };  // rows and vectors of units of a tile: each number that is loaded serves all of them
enum { UNITS = 896 };             // factors of at most 2 in a product

// For x <= 0, to about 1 ulp: 2^n times the series of exp(r) to r^12, |r| <= log(2)/2; 0 below -708
ALWAYS vd exp_d(vd x) {
    const vl is_zero = x < -708.0;
    x = choose_d(is_zero, fill_d(-708.0), x);
    const vd magic = x * 1.4426950408889634 + 0x1.8p52, n = magic - 0x1.8p52;  // the integer stands in its lowest bits
    const vd r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33;
    vd y = fill_d(1.0 / 479001600);
    y = y * r + 1.0 / 39916800;
    y = y * r + 1.0 / 3628800;
    y = y * r + 1.0 / 362880;
    y = y * r + 1.0 / 40320;
    y = y * r + 1.0 / 5040;
    y = y * r + 1.0 / 720;
    y = y * r + 1.0 / 120;
    y = y * r + 1.0 / 24;
    y = y * r + 1.0 / 6;
    y = y * r + 0.5;
    y = y * r + 1.0;
    y = y * r + 1.0;
    return choose_d(is_zero, fill_d(0), (vd)((vl)y + ((vl)magic << 52)));
}

// p = sigmoid(l) and the sum of softplus(l) over the units of R rows from `first` on: max(l, 0) + log(1 + exp(-|l|))
ALWAYS void rows_of_hidden(const int R, const Averages *a, int64_t first, double *p, double *softplus) {
    vd positive[TOGETHER], factor[TOGETHER];
    for (int r = 0; r < R; r++) positive[r] = fill_d(0), factor[r] = fill_d(1), softplus[r] = 0;
    for (int64_t j = 0; j < a->h_row; j += WIDE * D) {
        vd logit[TOGETHER][WIDE];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int k = 0; k < WIDE; k++) logit[r][k] = load_d(a->b + j + k * D);
        for (int64_t i = 0; i < a->n_visible; i++) {
            const double *w = a->up + i * a->h_row + j;
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
#pragma GCC unroll 2
                for (int k = 0; k < WIDE; k++) logit[r][k] += load_d(w + k * D) * a->v[(first + r) * a->n_visible + i];
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
            for (int k = 0; k < WIDE; k++) {
                const vd l = logit[r][k];
                const vl is_on = l > 0.0;
                const vd e = exp_d(choose_d(is_on, -l, l)), whole = 1.0 + e;
                positive[r] += choose_d(is_on, l, fill_d(0));
                factor[r] *= whole;
                store_d(p + r * a->h_row + j + k * D, choose_d(is_on, fill_d(1), e) / whole);
            }
        if ((j + WIDE * D) % UNITS == 0 || j + WIDE * D >= a->h_row)
            for (int r = 0; r < R; r++) {
                double product = 1;
                for (int k = 0; k < D; k++) product *= factor[r][k];
                softplus[r] += log(product);
                factor[r] = fill_d(1);
            }
    }
    for (int r = 0; r < R; r++)
        for (int k = 0; k < D; k++) softplus[r] += positive[r][k];
}

// out (row) += weighted sum of p (rows, row), for I visible units, or for the constant 1
ALWAYS void add_products(const int I, const Averages *a, int64_t rows, const double *v, const double *p, double *out) {
    for (int64_t j = 0; j < a->h_row; j += WIDE * D) {
        vd sum[TOGETHER][WIDE];
#pragma GCC unroll 4
        for (int i = 0; i < I; i++)
#pragma GCC unroll 2
            for (int k = 0; k < WIDE; k++) sum[i][k] = fill_d(0);
        for (int64_t r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int i = 0; i < I; i++)
#pragma GCC unroll 2
                for (int k = 0; k < WIDE; k++)
                    sum[i][k] += load_d(p + r * a->h_row + j + k * D) * v[i * a->chunk + r];
#pragma GCC unroll 4
        for (int i = 0; i < I; i++)
#pragma GCC unroll 2
            for (int k = 0; k < WIDE; k++) store_d(out + i * a->h_row + j + k * D, sum[i][k]);
    }
}

static void part(const void *all, int64_t k) {
    const Averages *a = all;
    const int64_t N = a->n_visible, first = k * a->chunk, rows = a->n - first < a->chunk ? a->n - first : a->chunk;
    const size_t size = (rows * a->h_row + (N + 1) * a->chunk) * sizeof(double);
    double *p = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!p) {  // no memory: what is not a number is refused
        for (int64_t r = 0; r < rows; r++) a->free_energy[first + r] = NAN;
        a->top[k] = NAN;
        return;
    }
    double *weight = p + rows * a->h_row, *weighted_v = weight + a->chunk, softplus[TOGETHER];
    double *free_energy = a->free_energy + first, top = -INFINITY;
    for (int64_t c = 0; c < rows; c += TOGETHER) {
        const int64_t R = rows - c < TOGETHER ? rows - c : TOGETHER;
        if (R == TOGETHER) rows_of_hidden(TOGETHER, a, first + c, p + c * a->h_row, softplus);
        else
            for (int64_t r = 0; r < R; r++) rows_of_hidden(1, a, first + c + r, p + (c + r) * a->h_row, softplus + r);
        for (int64_t r = 0; r < R; r++) {
            double quadratic = 0;
            for (int64_t i = 0; i < N; i++) {
                const double z = a->v[(first + c + r) * N + i] - a->mu[i];
                quadratic += z * z * a->inverse_var[i];
            }
            free_energy[c + r] = 0.5 * quadratic - softplus[r];
            weight[c + r] = a->weighted ? -free_energy[c + r] - a->log_q[first + c + r] : 0;
            if (weight[c + r] > top) top = weight[c + r];
        }
    }
    a->top[k] = top;
    if (top == -INFINITY) top = 0;  // no weight at all
    a->weights[k] = a->squares[k] = 0;
    for (int64_t r = 0; r < rows; r++) {
        weight[r] = exp(weight[r] - top);
        a->weights[k] += weight[r], a->squares[k] += weight[r] * weight[r];
    }
    for (int64_t i = 0; i < N; i++) {
        double sum = 0, square = 0;
        for (int64_t r = 0; r < rows; r++) {
            const double v = a->v[(first + r) * N + i];
            weighted_v[i * a->chunk + r] = weight[r] * v;
            sum += weight[r] * v, square += weight[r] * v * v;
        }
        a->v_mean[k * N + i] = sum, a->v2_mean[k * N + i] = square;
    }
    add_products(1, a, rows, weight, p, a->h_mean + k * a->h_row);
    double *sum_vh = a->vh_mean + k * N * a->h_row;
    int64_t i = 0;
    for (; i + TOGETHER <= N; i += TOGETHER)
        add_products(TOGETHER, a, rows, weighted_v + i * a->chunk, p, sum_vh + i * a->h_row);
    for (; i < N; i++) add_products(1, a, rows, weighted_v + i * a->chunk, p, sum_vh + i * a->h_row);
    free(p);
}

// The first of `parts` rows of sums (size) becomes their sum, in units of factor[k]
static void add_parts(double *sums, int64_t size, int64_t parts, const double *factor) {
    for (int64_t i = 0; i < size; i++) sums[i] *= factor[0];
    for (int64_t k = 1; k < parts; k++)
        for (int64_t i = 0; i < size; i++) sums[i] += factor[k] * sums[k * size + i];
}

void grbm_average(Averages *a, int64_t threads) {
    const int64_t parts = (a->n + a->chunk - 1) / a->chunk, N = a->n_visible;
    share(part, a, parts, threads);
    double top = -INFINITY, total = 0, squares = 0;
    for (int64_t k = 0; k < parts; k++)
        if (a->top[k] > top) top = a->top[k];
    for (int64_t k = 0; k < parts; k++) {
        const double unit = exp(a->top[k] - top);  // NaN where nothing has a weight, or a part had no memory
        total += unit * a->weights[k], squares += unit * unit * a->squares[k];
    }
    a->log_weight = top + log(total / a->n), a->share = total * total / (a->n * squares);
    for (int64_t k = 0; k < parts; k++) a->top[k] = exp(a->top[k] - top) / total;
    add_parts(a->v_mean, N, parts, a->top), add_parts(a->v2_mean, N, parts, a->top);
    add_parts(a->h_mean, a->h_row, parts, a->top), add_parts(a->vh_mean, N * a->h_row, parts, a->top);
}

HANDED(Averages)
