/* Activations f32 [m, K] -> f32 [m, K] rounded to MXFP8 by blocks of 32 (compiler/mxfp8.py):
 *
 *   scale = 2^e, the least at or above 2^-116 with max |x| <= 448 scale; x becomes scale * v, v of e4m3, ties to even
 *
 * A block with NaN or infinity becomes NaN. Bound by bytes: it reads and writes each number once.
 */
#ifndef PYC_ROUND_MXFP8_H
#define PYC_ROUND_MXFP8_H

#include "pyc_register_blocks.h"

/* The PYC_BLOCK numbers at x. */
PYC_INLINE void pyc_round_mxfp8_block(const float *x, float *y) {
    pyc_i32v largest = 0;
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK; i += PYC_LANES)
        /* Magnitudes of floats order as their bits do, with infinity and NaN on top. */
        largest = __builtin_elementwise_max(largest, ((pyc_i32v)pyc_load_f32v(x + i)) & 0x7fffffff);
    const uint32_t bits = (uint32_t)__builtin_reduce_max(largest), is_fault = bits >= 0x7f800000u;
    /* The exponent's bits: above 448 = 1.75 * 2^8 and its multiples a sum carries into them. */
    const uint32_t sum = (bits + 0x1fffff) >> 23, exponent = (sum > 19 ? sum : 19) - 8;
    const pyc_f32v inverse = pyc_bits_f32((254 - exponent) << 23);
    const pyc_f32v scale = is_fault ? __builtin_nanf("") : pyc_bits_f32(exponent << 23);
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK; i += PYC_LANES) {
        const pyc_f32v scaled = pyc_load_f32v(x + i) * inverse;
        /* 1.5 * 2^20 times the power of two at or below |scaled|, 2^-6 at least, leaves three bits of fraction. */
        const pyc_i32v power = __builtin_elementwise_max(((pyc_i32v)scaled) & 0x7f800000, (pyc_i32v)0x3c800000);
        const pyc_f32v large = (pyc_f32v)(power + 0x0a400000);
        const pyc_f32v rounded = ((scaled + large) - large) * scale;
        memcpy(y + i, &rounded, sizeof rounded);
    }
}

/* Rows [row_start, row_stop) of m. */
PYC_INLINE int32_t pyc_round_mxfp8(const float *x, float *y, int m, int row_start, int row_stop,
                                   const struct pyc_shape s) {
    const int whole = s.inputs / PYC_BLOCK * PYC_BLOCK;
    for (int row = row_start; row < row_stop; row++) {
        const float *const from = x + (ptrdiff_t)row * s.inputs;
        float *const to = y + (ptrdiff_t)row * s.inputs;
        PYC_ROLLED for (int k = 0; k < whole; k += PYC_BLOCK) pyc_round_mxfp8_block(from + k, to + k);
        if (whole == s.inputs) continue;
        float last[PYC_BLOCK] = {0};
        memcpy(last, from + whole, 4 * (s.inputs - whole));
        pyc_round_mxfp8_block(last, last);
        memcpy(to + whole, last, 4 * (s.inputs - whole));
    }
    return 0;
}

#endif
