// Arithmetic of the native code: vectors, elementary functions, random numbers, products, and threads.
//
// Each output of a product is one running sum over its inner index. Vectors are the compiler's own (GCC, Clang).

#pragma once

#include <stdint.h>
#include <math.h>
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

#define ALWAYS static inline __attribute__((always_inline))

// A struct that Python hands over: structs.py reads its fields here in the source, and asks for its size to be sure.
#define HANDED(S) int64_t grbm_size_of_##S(void) { return sizeof(S); }

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
#elif defined(__AVX2__)
ALWAYS vw multiply(vw a, uint32_t m) { return (vw)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(m)); }
ALWAYS vf fill(float x) { return (vf)_mm256_set1_ps(x); }
ALWAYS vf root(vf x) { return (vf)_mm256_sqrt_ps((__m256)x); }
ALWAYS vf within(vf x, float low, float high) {
    return (vf)_mm256_min_ps(_mm256_set1_ps(high), _mm256_max_ps(_mm256_set1_ps(low), (__m256)x));  // NaN stays NaN
}
ALWAYS float total(vf x) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
ALWAYS vf choose(vi mask, vf a, vf b) { return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask); }
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

// Operands in half precision: pairs of bfloat16 along the inner index of a product, each in the place of a float.
// With EMULATED, for tests, they and matrix units are there on any processor, slowly.
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
enum { HAS_HALF = 1 };
ALWAYS vf multiply_pairs(vf sum, vf a, vf b) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(__m512i)a, (__m512bh)(__m512i)b);
}
ALWAYS vu half_of(vf x) { return (vu)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x)); }
#else
#if defined(EMULATED)
enum { HAS_HALF = 1 };
#else
enum { HAS_HALF = 0 };  // what follows is never asked for
#endif
ALWAYS vf multiply_pairs(vf sum, vf a, vf b) {
    sum += (vf)((vu)a & 0xffff0000u) * (vf)((vu)b & 0xffff0000u);
    return sum + (vf)((vu)a << 16) * (vf)((vu)b << 16);
}
ALWAYS vu half_of(vf x) { return ((vu)x + 0x7fff + ((vu)x >> 16 & 1)) >> 16; }  // to the nearest, ties to even
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
        if (V > COLUMNS) break; /* there is none, nor is it compiled */           \
        if (HAS_HALF && half) tile(R, V, 1, K, a, a_row, a_k, b, b_k, c, c_row);  \
        else tile(R, V, 0, K, a, a_row, a_k, b, b_k, c, c_row);                   \
        break;
#define CASES(V) CASE(1, V) CASE(2, V) CASE(3, V) CASE(4, V) CASE(5, V) CASE(6, V)

static void any_tile(int R, int V, int half, int64_t K, const float *a, int64_t a_row, int64_t a_k, const float *b,
                     int64_t b_k, float *c, int64_t c_row) {
    switch (8 * R + V) { CASES(1) CASES(2) CASES(3) CASES(4) }
}

#include "tiles.h"

// c (rows, width) += a (rows, K) b (K, width), width at most PANEL and a multiple of 16; K counts pairs with `half`
static void vector_product(int half, int64_t rows, int64_t width, int64_t K, const float *a, int64_t a_row, int64_t a_k,
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

// The same; with half == IN_TILES on matrix units, as far as whole tiles go, where the pairs of a row of `a` lie together
static void product(int half, int64_t rows, int64_t width, int64_t K, const float *a, int64_t a_row, int64_t a_k,
                    const float *b, int64_t b_k, float *c, int64_t c_row) {
    if (half != IN_TILES || a_k != 1) {
        vector_product(half, rows, width, K, a, a_row, a_k, b, b_k, c, c_row);
        return;
    }
    const int64_t R = rows / SIDE * SIDE, whole = K / SIDE * SIDE;
    tiled_product(R, width, whole, a, a_row, b, b_k, c, c_row);
    vector_product(1, R, width, K - whole, a + whole, a_row, 1, b + whole * b_k, b_k, c, c_row);
    vector_product(1, rows - R, width, K, a + R * a_row, a_row, 1, b, b_k, c + R * c_row, c_row);
}

static inline int64_t width_of(int64_t n, int64_t panel) {  // columns of a panel, in multiples of 16
    const int64_t left = n - panel * PANEL;
    return left < PANEL ? (left + 15) / 16 * 16 : PANEL;
}

static inline int64_t panels(int64_t n) { return (n + PANEL - 1) / PANEL; }

// ------------------------------------------------------------------------------------------------------------- threads

// part(all, k) for k < n, on so many threads, which share nothing but what they read and never wait for one another.
// PyTorch's own OpenMP threads where they can be had: others would compete for the cores with those, which spin between
// its operations.
typedef void (*Part)(const void *all, int64_t k);
#if defined(_OPENMP)
static void share(Part part, const void *all, int64_t n, int64_t threads) {
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)threads)
    for (int64_t k = 0; k < n; k++) part(all, k);
}
#else
#include <pthread.h>

typedef struct {
    Part part;
    const void *all;
    int64_t n, next;
} Queue;

static void *work(void *argument) {
    Queue *queue = argument;
    for (int64_t k; (k = __atomic_fetch_add(&queue->next, 1, __ATOMIC_RELAXED)) < queue->n;) queue->part(queue->all, k);
    return 0;
}

static void share(Part part, const void *all, int64_t n, int64_t threads) {
    enum { MOST = 256 };
    pthread_t thread[MOST];
    Queue queue = {part, all, n, 0};
    int64_t started = 0;
    while (started < threads - 1 && started < n - 1 && started < MOST) {
        if (pthread_create(thread + started, 0, work, &queue)) break;
        started++;
    }
    work(&queue);
    for (int64_t i = 0; i < started; i++) pthread_join(thread[i], 0);
}
#endif
