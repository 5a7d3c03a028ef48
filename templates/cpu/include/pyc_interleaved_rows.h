/* Quantized rows of many tokens, in the order in which matmuls read them. Where a library folds (pyc_linear_folded.h)
 * and a batch has PYC_INTERLEAVED_LEAST or more, every 8 tokens from the first on share the place of their 8 rows:
 *
 *   block after block: values i8 [8][32] | zero-point corrections i32 [8] | powers f32 [8]
 *
 * so that a register block of a matmul reads one stream. A correction is -128 times the sum of the values, a power the
 * exponent of the block's scale; NaN in the first block marks a row with a fault. The tokens that are left have rows of
 * their own.
 */
#ifndef PYC_INTERLEAVED_ROWS_H
#define PYC_INTERLEAVED_ROWS_H

#include "pyc_amx.h"
#include "pyc_register_blocks.h"

#if defined(__AVX512VNNI__) && !PYC_HAS_TILES
#define PYC_FOLDS 1
#else
#define PYC_FOLDS 0
#endif

struct pyc_interleaved_block {
    int8_t values[PYC_INTERLEAVED_TOKENS][PYC_BLOCK];
    int32_t correction[PYC_INTERLEAVED_TOKENS];
    float power[PYC_INTERLEAVED_TOKENS];
};

/* How many tokens of a batch, the first ones, are interleaved. */
PYC_INLINE int pyc_interleaved_tokens(int m) {
    return PYC_FOLDS && m >= PYC_INTERLEAVED_LEAST ? m / PYC_INTERLEAVED_TOKENS * PYC_INTERLEAVED_TOKENS : 0;
}

/* The blocks of the group that holds `token`. */
PYC_INLINE struct pyc_interleaved_block *pyc_interleaved_at(const uint8_t *quantized, int token,
                                                            const struct pyc_shape s) {
    const ptrdiff_t first = (ptrdiff_t)(token / PYC_INTERLEAVED_TOKENS) * PYC_INTERLEAVED_TOKENS;
    return (struct pyc_interleaved_block *)(quantized + first * s.row_bytes);
}

/* The scale of a block, a power of two or NaN, and its zero-point correction, for token t of the group. */
PYC_INLINE void pyc_place_factors(struct pyc_interleaved_block *block, int t, float scale, int32_t correction) {
    const int32_t bits = pyc_load_i32(&scale);
    block->correction[t] = 16 * correction;
    block->power[t] = bits >= 0x7f800000 ? scale : (float)((bits >> 23) - 127);
}

#endif
