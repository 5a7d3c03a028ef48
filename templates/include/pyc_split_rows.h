/* Activations f32 [m, K] as sums of bf16 numbers: three have the 24 bits of an f32, so that the tile unit multiplies it exactly.
 *
 * Each is what the ones before it leave, rounded to nearest even. What lies below 2^-126 is lost; infinity becomes NaN. Block b
 * of a record is s.pieces blocks, 3 b and so on (pyc_amx_records.h).
 */
#ifndef PYC_SPLIT_ROWS_H
#define PYC_SPLIT_ROWS_H

#include "pyc_amx_records.h"

/* f32 [32] into one block after another, `apart` bytes from each other. */
PYC_INLINE void pyc_split_block(const float *x, uint8_t *to, ptrdiff_t apart, const int pieces) {
    float left[PYC_BLOCK] __attribute__((aligned(64)));
    memcpy(left, x, sizeof left);
    PYC_UNROLL for (int piece = 0; piece < pieces; piece++, to += apart) {
        pyc_round_block(0, left, to);
        PYC_UNROLL for (int i = 0; i < PYC_BLOCK; i += PYC_LANES) {
            const pyc_u32v rounded = __builtin_convertvector(pyc_load_u16v(to + 2 * i), pyc_u32v) << 16;
            const pyc_f32v rest = pyc_load_f32v(left + i) - (pyc_f32v)rounded;
            memcpy(left + i, &rest, sizeof rest);
        }
    }
}

/* Rows [row_start, row_stop) of m, of PYC_PAIRED_TOKENS or more. */
PYC_INLINE int32_t pyc_split_rows(const float *x, uint8_t *out, int m, int row_start, int row_stop, const struct pyc_shape s) {
    const int whole = s.inputs / PYC_BLOCK, blocks = s.blocks * s.pieces;
    for (int row = row_start; row < row_stop; row++) {
        const float *from = x + (ptrdiff_t)row * s.inputs;
        const ptrdiff_t apart = (ptrdiff_t)pyc_paired_rows(row, m) * 64;
        PYC_ROLLED for (int b = 0; b < whole; b++)
            pyc_split_block(from + b * PYC_BLOCK, out + pyc_record_at(row, m, blocks, b * s.pieces), apart, s.pieces);
        if (whole == s.blocks) continue;
        float last[PYC_BLOCK] = {0};
        memcpy(last, from + whole * PYC_BLOCK, 4 * (s.inputs - whole * PYC_BLOCK));
        pyc_split_block(last, out + pyc_record_at(row, m, blocks, whole * s.pieces), apart, s.pieces);
    }
    return 0;
}

#endif
