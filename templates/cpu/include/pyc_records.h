/* Records of many tokens, in the order in which products read them. Where a library folds (pyc_linear_folded.h) and a batch
 * has PYC_TILED_TOKENS or more, every 8 tokens from the first on share the place of their 8 records:
 *
 *   block after block: values i8 [8][32] | starts i32 [8] | powers f32 [8]
 *
 * so that a tile of a product reads one stream. A start is -128 times the sum of the values, a power the exponent of the
 * block's scale; NaN in the first block marks a row with a fault. The tokens that are left have records of their own.
 */
#ifndef PYC_RECORDS_H
#define PYC_RECORDS_H

#include "pyc_amx.h"
#include "pyc_tiles.h"

#if defined(__AVX512VNNI__) && !PYC_HAS_TILES
#define PYC_FOLDS 1
#else
#define PYC_FOLDS 0
#endif

struct pyc_tile_block {
    int8_t values[PYC_RECORD_TOKENS][PYC_BLOCK];
    int32_t start[PYC_RECORD_TOKENS];
    float power[PYC_RECORD_TOKENS];
};

/* How many tokens of a batch, the first ones, lie in tiles. */
PYC_INLINE int pyc_tiled_tokens(int m) {
    return PYC_FOLDS && m >= PYC_TILED_TOKENS ? m / PYC_RECORD_TOKENS * PYC_RECORD_TOKENS : 0;
}

/* The blocks of the tile that holds `token`. */
PYC_INLINE struct pyc_tile_block *pyc_tile_of(const uint8_t *records, int token, const struct pyc_shape s) {
    return (struct pyc_tile_block *)(records + (ptrdiff_t)(token / PYC_RECORD_TOKENS) * PYC_RECORD_TOKENS * s.row_bytes);
}

/* The scale of a block, a power of two or NaN, and its start in a binary record, for token t of the tile. */
PYC_INLINE void pyc_place_factors(struct pyc_tile_block *block, int t, float scale, int32_t start) {
    const int32_t bits = pyc_load_i32(&scale);
    block->start[t] = 16 * start;
    block->power[t] = bits >= 0x7f800000 ? scale : (float)((bits >> 23) - 127);
}

#endif
