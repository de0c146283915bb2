// A round of L-BFGS steps up the log-likelihood, or the log-posterior under a normal prior of U, with log Z from
// weighted draws, in float64 and in one call.
//
// The definition is `ascended` in learning/quasi_newton.py. A machine is a vector of natural parameters
// (learning/natural.py): U = W/var, b, mu/var, log 1/var, one after the other.

#include <string.h>

#include "averages.h"

typedef struct {
    int64_t n_visible, n_hidden, h_row, n_steps, halvings, remembered;
    int64_t known, made;                  // pairs of steps and falls, of earlier rounds and of this one; steps of it
    double highest, first;                // of log 1/var; length of a step without pairs
    double prior;                         // precision of the prior of U, for each row
    double least, largest, enough;        // share of the draws; free energy; part of what the slope promises
    Averages rows, draws;                 // what the log-likelihood is of, and where log Z is from
    double *up, *b, *mu, *inverse_var;    // that they read of the machine: written anew for each height
    double *theta, *gradient;             // (P,): where the round begins; where it ends, and the gradient there
    double *there, *slope, *uphill;       // (P,): a step's end, the gradient there, and the direction
    double *steps, *falls, *along;        // (known + n_steps, P): pairs; (known + n_steps,)
    double began, value, share;           // what is climbed, at the beginning and at the end; share of the draws there
} Climb;

ALWAYS double inner(const double *x, const double *y, int64_t n) {
    vd sum = fill_d(0);
    double rest = 0;
    int64_t i = 0;
    for (; i + D <= n; i += D) sum += load_d(x + i) * load_d(y + i);
    for (; i < n; i++) rest += x[i] * y[i];
    for (int k = 0; k < D; k++) rest += sum[k];
    return rest;
}

ALWAYS void add(double *restrict x, double factor, const double *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += factor * y[i];
}

static int64_t size_of(const Climb *c) { return c->n_visible * c->n_hidden + c->n_hidden + 2 * c->n_visible; }

static void lay(const Climb *c, const double *theta) {
    const int64_t N = c->n_visible, M = c->n_hidden;
    const double *b = theta + N * M, *eta = b + M, *log_precision = eta + N;
    for (int64_t i = 0; i < N; i++) {
        memcpy(c->up + i * c->h_row, theta + i * M, M * sizeof(double));
        c->inverse_var[i] = exp(log_precision[i]), c->mu[i] = eta[i] / c->inverse_var[i];
    }
    memcpy(c->b, b, M * sizeof(double));
}

// Sum of free energies; NaN where one is too large to keep its digits, or is NaN
static double sum_of_energies(const Averages *a, double largest) {
    double sum = 0;
    for (int64_t r = 0; r < a->n; r++) sum += fabs(a->free_energy[r]) < largest ? a->free_energy[r] : NAN;
    return sum;
}

// The log-likelihood at theta less the penalty of the prior, its gradient, and the share of the draws
static double height(Climb *c, const double *theta, double *gradient, double *share, int64_t threads) {
    const int64_t N = c->n_visible, M = c->n_hidden;
    lay(c, theta);
    grbm_average(&c->rows, threads), grbm_average(&c->draws, threads);
    const double of_rows = sum_of_energies(&c->rows, c->largest), of_draws = sum_of_energies(&c->draws, c->largest);
    *share = 0;
    memset(gradient, 0, size_of(c) * sizeof(double));
    if (isnan(of_rows + of_draws)) return -INFINITY;
    *share = c->draws.share;
    double *by_b = gradient + N * M, *by_eta = by_b + M, *by_log_precision = by_eta + N;
    for (int64_t i = 0; i < N; i++) {
        const double *at_rows = c->rows.vh_mean + i * c->h_row, *at_draws = c->draws.vh_mean + i * c->h_row;
        for (int64_t j = 0; j < M; j++) gradient[i * M + j] = at_rows[j] - at_draws[j];
        by_eta[i] = c->rows.v_mean[i] - c->draws.v_mean[i];
        by_log_precision[i] = -0.5 * (c->rows.v2_mean[i] - c->draws.v2_mean[i]) * c->inverse_var[i];
    }
    for (int64_t j = 0; j < M; j++) by_b[j] = c->rows.h_mean[j] - c->draws.h_mean[j];
    add(gradient, -c->prior, theta, N * M);
    return -of_rows / c->rows.n - c->draws.log_weight - 0.5 * c->prior * inner(theta, theta, N * M);
}

// The gradient times an inverse Hessian from the last pairs (Nocedal & Wright 2006, Algorithm 7.4)
static void direct(const Climb *c) {
    const int64_t P = size_of(c), first = c->known > c->remembered ? c->known - c->remembered : 0;
    double *x = c->uphill;
    memcpy(x, c->gradient, P * sizeof(double));
    if (!c->known) {
        const double length = sqrt(inner(x, x, P)), factor = c->first / (length > 1 ? length : 1);
        for (int64_t i = 0; i < P; i++) x[i] *= factor;
        return;
    }
    for (int64_t k = c->known - 1; k >= first; k--) {
        const double *step = c->steps + k * P, *fall = c->falls + k * P;
        c->along[k] = inner(step, x, P) / inner(step, fall, P);
        add(x, -c->along[k], fall, P);
    }
    const double *step = c->steps + (c->known - 1) * P, *fall = c->falls + (c->known - 1) * P;
    const double width = inner(step, fall, P) / inner(fall, fall, P);
    for (int64_t i = 0; i < P; i++) x[i] *= width;
    for (int64_t k = first; k < c->known; k++) {
        const double *s = c->steps + k * P, *y = c->falls + k * P;
        add(x, c->along[k] - inner(y, x, P) / inner(s, y, P), s, P);
    }
}

// A step along the direction, of length 2^-k; variances stay at their floor or above
static void go(const Climb *c, int64_t k) {
    const int64_t P = size_of(c);
    const double length = ldexp(1, -(int)k);
    for (int64_t i = 0; i < P; i++) c->there[i] = c->theta[i] + length * c->uphill[i];
    for (int64_t i = P - c->n_visible; i < P; i++)
        if (c->there[i] > c->highest) c->there[i] = c->highest;
}

void grbm_climb(Climb *c, int64_t threads) {
    const int64_t P = size_of(c);
    for (int64_t i = P - c->n_visible; i < P; i++)
        if (c->theta[i] > c->highest) c->theta[i] = c->highest;
    c->began = c->value = height(c, c->theta, c->gradient, &c->share, threads);
    int64_t longest = 0;
    for (c->made = 0; c->made < c->n_steps; c->made++) {
        direct(c);
        if (!(inner(c->gradient, c->uphill, P) > 0)) return;
        double *step = c->steps + c->known * P, *fall = c->falls + c->known * P, value, share;
        int64_t k = longest;
        for (; k < c->halvings; k++) {
            go(c, k);
            for (int64_t i = 0; i < P; i++) step[i] = c->there[i] - c->theta[i];
            value = height(c, c->there, c->slope, &share, threads);
            if (share >= c->least && value >= c->value + c->enough * inner(c->gradient, step, P)) break;
        }
        if (k == c->halvings) return;
        longest = k > 2 ? k - 2 : 0;
        for (int64_t i = 0; i < P; i++) fall[i] = c->gradient[i] - c->slope[i];
        const double lengths = sqrt(inner(step, step, P) * inner(fall, fall, P));
        if (inner(step, fall, P) > 1e-8 * lengths) c->known++;
        memcpy(c->theta, c->there, P * sizeof(double)), memcpy(c->gradient, c->slope, P * sizeof(double));
        c->value = value, c->share = share;
    }
}

HANDED(Climb)
