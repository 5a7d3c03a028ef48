/* Activations f32 [m, K] as sums of bf16 numbers: three have the 24 bits of an f32, so that the tile unit multiplies it
 * exactly.
 *
 * Each is what the ones before it leave, rounded to nearest even. What lies below 2^-126 is lost; infinity becomes NaN.
 * Block b of a row is s.pieces blocks, 3 b and so on (pyc_amx_rows.h).
 */
#ifndef PYC_SPLIT_ROWS_H
#define PYC_SPLIT_ROWS_H

#include "pyc_amx_rows.h"

/* Rows [row_start, row_stop) of m, of PYC_PAIRED_TOKENS or more. */
PYC_INLINE int32_t pyc_split_rows(const float *x, uint8_t *out, int m, int row_start, int row_stop,
                                  const struct pyc_shape s) {
    for (int row = row_start; row < row_stop; row++)
        pyc_round_into_tile(0, x + (ptrdiff_t)row * s.inputs, out, row, m, s);
    return 0;
}

#endif
