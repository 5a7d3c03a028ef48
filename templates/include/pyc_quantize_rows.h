/* Activations f32 [m, K] -> records: scales f32 [blocks] | sums i32 [blocks] | values i8 [32 * blocks].
 *
 *   scale = max |x| / 127 over a block of 32 inputs, q = round to nearest even (x * (127 / max |x|)), sum = sum q
 *
 * A block without a magnitude of at least 1e-35 becomes zero (127 / max |x| would overflow); one that holds NaN
 * or infinity gets the scale NaN and zeros, so that the fault shows in the result. Padding is zero. Adding
 * 1.5 * 2^23 rounds to nearest even on every CPU alike: the sum's low bits are the integer.
 */
#ifndef PYC_QUANTIZE_ROWS_H
#define PYC_QUANTIZE_ROWS_H

#include "pyc_tiles.h"

#define PYC_BLOCK_VECTORS (PYC_BLOCK / PYC_LANES)

PYC_INLINE void pyc_quantize_block(const float *x, float *scale, int32_t *sum, int8_t *values) {
    pyc_f32v v[PYC_BLOCK_VECTORS];
    pyc_i32v largest = 0, total = 0;
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++) {
        v[i] = pyc_load_f32v(x + i * PYC_LANES);
        /* Magnitudes of floats order as their bits do, with infinity and NaN on top. */
        largest = __builtin_elementwise_max(largest, ((pyc_i32v)v[i]) & 0x7fffffff);
    }
    const uint32_t bits = (uint32_t)__builtin_reduce_max(largest);
    const int finite = bits < 0x7f800000u;
    const float magnitude = pyc_bits_f32(bits);
    const float inverse = finite && magnitude >= 1e-35f ? 127.0f / magnitude : 0.0f;
    *scale = !finite ? __builtin_nanf("") : inverse == 0.0f ? 0.0f : magnitude / 127.0f;
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++) {
        const pyc_f32v shifted = v[i] * (pyc_f32v)inverse + 0x1.8p23f;
        const pyc_i32v q = finite ? ((pyc_i32v)shifted) - 0x4b400000 : (pyc_i32v)0;
        const pyc_i8v bytes = __builtin_convertvector(q, pyc_i8v);
        memcpy(values + i * PYC_LANES, &bytes, sizeof bytes);
        total += q;
    }
    *sum = __builtin_reduce_add(total);
}

PYC_INLINE int32_t pyc_quantize_rows(const float *x, uint8_t *out, int row_start, int row_stop,
                                     const struct pyc_shape s) {
    const int whole = s.inputs / PYC_BLOCK;
    for (int row = row_start; row < row_stop; row++) {
        const float *from = x + (ptrdiff_t)row * s.inputs;
        uint8_t *record = out + (ptrdiff_t)row * s.row_bytes;
        float *scales = (float *)record;
        int32_t *sums = (int32_t *)(record + s.row_sums);
        int8_t *values = (int8_t *)(record + s.row_data);
        memset(scales + s.blocks, 0, s.row_sums - 4 * s.blocks);
        memset(sums + s.blocks, 0, s.row_data - s.row_sums - 4 * s.blocks);
        memset(values + s.blocks * PYC_BLOCK, 0, s.row_bytes - s.row_data - s.blocks * PYC_BLOCK);
        PYC_ROLLED for (int b = 0; b < whole; b++)
            pyc_quantize_block(from + b * PYC_BLOCK, scales + b, sums + b, values + b * PYC_BLOCK);
        if (whole < s.blocks) {
            float last[PYC_BLOCK] = {0};
            memcpy(last, from + whole * PYC_BLOCK, 4 * (s.inputs - whole * PYC_BLOCK));
            pyc_quantize_block(last, scales + whole, sums + whole, values + whole * PYC_BLOCK);
        }
    }
    return 0;
}

#endif
