/* Activations f32 [m, K] -> quantized rows: scales f32 [blocks] | zero-point corrections i32 [blocks] | values i8 [32 *
 * blocks].
 *
 *   float_scale:  scale = max |x| / 127 over a block of 32 inputs, q = round to nearest even (x * (127 / max |x|))
 *   power_of_two: scale = 2^e, the least with max |x| / 127 <= 2^e, q = round to nearest even (x / 2^e)
 *   interleaved:  power_of_two, and many tokens interleaved (pyc_interleaved_rows.h)
 *   correction = -zero * sum q, what the dot product of q with codes + zero starts with; zero is 128 (float_scale) or 8
 *   (power_of_two)
 *
 * A power of two multiplies a weight's scale by an integer addition to its exponent, which no port of the
 * multipliers has to do: matmuls of int4 gain a tenth. It costs half a bit of the eight, in the mean.
 *
 * float_scale: a block without a magnitude of at least 1e-35 becomes zero (127 / max |x| would overflow); one that
 * holds NaN or infinity gets the scale NaN and zeros, so that the fault shows in the result. power_of_two: products of
 * scales must stay normal numbers, so blocks below 1e-28 become zero (with the scale 1), and one that holds 1e30 or
 * more, infinity or NaN is a fault: zeros, the scale 1, and NaN for the scale of the row's first block. Padding is
 * zero. Adding 1.5 * 2^23 rounds to nearest even on every CPU alike: the sum's low bits are the integer.
 */
#ifndef PYC_QUANTIZE_ROWS_H
#define PYC_QUANTIZE_ROWS_H

#include "pyc_interleaved_rows.h"
#include "pyc_amx_rows.h"

#define PYC_BLOCK_VECTORS (PYC_BLOCK / PYC_LANES)
#define PYC_FLOAT_SCALE_ZERO 128
#define PYC_POWER_OF_TWO_ZERO 8

PYC_INLINE pyc_f32v pyc_where(pyc_i32v mask, pyc_f32v then, pyc_f32v otherwise) {
    return (pyc_f32v)(((pyc_i32v)then & mask) | ((pyc_i32v)otherwise & ~mask));
}

/* Chooses the scales of blocks by the bits of their largest magnitudes; returns what their values are multiplied with.
 */
PYC_INLINE pyc_f32v pyc_choose_scales(const int power_of_two, pyc_i32v bits, pyc_f32v *scale, pyc_i32v *fault) {
    const pyc_f32v magnitude = (pyc_f32v)bits, ratio = magnitude / 127.0f;
    *fault = bits >= (power_of_two ? 0x7149f2ca : 0x7f800000); /* 1e30, infinity */
    if (power_of_two) {
        const pyc_i32v none = *fault | (magnitude < 1e-28f), power = ((pyc_i32v)ratio + 0x7fffff) & 0x7f800000;
        *scale = pyc_where(none, 1.0f, (pyc_f32v)power);
        return pyc_where(none, 0.0f, (pyc_f32v)(0x7f000000 - power));
    }
    const pyc_i32v none = *fault | (magnitude < 1e-35f);
    *scale = pyc_where(*fault, __builtin_nanf(""), pyc_where(none, 0.0f, ratio));
    return pyc_where(none, 0.0f, 127.0f / magnitude);
}

/* Returns whether the block is at fault. */
PYC_INLINE int pyc_quantize_block(const int power_of_two, const float *x, float *scale, int32_t *correction,
                                  int8_t *values) {
    pyc_f32v v[PYC_BLOCK_VECTORS];
    pyc_i32v largest = 0, total = 0;
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++) {
        v[i] = pyc_load_f32v(x + i * PYC_LANES);
        /* Magnitudes of floats order as their bits do, with infinity and NaN on top. */
        largest = __builtin_elementwise_max(largest, ((pyc_i32v)v[i]) & 0x7fffffff);
    }
    pyc_f32v scales;
    pyc_i32v faults;
    const pyc_f32v inverse = pyc_choose_scales(power_of_two, (pyc_i32v)__builtin_reduce_max(largest), &scales, &faults);
    const int fault = faults[0] != 0;
    *scale = scales[0];
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++) {
        const pyc_f32v shifted = v[i] * inverse + 0x1.8p23f;
        const pyc_i32v q = fault ? (pyc_i32v)0 : ((pyc_i32v)shifted) - 0x4b400000;
        const pyc_i8v bytes = __builtin_convertvector(q, pyc_i8v);
        memcpy(values + i * PYC_LANES, &bytes, sizeof bytes);
        total += q;
    }
    *correction = (power_of_two ? -PYC_POWER_OF_TWO_ZERO : -PYC_FLOAT_SCALE_ZERO) * __builtin_reduce_add(total);
    return fault;
}

/* Lanes of the lower and of the upper halves of two vectors in turn. */
#if PYC_LANES == 16
#define PYC_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define PYC_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif PYC_LANES == 8
#define PYC_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define PYC_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define PYC_LOW 0, 4, 1, 5
#define PYC_HIGH 2, 6, 3, 7
#endif

/* Lane b of the result is the sum, or the largest, of the lanes of v[b]; v is overwritten. */
#define PYC_REDUCTION(name, combine)                  \
    PYC_INLINE pyc_i32v name(pyc_i32v v[PYC_LANES]) { \
        PYC_REDUCTION_STEP(combine, 8)                \
        PYC_REDUCTION_STEP(combine, 4)                \
        PYC_REDUCTION_STEP(combine, 2)                \
        PYC_REDUCTION_STEP(combine, 1)                \
        return v[0];                                  \
    }
#define PYC_REDUCTION_STEP(combine, count)                                                 \
    PYC_UNROLL for (int i = 0; i < (count < PYC_LANES ? count : 0); i++)                   \
        v[i] = combine(__builtin_shufflevector(v[i], v[(i + count) % PYC_LANES], PYC_LOW), \
                       __builtin_shufflevector(v[i], v[(i + count) % PYC_LANES], PYC_HIGH));
#define PYC_PLUS(a, b) ((a) + (b))
PYC_REDUCTION(pyc_sums_of, PYC_PLUS)
PYC_REDUCTION(pyc_largest_of, __builtin_elementwise_max)

/* As many blocks as a vector has lanes, each as pyc_quantize_block does it: one block after another waits for its sums
 * and its division. The values of blocks are `stride` bytes apart. Returns 0, and leaves the quantized rows, where one
 * of them is at fault. */
PYC_OUTLINE int pyc_quantize_blocks(const int power_of_two, const float *x, float *scales, int32_t *corrections,
                                    int8_t *values, const int stride) {
    pyc_i32v v[PYC_LANES];
    PYC_UNROLL for (int b = 0; b < PYC_LANES; b++) {
        v[b] = 0;
        PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++)
            v[b] = __builtin_elementwise_max(
                v[b], ((pyc_i32v)pyc_load_f32v(x + b * PYC_BLOCK + i * PYC_LANES)) & 0x7fffffff);
    }
    pyc_f32v scale;
    pyc_i32v fault;
    const pyc_f32v inverse = pyc_choose_scales(power_of_two, pyc_largest_of(v), &scale, &fault);
    if (__builtin_reduce_or(fault)) return 0;
    memcpy(scales, &scale, sizeof scale);
    float factors[PYC_LANES];
    memcpy(factors, &inverse, sizeof inverse);
    PYC_UNROLL for (int b = 0; b < PYC_LANES; b++) {
        v[b] = 0;
        PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++) {
            const pyc_f32v shifted = pyc_load_f32v(x + b * PYC_BLOCK + i * PYC_LANES) * (pyc_f32v)factors[b] +
                                     0x1.8p23f;
            const pyc_i32v q = ((pyc_i32v)shifted) - 0x4b400000;
            const pyc_i8v bytes = __builtin_convertvector(q, pyc_i8v);
            memcpy(values + b * stride + i * PYC_LANES, &bytes, sizeof bytes);
            v[b] += q;
        }
    }
    const pyc_i32v correction = pyc_sums_of(v) * (power_of_two ? -PYC_POWER_OF_TWO_ZERO : -PYC_FLOAT_SCALE_ZERO);
    memcpy(corrections, &correction, sizeof correction);
    return 1;
}

/* All blocks of a row, their values `stride` bytes apart. Compiled once for all shapes: it takes a tenth of a second.
 */
PYC_OUTLINE void pyc_quantize_row(const int power_of_two, const float *x, float *scales, int32_t *corrections,
                                  int8_t *values, const int stride, const struct pyc_shape s) {
    const int whole = s.inputs / PYC_BLOCK;
    int faults = 0, b = 0;
    PYC_ROLLED for (; b + PYC_LANES <= whole; b += PYC_LANES)
        if (!pyc_quantize_blocks(power_of_two, x + b * PYC_BLOCK, scales + b, corrections + b, values + b * stride,
                                 stride))
            break;
    PYC_ROLLED for (; b < whole; b++)
        faults |= pyc_quantize_block(power_of_two, x + b * PYC_BLOCK, scales + b, corrections + b, values + b * stride);
    if (whole < s.blocks) {
        float last[PYC_BLOCK] = {0};
        memcpy(last, x + whole * PYC_BLOCK, 4 * (s.inputs - whole * PYC_BLOCK));
        faults |= pyc_quantize_block(power_of_two, last, scales + whole, corrections + whole, values + whole * stride);
    }
    if (power_of_two && faults) scales[0] = __builtin_nanf("");
}

/* The quantized row of one row. */
PYC_INLINE void pyc_quantize_alone(const int power_of_two, const float *x, uint8_t *quantized_row,
                                   const struct pyc_shape s) {
    float *scales = (float *)quantized_row;
    int32_t *corrections = (int32_t *)(quantized_row + s.row_corrections);
    int8_t *values = (int8_t *)(quantized_row + s.row_data);
    memset(scales + s.blocks, 0, s.row_corrections - 4 * s.blocks);
    memset(corrections + s.blocks, 0, s.row_data - s.row_corrections - 4 * s.blocks);
    memset(values + s.blocks * PYC_BLOCK, 0, s.row_bytes - s.row_data - s.blocks * PYC_BLOCK);
    pyc_quantize_row(power_of_two, x, scales, corrections, values, PYC_BLOCK, s);
}

/* The part of an interleaved group that one row has. */
PYC_INLINE void pyc_quantize_interleaved(const float *x, uint8_t *quantized, int row, const struct pyc_shape s) {
    struct pyc_interleaved_block *blocks = pyc_interleaved_at(quantized, row, s);
    const int t = row % PYC_INTERLEAVED_TOKENS;
    float scales[s.blocks];
    int32_t corrections[s.blocks];
    pyc_quantize_row(1, x, scales, corrections, blocks->values[t], sizeof *blocks, s);
    for (int b = 0; b < s.blocks; b++) pyc_place_factors(blocks + b, t, scales[b], corrections[b]);
}

/* Each quantizes the rows [row_start, row_stop) of m. */

PYC_INLINE int32_t pyc_quantize_all(const int power_of_two, int interleaved, const float *x, uint8_t *out, int m,
                                    int row_start, int row_stop, const struct pyc_shape s) {
    for (int row = row_start; row < row_stop; row++) {
        const float *from = x + (ptrdiff_t)row * s.inputs;
        if (pyc_pairs_tokens(m))
            pyc_round_into_tile(1, from, out, row, m, s);
        else if (row < interleaved)
            pyc_quantize_interleaved(from, out, row, s);
        else
            pyc_quantize_alone(power_of_two, from, out + (ptrdiff_t)row * s.row_bytes, s);
    }
    return 0;
}

PYC_INLINE int32_t pyc_quantize_rows_float_scale(const float *x, uint8_t *out, int m, int row_start, int row_stop,
                                           const struct pyc_shape s) {
    return pyc_quantize_all(0, 0, x, out, m, row_start, row_stop, s);
}

PYC_INLINE int32_t pyc_quantize_rows_power_of_two(const float *x, uint8_t *out, int m, int row_start, int row_stop,
                                            const struct pyc_shape s) {
    return pyc_quantize_all(1, 0, x, out, m, row_start, row_stop, s);
}

PYC_INLINE int32_t pyc_quantize_rows_interleaved(const float *x, uint8_t *out, int m, int row_start, int row_stop,
                                           const struct pyc_shape s) {
    return pyc_quantize_all(1, pyc_interleaved_tokens(m), x, out, m, row_start, row_stop, s);
}

#endif
