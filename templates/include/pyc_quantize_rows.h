/* Activations f32 [m, K] -> records: scales f32 [blocks] | starts i32 [blocks] | values i8 [32 * blocks].
 *
 *   exact:  scale = max |x| / 127 over a block of 32 inputs, q = round to nearest even (x * (127 / max |x|))
 *   binary: scale = 2^e, the least with max |x| / 127 <= 2^e, q = round to nearest even (x / 2^e)
 *   start = -zero * sum q, what the dot product of q with codes + zero starts with; zero is 128 (exact) or 8 (binary)
 *
 * A power of two multiplies a weight's scale by an integer addition to its exponent, which no port of the
 * multipliers has to do: products of int4 gain a tenth. It costs half a bit of the eight, in the mean.
 *
 * exact: a block without a magnitude of at least 1e-35 becomes zero (127 / max |x| would overflow); one that holds
 * NaN or infinity gets the scale NaN and zeros, so that the fault shows in the result.
 * binary: products of scales must stay normal numbers, so blocks below 1e-28 become zero (with the scale 1), and one that
 * holds 1e30 or more, infinity or NaN is a fault: zeros, the scale 1, and NaN for the scale of the row's first block.
 * Padding is zero. Adding 1.5 * 2^23 rounds to nearest even on every CPU alike: the sum's low bits are the integer.
 */
#ifndef PYC_QUANTIZE_ROWS_H
#define PYC_QUANTIZE_ROWS_H

#include "pyc_tiles.h"

#define PYC_BLOCK_VECTORS (PYC_BLOCK / PYC_LANES)
#define PYC_EXACT_ZERO 128
#define PYC_BINARY_ZERO 8

/* Chooses the scale of a block by the bits of its largest magnitude; returns what its values are multiplied with. */
PYC_INLINE float pyc_choose_scale(const int binary, uint32_t bits, float *scale, int *fault) {
    const float magnitude = pyc_bits_f32(bits);
    if (binary) {
        *fault = bits >= 0x7149f2cau; /* 1e30 */
        if (*fault || magnitude < 1e-28f) {
            *scale = 1.0f;
            return 0.0f;
        }
        const float ratio = magnitude / 127.0f;
        const uint32_t power = (pyc_load_u32(&ratio) + 0x7fffffu) & 0x7f800000u;
        *scale = pyc_bits_f32(power);
        return pyc_bits_f32(0x7f000000u - power);
    }
    *fault = bits >= 0x7f800000u;
    const float inverse = !*fault && magnitude >= 1e-35f ? 127.0f / magnitude : 0.0f;
    *scale = *fault ? __builtin_nanf("") : inverse == 0.0f ? 0.0f : magnitude / 127.0f;
    return inverse;
}

/* Returns whether the block is at fault. */
PYC_INLINE int pyc_quantize_block(const int binary, const float *x, float *scale, int32_t *start, int8_t *values) {
    pyc_f32v v[PYC_BLOCK_VECTORS];
    pyc_i32v largest = 0, total = 0;
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++) {
        v[i] = pyc_load_f32v(x + i * PYC_LANES);
        /* Magnitudes of floats order as their bits do, with infinity and NaN on top. */
        largest = __builtin_elementwise_max(largest, ((pyc_i32v)v[i]) & 0x7fffffff);
    }
    int fault;
    const float inverse = pyc_choose_scale(binary, (uint32_t)__builtin_reduce_max(largest), scale, &fault);
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++) {
        const pyc_f32v shifted = v[i] * (pyc_f32v)inverse + 0x1.8p23f;
        const pyc_i32v q = fault ? (pyc_i32v)0 : ((pyc_i32v)shifted) - 0x4b400000;
        const pyc_i8v bytes = __builtin_convertvector(q, pyc_i8v);
        memcpy(values + i * PYC_LANES, &bytes, sizeof bytes);
        total += q;
    }
    *start = (binary ? -PYC_BINARY_ZERO : -PYC_EXACT_ZERO) * __builtin_reduce_add(total);
    return fault;
}

PYC_INLINE int32_t pyc_quantize_rows(const int binary, const float *x, uint8_t *out, int row_start, int row_stop,
                                     const struct pyc_shape s) {
    const int whole = s.inputs / PYC_BLOCK;
    for (int row = row_start; row < row_stop; row++) {
        const float *from = x + (ptrdiff_t)row * s.inputs;
        uint8_t *record = out + (ptrdiff_t)row * s.row_bytes;
        float *scales = (float *)record;
        int32_t *starts = (int32_t *)(record + s.row_starts);
        int8_t *values = (int8_t *)(record + s.row_data);
        memset(scales + s.blocks, 0, s.row_starts - 4 * s.blocks);
        memset(starts + s.blocks, 0, s.row_data - s.row_starts - 4 * s.blocks);
        memset(values + s.blocks * PYC_BLOCK, 0, s.row_bytes - s.row_data - s.blocks * PYC_BLOCK);
        int faults = 0;
        PYC_ROLLED for (int b = 0; b < whole; b++)
            faults |= pyc_quantize_block(binary, from + b * PYC_BLOCK, scales + b, starts + b, values + b * PYC_BLOCK);
        if (whole < s.blocks) {
            float last[PYC_BLOCK] = {0};
            memcpy(last, from + whole * PYC_BLOCK, 4 * (s.inputs - whole * PYC_BLOCK));
            faults |= pyc_quantize_block(binary, last, scales + whole, starts + whole, values + whole * PYC_BLOCK);
        }
        if (binary && faults) scales[0] = __builtin_nanf("");
    }
    return 0;
}

#endif
