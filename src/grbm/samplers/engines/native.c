// A walk of Markov chains on a CPU: products, random numbers and moments in one pass, for one block of chains.
//
// The definition of every line is in PyTorch: samplers/moves.py (the step), samplers/updates.py (its tails), moments.py
// (the sums), randomness.py (the draws). Each output of a product is one running sum over its inner index, so what a
// chain does depends on (key, chain, draw) alone: not on its block, its neighbours or the number of threads.
//
// Rows of v and h start on 64 bytes; columns come in panels of 64, worked on in multiples of 16 (what lies beyond the
// last unit is padding: W = 0, mu = 0, noise 0, b so low that h = 0). Vectors are the compiler's own (GCC, Clang).

#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512DQ__)
enum { L = 16, ROWS = 6, COLUMNS = 4 };  // lanes; a product's tile: 24 of 32 registers
#elif defined(__AVX__)
enum { L = 8, ROWS = 6, COLUMNS = 2 };  // 12 of 16
#else
enum { L = 4, ROWS = 6, COLUMNS = 4 };  // NEON: 24 of 32
#endif
enum { PANEL = 64, DEPTH = 512 };  // DEPTH rows of a panel stay in the second-level cache
enum { FEW = 4 };                  // visible units so few that W h is better taken unit by unit

typedef float vf __attribute__((vector_size(4 * L), aligned(4)));
typedef int32_t vi __attribute__((vector_size(4 * L), aligned(4)));
typedef uint32_t vu __attribute__((vector_size(4 * L), aligned(4)));
typedef uint16_t bits16 __attribute__((may_alias));
typedef uint64_t vw __attribute__((vector_size(4 * L), aligned(4)));

// All walks of a call: n_replicas times n_chains chains, walked `chunk` at a time. The tables have a row for each
// replica, the memory a part for each chunk.
typedef struct {
    int64_t n_replicas, n_chains, chunk, n_visible, n_hidden, n_steps;
    int64_t burn_in;      // states of steps t >= burn_in are summed; the start is step -1
    int64_t adjusted;     // Metropolis-Hastings from step adjust_from on
    int64_t adjust_from;
    int64_t mean_field;   // the drive is W p(h | v) in place of W h: Langevin
    int64_t probabilities;     // sums take p(h | v) in place of h
    int64_t draw_start;   // h ~ p(h | v) first; otherwise it is given
    int64_t keep_p;       // p has as many slots as h; otherwise one, for the last state
    int64_t v_row, h_row; // floats from one chain to the next
    int64_t ring;         // slots of states, at least 2, summed when all are full
    int64_t move_row;     // floats from one step's move to the next, 0 where all are the same
    int64_t half;         // operands (v - mu)/sigma, W/sigma and h of products in bfloat16; sum_vh is then that of (v - mu)/sigma
    uint64_t key;
    uint32_t first_chain, first_draw, replica;
    float temperature;
    const float *up, *down;  // W/var (n_visible, panels of hidden) and W^T (n_hidden, panels of visible), packed;
                             // with FEW visible units the latter is W (n_visible, row)
    const float *real;       // 1 for a visible unit, 0 for padding
    const float *inverse;    // 1/sigma, with `half`
    const float *beta, *b, *mu, *gain, *inverse_var;  // (n_replicas, 1 or row)
    const float *shrink, *noise_std;                // (steps, n_replicas, row)
    float *v, *h, *p;                // (ring, chunk, row): the start in slot 0
    float *last_v, *last_h, *last_p; // (n_replicas, n_chains, units): where the last state goes
    float *mean, *old_mean;  // (chunk, row)
    float *free_energy, *old_free_energy, *log_q, *tile;  // (chunk, 1 or PANEL)
    float *halves;                                        // (ring chunk + 1, (v_row + h_row)/2), with `half`
    float *sum_v, *sum_v2, *sum_h, *sum_vh;               // by chunk; null where nothing is summed
    float *accept;                                        // (n_steps,): sums over chains of the acceptance probability
    float *accept_chain;                                  // (n_replicas, n_chains): sums over steps of the same
} Walk;

#define ALWAYS static inline __attribute__((always_inline))

// What the compiler's vectors lack: the lower halves' product, the root, the smaller and the larger
#if defined(__AVX512F__) && defined(__AVX512DQ__)
ALWAYS vw multiply(vw a, uint32_t m) { return (vw)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(m)); }
ALWAYS vf fill(float x) { return (vf)_mm512_set1_ps(x); }
ALWAYS vf root(vf x) { return (vf)_mm512_sqrt_ps((__m512)x); }
ALWAYS vf within(vf x, float low, float high) {
    return (vf)_mm512_min_ps(_mm512_set1_ps(high), _mm512_max_ps(_mm512_set1_ps(low), (__m512)x));  // NaN stays NaN
}
ALWAYS float total(vf x) { return _mm512_reduce_add_ps((__m512)x); }
ALWAYS vf choose(vi mask, vf a, vf b) {
    return (vf)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)b, (__m512)a);
}
#else
ALWAYS vf fill(float x) { return x - (vf){}; }
ALWAYS vw multiply(vw a, uint32_t m) { return (a & 0xffffffffu) * (uint64_t)m; }
ALWAYS vf root(vf x) {
    for (int i = 0; i < L; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
}
ALWAYS float total(vf x) {
    for (int n = L / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) x[i] += x[i + n];
    return x[0];
}
ALWAYS vf choose(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
ALWAYS vf within(vf x, float low, float high) {
    x = choose(x < low, fill(low), x);
    return choose(x > high, fill(high), x);
}
#endif

// Operands in half precision: pairs of bfloat16 along the inner index of a product, each in the place of a float
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
enum { HAS_HALF = 1 };
ALWAYS vf multiply_pairs(vf sum, vf a, vf b) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(__m512i)a, (__m512bh)(__m512i)b);
}
ALWAYS vu half_of(vf x) { return (vu)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x)); }
#else
enum { HAS_HALF = 0 };
ALWAYS vf multiply_pairs(vf sum, vf a, vf b) { return sum + a * b; }  // never asked for
ALWAYS vu half_of(vf x) { return (vu)x; }
#endif

#if defined(PROFILE)  // for benchmarks/cd_step.py, on one thread
#include <time.h>
double grbm_seconds[5];
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
#define TIMED(part, call) do { const double began = now(); call; grbm_seconds[part] += now() - began; } while (0)
#else
#define TIMED(part, call) call
#endif

static inline vf load(const float *p) { return *(const vf *)p; }
static inline void store(float *p, vf x) { *(vf *)p = x; }

// ---------------------------------------------------------------- elementary functions, to about 2 ulp (after Cephes)

static inline vf exp_of(vf x) {
    x = within(x, -87.0f, 87.0f);
    const vf n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounds to the nearest integer
    const vf r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    vf y = fill(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    return (vf)((vi)y + (__builtin_convertvector(n, vi) << 23));
}

static inline vf log_of(vf x) {  // x > 0, normal
    const vi bits = (vi)x - 0x3f3504f3;  // mantissa between sqrt(1/2) and sqrt(2)
    const vf e = __builtin_convertvector(bits >> 23, vf);
    const vf r = (vf)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
    const vf r2 = r * r;
    vf y = fill(7.0376836292e-2f);
    y = y * r - 1.1514610310e-1f;
    y = y * r + 1.1676998740e-1f;
    y = y * r - 1.2420140846e-1f;
    y = y * r + 1.4249322787e-1f;
    y = y * r - 1.6668057665e-1f;
    y = y * r + 2.0000714765e-1f;
    y = y * r - 2.4999993993e-1f;
    y = y * r + 3.3333331174e-1f;
    y = y * r * r2 + e * -2.12194440e-4f - 0.5f * r2;
    return r + y + e * 0.693359375f;
}

// ---------------------------------------------------------------------------------- Philox 4x32-7 (Salmon et al. 2011)

typedef struct { uint64_t key; uint32_t chain, draw, replica; } Place;

// One half of the lanes: each 64-bit lane holds a counter in its lower half, and above it what does not matter.
ALWAYS void philox_half(Place at, vw c0, vw c1, vw word[4]) {
    vw c2 = (vw){} + at.draw, c3 = (vw){} + at.replica;
    uint32_t k0 = (uint32_t)at.key, k1 = (uint32_t)(at.key >> 32);
#pragma GCC unroll 7
    for (int round = 0; round < 7; round++) {
        const vw a = multiply(c0, 0xD2511F53u), b = multiply(c2, 0xCD9E8D57u);
        c0 = (b >> 32) ^ c1 ^ k0, c1 = b, c2 = (a >> 32) ^ c3 ^ k1, c3 = a;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}

// The words of units 16 w + lane, w = 0..3, of one panel: lanes first..first + L - 1.
ALWAYS void philox(Place at, uint32_t panel, int first, vu word[4]) {
    vw even[4], odd[4], counter, chain = (vw){} + at.chain;
    for (int i = 0; i < L / 2; i++) counter[i] = 16 * panel + first + 2 * i;
    philox_half(at, counter, chain, even);
    philox_half(at, counter + 1, chain, odd);
    for (int i = 0; i < 4; i++) word[i] = (vu)((even[i] & 0xffffffffu) | (odd[i] << 32));
}

// The same words of one unit below 16 for L chains from at.chain on.
ALWAYS void philox_of_unit(Place at, uint32_t unit, vu word[4]) {
    vw even[4], odd[4], chain, counter = (vw){} + unit;
    for (int i = 0; i < L / 2; i++) chain[i] = at.chain + 2 * i;
    philox_half(at, counter, chain, even);
    philox_half(at, counter, chain + 1, odd);
    for (int i = 0; i < 4; i++) word[i] = (vu)((even[i] & 0xffffffffu) | (odd[i] << 32));
}

static inline vf uniform(vu word) { return __builtin_convertvector((vi)(word >> 8), vf) * 0x1p-24f; }  // [0, 1)

// Two independent normal draws from two words (Box and Muller 1958); the largest is 6.7.
static inline void normal(vu radius, vu angle, vf *cosine, vf *sine) {
    const vf u = __builtin_convertvector((vi)(radius >> 1), vf) * 0x1p-31f + 0x1p-32f;  // (0, 1]
    const vf r = root(-2.0f * log_of(u));
    const vf quarters = uniform(angle) * 4.0f;
    const vf n = (quarters + 12582912.0f) - 12582912.0f;
    const vf x = (quarters - n) * 1.57079632679f, x2 = x * x;  // |x| <= pi/4
    vf s = fill(-1.9515295891e-4f);
    s = s * x2 + 8.3321608736e-3f;
    s = s * x2 - 1.6666654611e-1f;
    s = s * x2 * x + x;
    vf c = fill(2.443315711809948e-5f);
    c = c * x2 - 1.388731625493765e-3f;
    c = c * x2 + 4.166664568298827e-2f;
    c = c * x2 * x2 - 0.5f * x2 + 1.0f;
    const vi q = __builtin_convertvector(n, vi);
    const vi swap = -(q & 1), sign_s = (q & 2) << 30, sign_c = ((q + 1) & 2) << 30;
    *cosine = r * (vf)((vi)choose(swap, s, c) ^ sign_c);
    *sine = r * (vf)((vi)choose(swap, c, s) ^ sign_s);
}

// ------------------------------------------------------------------------------------------------------------- products

// c (R rows, V vectors) += a (R, K) b (K, V vectors), of floats or of pairs
ALWAYS void tile(const int R, const int V, const int half, int64_t K, const float *a, int64_t a_row, int64_t a_k, const float *b,
                 int64_t b_k, float *c, int64_t c_row) {
    vf sum[ROWS][COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int j = 0; j < V; j++) sum[r][j] = (vf){};
    for (int64_t k = 0; k < K; k++) {
        vf column[COLUMNS];
#pragma GCC unroll 8
        for (int j = 0; j < V; j++) column[j] = load(b + k * b_k + j * L);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const vf x = fill(a[r * a_row + k * a_k]);
#pragma GCC unroll 8
            for (int j = 0; j < V; j++)
                if (half) sum[r][j] = multiply_pairs(sum[r][j], x, column[j]);
                else sum[r][j] += x * column[j];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int j = 0; j < V; j++) store(c + r * c_row + j * L, load(c + r * c_row + j * L) + sum[r][j]);
}

#define CASE(R, V)                                                                \
    case 8 * R + V:                                                               \
        if (HAS_HALF && half) tile(R, V, 1, K, a, a_row, a_k, b, b_k, c, c_row);  \
        else tile(R, V, 0, K, a, a_row, a_k, b, b_k, c, c_row);                   \
        break;
#define CASES(V) CASE(1, V) CASE(2, V) CASE(3, V) CASE(4, V) CASE(5, V) CASE(6, V)

static void any_tile(int R, int V, int half, int64_t K, const float *a, int64_t a_row, int64_t a_k, const float *b,
                     int64_t b_k, float *c, int64_t c_row) {
    switch (8 * R + V) { CASES(1) CASES(2) CASES(3) CASES(4) }
}

// c (rows, width) += a (rows, K) b (K, width), width at most PANEL and a multiple of 16; K counts pairs with `half`
static void product(int half, int64_t rows, int64_t width, int64_t K, const float *a, int64_t a_row, int64_t a_k,
                    const float *b, int64_t b_k, float *c, int64_t c_row) {
    for (int64_t k = 0; k < K; k += DEPTH) {
        const int64_t depth = K - k < DEPTH ? K - k : DEPTH;
        for (int64_t j = 0; j < width; j += COLUMNS * L) {
            const int V = (int)(width - j < COLUMNS * L ? (width - j) / L : COLUMNS);
            for (int64_t r = 0; r < rows; r += ROWS)
                any_tile((int)(rows - r < ROWS ? rows - r : ROWS), V, half, depth, a + r * a_row + k * a_k, a_row, a_k,
                         b + k * b_k + j, b_k, c + r * c_row + j, c_row);
        }
    }
}

static inline int64_t width_of(int64_t n, int64_t panel) {  // columns of a panel, in multiples of 16
    const int64_t left = n - panel * PANEL;
    return left < PANEL ? (left + 15) / 16 * 16 : PANEL;
}

static inline int64_t panels(int64_t n) { return (n + PANEL - 1) / PANEL; }

// ------------------------------------------------------------------------------------------------------- parts of a step

// (x - offset) scale, unit by unit
ALWAYS vf operand(const float *x, const float *offset, const float *scale) {
    return offset ? (load(x) - load(offset)) * load(scale) : load(x);
}

// Rows of x as operands: themselves, or pairs of neighbouring units of (x - offset) scale
static const float *along_units(const Walk *w, const float *x, int64_t row, const float *offset, const float *scale) {
    if (!w->half) return x;
    for (int64_t c = 0; c < w->n_chains; c++)
        for (int64_t i = 0; i < row; i += L) {
            const vu two = half_of(operand(x + c * row + i, offset + (offset ? i : 0), scale + i));
            bits16 *out = (bits16 *)w->halves + c * row + i;
            for (int k = 0; k < L; k++) out[k] = (bits16)two[k];
        }
    return w->halves;
}

// n rows of x as pairs of neighbouring chains; the last has no partner if n is odd
static void along_chains(float *out, const float *x, int64_t n, int64_t row, const float *offset, const float *scale) {
    for (int64_t c = 0; c < n; c += 2)
        for (int64_t i = 0; i < row; i += L) {
            const float *o = offset ? offset + i : 0;
            const vu even = half_of(operand(x + c * row + i, o, scale + i));
            const vu odd = c + 1 < n ? half_of(operand(x + (c + 1) * row + i, o, scale + i)) : (vu){};
            store(out + c / 2 * row + i, (vf)(even | odd << 16));
        }
}

// mean = mu + gain (W h), the mean of p(v | h)
static void visible_mean(const Walk *w, const float *h, float *mean) {
    if (w->n_visible <= FEW) {  // a product would leave most of its columns empty
        for (int64_t c = 0; c < w->n_chains; c++)
            for (int64_t i = 0; i < w->v_row; i++) {
                vf sum = fill(0);
                for (int64_t j = 0; j < w->n_hidden && i < w->n_visible; j += L)
                    sum += load(w->down + i * w->h_row + j) * load(h + c * w->h_row + j);
                mean[c * w->v_row + i] = i < w->n_visible ? w->mu[i] + w->gain[i] * total(sum) : 0;
            }
        return;
    }
    const int64_t K = w->half ? (w->n_hidden + 1) / 2 : w->n_hidden, a_row = w->half ? w->h_row / 2 : w->h_row;
    const float *a = along_units(w, h, w->h_row, 0, 0);
    for (int64_t j = 0; j < panels(w->n_visible); j++) {
        const int64_t width = width_of(w->n_visible, j);
        memset(w->tile, 0, w->n_chains * PANEL * sizeof(float));
        product(w->half, w->n_chains, width, K, a, a_row, 1, w->down + j * K * PANEL, PANEL, w->tile, PANEL);
        for (int64_t c = 0; c < w->n_chains; c++)
            for (int64_t i = 0; i < width; i += L) {
                const int64_t unit = j * PANEL + i;
                store(mean + c * w->v_row + unit, load(w->mu + unit) + load(w->gain + unit) * load(w->tile + c * PANEL + i));
            }
    }
}

// v' = m + shrink (v - m) + noise_std xi, and the log density of xi without its constant
static void move(const Walk *w, int64_t t, uint32_t draw, const float *v, float *moved) {
    const float *shrink = w->shrink + t * w->move_row, *noise_std = w->noise_std + t * w->move_row;
    if (w->n_visible <= FEW) {  // draws for L chains at once: a panel of units would be nearly empty
        for (int64_t c = 0; c < w->n_chains; c++) w->log_q[c] = 0;
        for (int64_t i = 0; i < w->v_row; i++)
            for (int64_t c = 0; c < w->n_chains; c += L) {
                vu word[4];
                vf xi = fill(0), unused;
                if (i < w->n_visible) {
                    philox_of_unit((Place){w->key, w->first_chain + c, draw, w->replica}, i, word);
                    normal(word[0], word[1], &xi, &unused);
                }
                for (int64_t k = c; k < c + L && k < w->n_chains; k++) {
                    const int64_t place = k * w->v_row + i;
                    moved[place] = w->mean[place] + shrink[i] * (v[place] - w->mean[place]) + noise_std[i] * xi[k - c];
                    w->log_q[k] -= 0.5f * xi[k - c] * xi[k - c];
                }
            }
        return;
    }
    for (int64_t c = 0; c < w->n_chains; c++) {
        const int64_t row = c * w->v_row;
        vf squares = fill(0);
        for (int64_t j = 0; j < panels(w->n_visible); j++) {
            const int64_t width = width_of(w->n_visible, j);
            for (int first = 0; first < 16; first += L) {
                vu word[4];
                vf xi[4];
                philox((Place){w->key, w->first_chain + c, draw, w->replica}, j, first, word);
                normal(word[0], word[1], xi, xi + 1);
                if (width > 32) normal(word[2], word[3], xi + 2, xi + 3);
                for (int64_t k = 0; 16 * k < width; k++) {
                    const int64_t unit = j * PANEL + 16 * k + first;
                    const vf m = load(w->mean + row + unit), s = load(shrink + unit), e = xi[k] * load(w->real + unit);
                    store(moved + row + unit, m + s * (load(v + row + unit) - m) + load(noise_std + unit) * e);
                    squares += e * e;
                }
            }
        }
        w->log_q[c] = -0.5f * total(squares);
    }
}

// h' ~ p(h | v), its probabilities where asked for, and F(v) where asked for
static void hidden(const Walk *w, uint32_t draw, const float *v, float *h, float *p, float *free_energy) {
    if (free_energy)
        for (int64_t c = 0; c < w->n_chains; c++) {
            vf sum = fill(0);
            for (int64_t i = 0; i < w->n_visible; i += L) {
                const vf d = load(v + c * w->v_row + i) - load(w->mu + i);
                sum += d * d * load(w->inverse_var + i) * load(w->real + i);
            }
            free_energy[c] = 0.5f * total(sum);
        }
    const int64_t K = w->half ? (w->n_visible + 1) / 2 : w->n_visible, a_row = w->half ? w->v_row / 2 : w->v_row;
    const float *a = along_units(w, v, w->v_row, w->mu, w->inverse);
    for (int64_t j = 0; j < panels(w->n_hidden); j++) {
        const int64_t width = width_of(w->n_hidden, j);
        memset(w->tile, 0, w->n_chains * PANEL * sizeof(float));
        TIMED(2, product(w->half, w->n_chains, width, K, a, a_row, 1, w->up + j * K * PANEL, PANEL, w->tile, PANEL));
        for (int64_t c = 0; c < w->n_chains; c++) {
            vf softplus = fill(0), factor = fill(1);
            for (int first = 0; first < 16; first += L) {
                vu word[4];
                philox((Place){w->key, w->first_chain + c, draw, w->replica}, j, first, word);
                for (int64_t k = 0; 16 * k < width; k++) {
                    const int64_t i = 16 * k + first, unit = j * PANEL + i;
                    const vf logit = *w->beta * load(w->tile + c * PANEL + i) + load(w->b + unit);
                    const vf e = exp_of(-logit);
                    const vf u = uniform(word[k]);
                    if (h) store(h + c * w->h_row + unit, (vf)((u * e + u < 1.0f) & (vi)fill(1.0f)));
                    if (p) store(p + c * w->h_row + unit, 1.0f / (1.0f + e));
                    if (free_energy) {  // log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), one logarithm for all
                        const vi positive = logit > 0.0f;
                        softplus += choose(positive, logit, fill(0));
                        factor *= 1.0f + choose(positive, e, exp_of(logit));
                    }
                }
            }
            if (free_energy) free_energy[c] -= total(softplus + log_of(factor));
        }
    }
}

// Eq. 12 as a difference of free energies; the rejected go back to where they were
static float accept(const Walk *w, int64_t t, uint32_t draw, const float *v, const float *h, const float *p, float *v_new,
                    float *h_new, float *p_new) {
    const float *shrink = w->shrink + t * w->move_row, *noise_std = w->noise_std + t * w->move_row;
    float sum = 0;
    for (int64_t c = 0; c < w->n_chains; c++) {
        const int64_t row = c * w->v_row, size = w->v_row * sizeof(float);
        vf squares = fill(0);
        for (int64_t i = 0; i < w->n_visible; i += L) {
            const vf m = load(w->mean + row + i), s = load(shrink + i);
            vf xi = (load(v + row + i) - (m + s * (load(v_new + row + i) - m))) / load(noise_std + i);
            xi = choose(load(w->real + i) > 0.0f, xi, fill(0));
            squares += xi * xi;
        }
        float log_ratio = (w->old_free_energy[c] - w->free_energy[c]) / w->temperature;
        log_ratio += -0.5f * total(squares) - w->log_q[c];
        const float probability = log_ratio >= 0 ? 1 : log_ratio > -87 ? exp_of(fill(log_ratio))[0] : 0;  // NaN: 0
        vu word[4];
        philox((Place){w->key, w->first_chain + c, draw, w->replica}, 0, 0, word);
        sum += probability;
        w->accept_chain[c] += probability;
        if (!(uniform(word[0])[0] < probability)) {
            memcpy(v_new + row, v + row, size);
            memcpy(w->mean + row, w->old_mean + row, size);
            memcpy(h_new + c * w->h_row, h + c * w->h_row, w->h_row * sizeof(float));
            if (p) memcpy(p_new + c * w->h_row, p + c * w->h_row, w->h_row * sizeof(float));
            w->free_energy[c] = w->old_free_energy[c];
        }
    }
    return sum;
}

// Adds the states in slots first..last - 1, which lie one after another
static void add(const Walk *w, int64_t first, int64_t last) {
    const int64_t n = (last - first) * w->n_chains;
    if (n <= 0) return;
    const float *v = w->v + first * w->n_chains * w->v_row;
    const float *h = (w->probabilities ? w->p : w->h) + first * w->n_chains * w->h_row;
    for (int64_t i = 0; i < w->n_visible; i += L) {
        vf sum = fill(0), squares = fill(0);
        for (int64_t c = 0; c < n; c++) {
            const vf x = load(v + c * w->v_row + i);
            sum += x, squares += x * x;
        }
        store(w->sum_v + i, load(w->sum_v + i) + sum);
        store(w->sum_v2 + i, load(w->sum_v2 + i) + squares);
    }
    for (int64_t j = 0; j < w->n_hidden; j += L) {
        vf sum = fill(0);
        for (int64_t c = 0; c < n; c++) sum += load(h + c * w->h_row + j);
        store(w->sum_h + j, load(w->sum_h + j) + sum);
    }
    if (w->half) {
        float *const pairs_v = w->halves, *const pairs_h = pairs_v + (n + 1) / 2 * w->v_row;
        along_chains(pairs_v, v, n, w->v_row, w->mu, w->inverse);
        along_chains(pairs_h, h, n, w->h_row, 0, 0);
        v = pairs_v, h = pairs_h;
    }
    for (int64_t j = 0; j < panels(w->n_hidden); j++)
        product(w->half, w->n_visible, width_of(w->n_hidden, j), w->half ? (n + 1) / 2 : n, v, 1, w->v_row, h + j * PANEL,
                w->h_row, w->sum_vh + j * PANEL, w->h_row);
}

// ------------------------------------------------------------------------------------------------------------- the walk

static void run(Walk w) {
    const int64_t v_size = w.chunk * w.v_row, h_size = w.chunk * w.h_row;
    uint32_t draw = w.first_draw;
    if (w.sum_v) {
        memset(w.sum_v, 0, w.v_row * sizeof(float)), memset(w.sum_v2, 0, w.v_row * sizeof(float));
        memset(w.sum_h, 0, w.h_row * sizeof(float)), memset(w.sum_vh, 0, w.n_visible * w.h_row * sizeof(float));
    }
    int64_t first = w.burn_in < 0 ? 0 : 1;  // the first slot that is not summed yet
    float *const p_start = w.keep_p || w.n_steps == 0 ? w.p : 0, *const F = w.adjusted ? w.free_energy : 0;
    if (w.draw_start || w.adjusted) TIMED(3, hidden(&w, draw, w.v, w.draw_start ? w.h : 0, p_start, F));
    draw += w.draw_start != 0;
    if (w.adjusted) visible_mean(&w, w.mean_field ? w.p : w.h, w.mean);
    for (int64_t t = 0; t < w.n_steps; t++) {
        const int64_t old = t % w.ring, new = (t + 1) % w.ring;
        if (new == 0) {
            if (w.sum_v) TIMED(4, add(&w, first, w.ring));
            first = 0;
        }
        if (t < w.burn_in) first = new + 1;
        float *v = w.v + old * v_size, *h = w.h + old * h_size, *p = w.keep_p ? w.p + old * h_size : 0;
        float *v_new = w.v + new * v_size, *h_new = w.h + new * h_size, *p_new = w.keep_p ? w.p + new * h_size : 0;
        if (t == w.n_steps - 1 && !w.keep_p) p_new = w.p;
        if (!w.adjusted) TIMED(0, visible_mean(&w, w.mean_field ? p : h, w.mean));
        TIMED(1, move(&w, t, draw++, v, v_new));
        if (w.adjusted) {
            float *swap = w.mean;
            w.mean = w.old_mean, w.old_mean = swap;
            swap = w.free_energy, w.free_energy = w.old_free_energy, w.old_free_energy = swap;
        }
        TIMED(3, hidden(&w, draw++, v_new, h_new, p_new, w.adjusted ? w.free_energy : 0));
        if (w.adjusted) {
            visible_mean(&w, w.mean_field ? p_new : h_new, w.mean);
            if (t >= w.adjust_from) w.accept[t] = accept(&w, t, draw++, v, h, p, v_new, h_new, p_new);
        }
    }
    const int64_t slot = w.n_steps % w.ring;
    if (w.sum_v) TIMED(4, add(&w, first, slot + 1));
    for (int64_t c = 0; c < w.n_chains; c++) {
        memcpy(w.last_v + c * w.n_visible, w.v + slot * v_size + c * w.v_row, w.n_visible * sizeof(float));
        memcpy(w.last_h + c * w.n_hidden, w.h + slot * h_size + c * w.h_row, w.n_hidden * sizeof(float));
        memcpy(w.last_p + c * w.n_hidden, w.p + (w.keep_p ? slot * h_size : 0) + c * w.h_row, w.n_hidden * sizeof(float));
    }
}

// Walk number k of those that `all` describes
static Walk one(const Walk *all, int64_t k) {
    Walk w = *all;
    const int64_t parts = (w.n_chains + w.chunk - 1) / w.chunk, r = k / parts, first = k % parts * w.chunk;
    const int64_t slots = w.ring * w.chunk, v = w.v_row, h = w.h_row, c = w.chunk;
    if (w.n_chains - first < c) w.n_chains -= first;
    else w.n_chains = c;
    w.first_chain += first, w.replica = r;
    w.beta += r, w.b += r * h, w.mu += r * v, w.gain += r * v, w.inverse_var += r * v;
    w.shrink += r * v, w.noise_std += r * v;
    w.v += k * slots * v, w.h += k * slots * h, w.p += k * (w.keep_p ? slots : c) * h;
    w.mean += k * c * v, w.tile += k * c * PANEL, w.log_q += k * c;
    if (w.adjusted) w.old_mean += k * c * v, w.free_energy += k * c, w.old_free_energy += k * c, w.accept += k * w.n_steps;
    if (w.sum_v) w.sum_v += k * v, w.sum_v2 += k * v, w.sum_h += k * h, w.sum_vh += k * w.n_visible * h;
    if (w.half) w.halves += k * (slots + 1) * (v + h) / 2;
    const int64_t chain = r * all->n_chains + first;
    if (w.adjusted) w.accept_chain += chain;
    w.last_v += chain * w.n_visible, w.last_h += chain * w.n_hidden, w.last_p += chain * w.n_hidden;
    return w;
}

// All walks, on so many threads, which share nothing but the weights and never wait for one another. PyTorch's own
// OpenMP threads where they can be had: others would compete for the cores with those, which spin between its operations.
#if defined(_OPENMP)
void grbm_walk(const Walk *all, int64_t threads) {
    const int64_t n = all->n_replicas * ((all->n_chains + all->chunk - 1) / all->chunk);
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)threads)
    for (int64_t k = 0; k < n; k++) run(one(all, k));
}
#else
#include <pthread.h>

typedef struct {
    const Walk *all;
    int64_t n, next;
} Queue;

static void *work(void *argument) {
    Queue *queue = argument;
    for (int64_t k; (k = __atomic_fetch_add(&queue->next, 1, __ATOMIC_RELAXED)) < queue->n;) run(one(queue->all, k));
    return 0;
}

void grbm_walk(const Walk *all, int64_t threads) {
    enum { MOST = 256 };
    pthread_t thread[MOST];
    Queue queue = {all, all->n_replicas * ((all->n_chains + all->chunk - 1) / all->chunk), 0};
    int64_t started = 0;
    while (started < threads - 1 && started < queue.n - 1 && started < MOST) {
        if (pthread_create(thread + started, 0, work, &queue)) break;
        started++;
    }
    work(&queue);
    for (int64_t i = 0; i < started; i++) pthread_join(thread[i], 0);
}
#endif

int64_t grbm_size(void) { return sizeof(Walk); }
int64_t grbm_has_half(void) { return HAS_HALF; }
