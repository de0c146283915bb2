// Products on a processor's matrix units (AMX): tiles of 16 x 16 sums, from 16 x 16 pairs of bfloat16 on either side.
//
// The system must have allowed them (tiles_allowed). Each product gives the tiles of its thread their shape, which costs
// it nothing that can be measured: without one a single instruction ends the process.

#pragma once

enum { SIDE = 16, IN_TILES = 2 };  // of a tile; the value of `half` that asks for them

#if defined(EMULATED)
enum { HAS_TILES = 1 };
static _Thread_local float emulated[8][SIDE][SIDE];
static int tiles_allowed(void) { return 1; }
static void tiles_begin(void) {}
static void tiles_end(void) {}
static void tile_load(int t, const float *x, int64_t row) {
    for (int r = 0; r < SIDE; r++) memcpy(emulated[t][r], x + r * row, sizeof emulated[t][r]);
}
static void tile_store(int t, float *x, int64_t row) {
    for (int r = 0; r < SIDE; r++) memcpy(x + r * row, emulated[t][r], sizeof emulated[t][r]);
}
static void tile_multiply(int c, int a, int b) {
    for (int r = 0; r < SIDE; r++)
        for (int k = 0; k < SIDE; k++)
            for (int j = 0; j < SIDE; j += L) {
                const vf pairs = load(emulated[b][k] + j), x = fill(emulated[a][r][k]);
                store(emulated[c][r] + j, multiply_pairs(load(emulated[c][r] + j), x, pairs));
            }
}
#elif defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__AVX512BF16__) && defined(__linux__)
// In assembly: of what these instructions read and write in memory, the intrinsics of GCC 12 tell the compiler too little.
#include <sys/syscall.h>
#include <unistd.h>
enum { HAS_TILES = 1 };
static int tiles_allowed(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}
static void tiles_begin(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int t = 0; t < 8; t++) shape.bytes[t] = SIDE * sizeof(float), shape.rows[t] = SIDE;
    __asm__ volatile("ldtilecfg %0" ::"m"(shape));
}
static void tiles_end(void) { __asm__ volatile("tilerelease" ::: "memory"); }
#define tile_load(t, x, row) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(x), "r"((row) * (int64_t)sizeof(float)) : "memory")
#define tile_store(t, x, row) \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(x), "r"((row) * (int64_t)sizeof(float)) : "memory")
#define tile_multiply(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
#else
enum { HAS_TILES = 0 };
static int tiles_allowed(void) { return 0; }
#endif

// c (rows, width) += a (rows, K pairs) b (K pairs, width), all multiples of SIDE: four sums at a time, which share
// what is loaded
static void tiled_product(int64_t rows, int64_t width, int64_t K, const float *a, int64_t a_row, const float *b,
                          int64_t b_k, float *c, int64_t c_row) {
#if defined(tile_multiply) || defined(EMULATED)
    tiles_begin();
    for (int64_t k = 0; k < K; k += DEPTH) {
        const int64_t end = K - k < DEPTH ? K : k + DEPTH;
        for (int64_t j = 0; j < width; j += 2 * SIDE)
            for (int64_t r = 0; r < rows; r += 2 * SIDE) {
                const int right = j + SIDE < width, below = r + SIDE < rows;
                float *const sum = c + r * c_row + j;
                tile_load(0, sum, c_row);
                if (right) tile_load(1, sum + SIDE, c_row);
                if (below) tile_load(2, sum + SIDE * c_row, c_row);
                if (right && below) tile_load(3, sum + SIDE * c_row + SIDE, c_row);
                for (int64_t i = k; i < end; i += SIDE) {
                    tile_load(4, a + r * a_row + i, a_row);
                    tile_load(6, b + i * b_k + j, b_k);
                    tile_multiply(0, 4, 6);
                    if (right) {
                        tile_load(7, b + i * b_k + j + SIDE, b_k);
                        tile_multiply(1, 4, 7);
                    }
                    if (below) {
                        tile_load(5, a + (r + SIDE) * a_row + i, a_row);
                        tile_multiply(2, 5, 6);
                        if (right) tile_multiply(3, 5, 7);
                    }
                }
                tile_store(0, sum, c_row);
                if (right) tile_store(1, sum + SIDE, c_row);
                if (below) tile_store(2, sum + SIDE * c_row, c_row);
                if (right && below) tile_store(3, sum + SIDE * c_row + SIDE, c_row);
            }
    }
    tiles_end();
#else
    (void)rows, (void)width, (void)K, (void)a, (void)a_row, (void)b, (void)b_k, (void)c, (void)c_row;  // never asked for
#endif
}
