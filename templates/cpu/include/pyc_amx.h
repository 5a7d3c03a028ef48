/* The tile registers of AMX, or, with PYC_EMULATE_TILES, arrays that do the same: the tests run kernels that way where
 * the CPU has no AMX.
 *
 * A tile is up to 16 rows of 64 bytes. Tiles 0 to 3 are accumulators f32 [16][16], 4 and 5 left operands, 6 and 7 right
 * ones. The configuration is loaded once a call, and again where accumulators and left operands have fewer rows.
 */
#ifndef PYC_AMX_H
#define PYC_AMX_H

#include "pyc_vectors.h"

#define PYC_TILE_ROWS 16
#define PYC_TILE_BYTES (PYC_TILE_ROWS * 64)

struct pyc_tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* `rows`: of accumulators and left operands. */
PYC_INLINE struct pyc_tile_config pyc_tile_config(const int rows) {
    struct pyc_tile_config config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = (uint8_t)(tile < 6 ? rows : PYC_TILE_ROWS);
    }
    return config;
}

#if defined(PYC_EMULATE_TILES)

struct pyc_tiles {
    struct pyc_tile_config config;
    uint8_t bytes[8][PYC_TILE_ROWS][64];
};

static _Thread_local struct pyc_tiles pyc_tile_unit;

static inline void pyc_tile_load_emulated(struct pyc_tiles *unit, int tile, const void *from, ptrdiff_t stride) {
    for (int r = 0; r < unit->config.rows[tile]; r++) memcpy(unit->bytes[tile][r], (const char *)from + r * stride, 64);
}

static inline void pyc_tile_store_emulated(const struct pyc_tiles *unit, int tile, void *to, ptrdiff_t stride) {
    for (int r = 0; r < unit->config.rows[tile]; r++) memcpy((char *)to + r * stride, unit->bytes[tile][r], 64);
}

/* c[m][n] += sum over k, i of a[m][2 k + i] * b[k][2 n + i], bf16, as TDPBF16PS says */
static inline void pyc_tile_pairs_emulated(struct pyc_tiles *unit, int c, int a, int b) {
    for (int m = 0; m < unit->config.rows[c]; m++) {
        float sums[16];
        memcpy(sums, unit->bytes[c][m], sizeof sums);
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 16; n++)
                for (int i = 0; i < 2; i++) {
                    const float left = pyc_bits_f32((uint32_t)pyc_load_u16(unit->bytes[a][m] + 4 * k + 2 * i) << 16);
                    sums[n] += left * pyc_bits_f32((uint32_t)pyc_load_u16(unit->bytes[b][k] + 4 * n + 2 * i) << 16);
                }
        memcpy(unit->bytes[c][m], sums, sizeof sums);
    }
}

#define PYC_TILES_BEGIN(rows) (pyc_tile_unit.config = pyc_tile_config(rows))
#define PYC_TILES_END ((void)0)
#define PYC_TILE_LOAD(tile, from, stride) pyc_tile_load_emulated(&pyc_tile_unit, tile, from, stride)
#define PYC_TILE_STREAM PYC_TILE_LOAD
#define PYC_TILE_STORE(tile, to, stride) pyc_tile_store_emulated(&pyc_tile_unit, tile, to, stride)
#define PYC_TILE_ZERO(tile) memset(pyc_tile_unit.bytes[tile], 0, sizeof pyc_tile_unit.bytes[tile])
#define PYC_TILE_PAIRS(c, a, b) pyc_tile_pairs_emulated(&pyc_tile_unit, c, a, b)
#define PYC_HAS_TILES 1

#elif defined(__AMX_BF16__)

#define PYC_TILES_BEGIN(rows)                                            \
    do {                                                                 \
        const struct pyc_tile_config pyc_config = pyc_tile_config(rows); \
        __builtin_ia32_tile_loadconfig(&pyc_config);                     \
    } while (0)
#define PYC_TILES_END __builtin_ia32_tilerelease()
#define PYC_TILE_LOAD(tile, from, stride) __builtin_ia32_tileloadd64(tile, from, (size_t)(stride))
/* Leaves what is in the nearest cache. */
#define PYC_TILE_STREAM(tile, from, stride) __builtin_ia32_tileloaddt164(tile, from, (size_t)(stride))
#define PYC_TILE_STORE(tile, to, stride) __builtin_ia32_tilestored64(tile, to, (size_t)(stride))
#define PYC_TILE_ZERO(tile) __builtin_ia32_tilezero(tile)
#define PYC_TILE_PAIRS(c, a, b) __builtin_ia32_tdpbf16ps(c, a, b)
#define PYC_HAS_TILES 1

#else
#define PYC_TILES_END ((void)0)
#define PYC_HAS_TILES 0
#endif

#endif
