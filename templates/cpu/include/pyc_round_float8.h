/* Activations f32 [m, K] -> f32 [m, K] rounded to e4m3 with a power of two for each block of 32 (MXFP8), or for each
 * row (compiler/mxfp8.py):
 *
 *   scale = 2^e, the least at or above 2^-116 with max |x| <= 448 scale; x becomes scale * v, v of e4m3, ties to even
 *
 * A block, or a row, with NaN or infinity becomes NaN. Bound by bytes: blocks are read and written once, and a row is
 * read twice, the second time out of the nearest cache.
 */
#ifndef PYC_ROUND_FLOAT8_H
#define PYC_ROUND_FLOAT8_H

#include "pyc_register_blocks.h"

struct pyc_float8_scale {
    float scale; /* NaN where a number is a fault */
    float inverse;
};

/* The largest magnitudes of the PYC_BLOCK numbers at x and of `largest`. Magnitudes of floats order as their bits do,
 * with infinity and NaN on top. */
PYC_INLINE pyc_i32v pyc_float8_largest(const float *x, pyc_i32v largest) {
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK; i += PYC_LANES)
        largest = __builtin_elementwise_max(largest, ((pyc_i32v)pyc_load_f32v(x + i)) & 0x7fffffff);
    return largest;
}

PYC_INLINE struct pyc_float8_scale pyc_float8_scale_of(const pyc_i32v largest) {
    const uint32_t bits = (uint32_t)__builtin_reduce_max(largest), is_fault = bits >= 0x7f800000u;
    /* The exponent's bits: above 448 = 1.75 * 2^8 and its multiples a sum carries into them. */
    const uint32_t sum = (bits + 0x1fffff) >> 23, exponent = (sum > 19 ? sum : 19) - 8;
    return (struct pyc_float8_scale){
        .scale = is_fault ? __builtin_nanf("") : pyc_bits_f32(exponent << 23),
        .inverse = pyc_bits_f32((254 - exponent) << 23),
    };
}

/* The PYC_BLOCK numbers at x. */
PYC_INLINE void pyc_round_float8_block(const float *x, float *y, const struct pyc_float8_scale by) {
    const pyc_f32v inverse = by.inverse, scale = by.scale;
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK; i += PYC_LANES) {
        const pyc_f32v scaled = pyc_load_f32v(x + i) * inverse;
        /* 1.5 * 2^20 times the power of two at or below |scaled|, 2^-6 at least, leaves three bits of fraction. */
        const pyc_i32v power = __builtin_elementwise_max(((pyc_i32v)scaled) & 0x7f800000, (pyc_i32v)0x3c800000);
        const pyc_f32v large = (pyc_f32v)(power + 0x0a400000);
        const pyc_f32v rounded = ((scaled + large) - large) * scale;
        memcpy(y + i, &rounded, sizeof rounded);
    }
}

PYC_INLINE void pyc_round_mxfp8_block(const float *x, float *y) {
    pyc_round_float8_block(x, y, pyc_float8_scale_of(pyc_float8_largest(x, (pyc_i32v){0})));
}

/* Rows [row_start, row_stop) of m, by blocks. */
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

/* Rows [row_start, row_stop) of m, each as a whole. */
PYC_INLINE int32_t pyc_round_fp8(const float *x, float *y, int m, int row_start, int row_stop,
                                 const struct pyc_shape s) {
    const int whole = s.inputs / PYC_BLOCK * PYC_BLOCK;
    for (int row = row_start; row < row_stop; row++) {
        const float *const from = x + (ptrdiff_t)row * s.inputs;
        float *const to = y + (ptrdiff_t)row * s.inputs;
        float last[PYC_BLOCK] = {0};
        memcpy(last, from + whole, 4 * (s.inputs - whole));
        pyc_i32v largest = pyc_float8_largest(last, (pyc_i32v){0});
        PYC_ROLLED for (int k = 0; k < whole; k += PYC_BLOCK) largest = pyc_float8_largest(from + k, largest);
        const struct pyc_float8_scale by = pyc_float8_scale_of(largest);
        PYC_ROLLED for (int k = 0; k < whole; k += PYC_BLOCK) pyc_round_float8_block(from + k, to + k, by);
        if (whole == s.inputs) continue;
        pyc_round_float8_block(last, last, by);
        memcpy(to + whole, last, 4 * (s.inputs - whole));
    }
    return 0;
}

#endif
