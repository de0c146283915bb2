// Averages of states under a machine, in float64 (`averages.c`), and how to write vectors of it.

#pragma once
#include <math.h>
#include <stdlib.h>

#include "arithmetic.h"

enum { D = L / 2 };  // lanes

typedef double vd __attribute__((vector_size(8 * D), aligned(8)));
typedef int64_t vl __attribute__((vector_size(8 * D), aligned(8)));

typedef struct {
    int64_t n, chunk, n_visible, n_hidden, h_row, weighted;
    const double *v;                  // (n, n_visible)
    const double *up, *b;             // (n_visible, h_row) and (h_row,): W/var, and what makes p = 0 beyond the last unit
    const double *mu, *inverse_var;   // (n_visible,)
    const double *log_q;              // (n,): weights are exp(-F)/q, or all 1 where not weighted
    double *free_energy;              // (n,)
    double *top;                      // by part: the logarithm of its largest weight, which its sums are in units of
    double *weights, *squares;        // by part: sums of weights and of their squares
    double *v_mean, *v2_mean;         // by part: sums (n_visible,); then means, in the place of the first part's
    double *h_mean, *vh_mean;         // by part: sums (h_row,), (n_visible, h_row); likewise
    double log_weight, share;         // logarithm of the mean weight, and effective share of the states
} Averages;

ALWAYS vd fill_d(double x) { return x - (vd){}; }
ALWAYS vd load_d(const double *p) { return *(const vd *)p; }
ALWAYS void store_d(double *p, vd x) { *(vd *)p = x; }
#if defined(__AVX2__) && !defined(__AVX512F__)
ALWAYS vd choose_d(vl mask, vd a, vd b) { return (vd)_mm256_blendv_pd((__m256d)b, (__m256d)a, (__m256d)mask); }
#else
ALWAYS vd choose_d(vl mask, vd a, vd b) { return (vd)(((vl)a & mask) | ((vl)b & ~mask)); }
#endif

void grbm_average(Averages *a, int64_t threads);
