/* The tile registers of AMX, or, with PYC_EMULATE_TILES, arrays that do the same: the tests run kernels that way where
 * the CPU has no AMX.
 *
 * Configuration, loaded once a call: tile 0 to 3 accumulators i32 [16][16], tile 4 and 5 s8 [16][32] (16 tokens of a
 * block of 32 inputs), tile 6 and 7 s8 [8][64] (the block for 16 outputs: 8 steps of 4 inputs, as a panel has them).
 */
#ifndef PYC_TILE_UNIT_H
#define PYC_TILE_UNIT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct pyc_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#define PYC_TILE_CONFIG                                                       \
    {                                                                         \
        .palette = 1, .row_bytes = {64, 64, 64, 64, 32, 32, 64, 64},          \
        .rows = {16, 16, 16, 16, 16, 16, 8, 8},                               \
    }

#if defined(PYC_EMULATE_TILES)

struct pyc_tiles {
    struct pyc_tile_config config;
    int8_t bytes[8][16][64];
};

static inline void pyc_tile_load_emulated(struct pyc_tiles *unit, int tile, const void *from, ptrdiff_t stride) {
    for (int r = 0; r < unit->config.rows[tile]; r++)
        memcpy(unit->bytes[tile][r], (const char *)from + r * stride, unit->config.row_bytes[tile]);
}

static inline void pyc_tile_store_emulated(const struct pyc_tiles *unit, int tile, void *to, ptrdiff_t stride) {
    for (int r = 0; r < unit->config.rows[tile]; r++)
        memcpy((char *)to + r * stride, unit->bytes[tile][r], unit->config.row_bytes[tile]);
}

/* c[m][n] += sum over k, i of a[m][4 k + i] * b[k][4 n + i], as TDPBSSD says */
static inline void pyc_tile_multiply_emulated(struct pyc_tiles *unit, int c, int a, int b) {
    for (int m = 0; m < unit->config.rows[c]; m++)
        for (int n = 0; n < unit->config.row_bytes[c] / 4; n++) {
            int32_t sum;
            memcpy(&sum, &unit->bytes[c][m][4 * n], 4);
            for (int k = 0; k < unit->config.row_bytes[a] / 4; k++)
                for (int i = 0; i < 4; i++) sum += unit->bytes[a][m][4 * k + i] * unit->bytes[b][k][4 * n + i];
            memcpy(&unit->bytes[c][m][4 * n], &sum, 4);
        }
}

#define PYC_TILES_BEGIN struct pyc_tiles pyc_unit = {.config = PYC_TILE_CONFIG}
#define PYC_TILES_END ((void)0)
#define PYC_TILE_LOAD(tile, from, stride) pyc_tile_load_emulated(&pyc_unit, tile, from, stride)
#define PYC_TILE_STORE(tile, to, stride) pyc_tile_store_emulated(&pyc_unit, tile, to, stride)
#define PYC_TILE_ZERO(tile) memset(pyc_unit.bytes[tile], 0, sizeof pyc_unit.bytes[tile])
#define PYC_TILE_MULTIPLY(c, a, b) pyc_tile_multiply_emulated(&pyc_unit, c, a, b)
#define PYC_HAS_TILES 1

#elif defined(__AMX_INT8__)

#include <immintrin.h>

#define PYC_TILES_BEGIN                                           \
    static const struct pyc_tile_config pyc_unit = PYC_TILE_CONFIG; \
    _tile_loadconfig(&pyc_unit)
#define PYC_TILES_END _tile_release()
#define PYC_TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define PYC_TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define PYC_TILE_ZERO(tile) _tile_zero(tile)
#define PYC_TILE_MULTIPLY(c, a, b) _tile_dpbssd(c, a, b)
#define PYC_HAS_TILES 1

#else
#define PYC_HAS_TILES 0
#endif

#endif
