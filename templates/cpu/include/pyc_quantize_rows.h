/* Activations f32 [m, K] -> records: scales f32 [blocks] | starts i32 [blocks] | values i8 [32 * blocks].
 *
 *   exact:  scale = max |x| / 127 over a block of 32 inputs, q = round to nearest even (x * (127 / max |x|))
 *   binary: scale = 2^e, the least with max |x| / 127 <= 2^e, q = round to nearest even (x / 2^e)
 *   tiled:  binary, and many tokens in tiles (pyc_records.h)
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

#include "pyc_records.h"
#include "pyc_amx_records.h"

#define PYC_BLOCK_VECTORS (PYC_BLOCK / PYC_LANES)
#define PYC_EXACT_ZERO 128
#define PYC_BINARY_ZERO 8

PYC_INLINE pyc_f32v pyc_where(pyc_i32v mask, pyc_f32v then, pyc_f32v otherwise) {
    return (pyc_f32v)(((pyc_i32v)then & mask) | ((pyc_i32v)otherwise & ~mask));
}

/* Chooses the scales of blocks by the bits of their largest magnitudes; returns what their values are multiplied with. */
PYC_INLINE pyc_f32v pyc_choose_scales(const int binary, pyc_i32v bits, pyc_f32v *scale, pyc_i32v *fault) {
    const pyc_f32v magnitude = (pyc_f32v)bits, ratio = magnitude / 127.0f;
    *fault = bits >= (binary ? 0x7149f2ca : 0x7f800000); /* 1e30, infinity */
    if (binary) {
        const pyc_i32v none = *fault | (magnitude < 1e-28f), power = ((pyc_i32v)ratio + 0x7fffff) & 0x7f800000;
        *scale = pyc_where(none, 1.0f, (pyc_f32v)power);
        return pyc_where(none, 0.0f, (pyc_f32v)(0x7f000000 - power));
    }
    const pyc_i32v none = *fault | (magnitude < 1e-35f);
    *scale = pyc_where(*fault, __builtin_nanf(""), pyc_where(none, 0.0f, ratio));
    return pyc_where(none, 0.0f, 127.0f / magnitude);
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
    pyc_f32v scales;
    pyc_i32v faults;
    const pyc_f32v inverse = pyc_choose_scales(binary, (pyc_i32v)__builtin_reduce_max(largest), &scales, &faults);
    const int fault = faults[0] != 0;
    *scale = scales[0];
    PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++) {
        const pyc_f32v shifted = v[i] * inverse + 0x1.8p23f;
        const pyc_i32v q = fault ? (pyc_i32v)0 : ((pyc_i32v)shifted) - 0x4b400000;
        const pyc_i8v bytes = __builtin_convertvector(q, pyc_i8v);
        memcpy(values + i * PYC_LANES, &bytes, sizeof bytes);
        total += q;
    }
    *start = (binary ? -PYC_BINARY_ZERO : -PYC_EXACT_ZERO) * __builtin_reduce_add(total);
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
#define PYC_REDUCTION(name, combine)                                                   \
    PYC_INLINE pyc_i32v name(pyc_i32v v[PYC_LANES]) {                                  \
        PYC_REDUCTION_STEP(combine, 8)                                                 \
        PYC_REDUCTION_STEP(combine, 4)                                                 \
        PYC_REDUCTION_STEP(combine, 2)                                                 \
        PYC_REDUCTION_STEP(combine, 1)                                                 \
        return v[0];                                                                   \
    }
#define PYC_REDUCTION_STEP(combine, count)                                             \
    PYC_UNROLL for (int i = 0; i < (count < PYC_LANES ? count : 0); i++)               \
        v[i] = combine(__builtin_shufflevector(v[i], v[(i + count) % PYC_LANES], PYC_LOW), \
                       __builtin_shufflevector(v[i], v[(i + count) % PYC_LANES], PYC_HIGH));
#define PYC_PLUS(a, b) ((a) + (b))
PYC_REDUCTION(pyc_sums_of, PYC_PLUS)
PYC_REDUCTION(pyc_largest_of, __builtin_elementwise_max)

/* As many blocks as a vector has lanes, each as pyc_quantize_block does it: one block after another waits for its sums and
 * its division. The values of blocks are `stride` bytes apart. Returns 0, and leaves the records, where one of them is at
 * fault. */
PYC_OUTLINE int pyc_quantize_blocks(const int binary, const float *x, float *scales, int32_t *starts, int8_t *values,
                                    const int stride) {
    pyc_i32v v[PYC_LANES];
    PYC_UNROLL for (int b = 0; b < PYC_LANES; b++) {
        v[b] = 0;
        PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++)
            v[b] = __builtin_elementwise_max(
                v[b], ((pyc_i32v)pyc_load_f32v(x + b * PYC_BLOCK + i * PYC_LANES)) & 0x7fffffff);
    }
    pyc_f32v scale;
    pyc_i32v fault;
    const pyc_f32v inverse = pyc_choose_scales(binary, pyc_largest_of(v), &scale, &fault);
    if (__builtin_reduce_or(fault)) return 0;
    memcpy(scales, &scale, sizeof scale);
    float factors[PYC_LANES];
    memcpy(factors, &inverse, sizeof inverse);
    PYC_UNROLL for (int b = 0; b < PYC_LANES; b++) {
        v[b] = 0;
        PYC_UNROLL for (int i = 0; i < PYC_BLOCK_VECTORS; i++) {
            const pyc_f32v shifted = pyc_load_f32v(x + b * PYC_BLOCK + i * PYC_LANES) * (pyc_f32v)factors[b] + 0x1.8p23f;
            const pyc_i32v q = ((pyc_i32v)shifted) - 0x4b400000;
            const pyc_i8v bytes = __builtin_convertvector(q, pyc_i8v);
            memcpy(values + b * stride + i * PYC_LANES, &bytes, sizeof bytes);
            v[b] += q;
        }
    }
    const pyc_i32v start = pyc_sums_of(v) * (binary ? -PYC_BINARY_ZERO : -PYC_EXACT_ZERO);
    memcpy(starts, &start, sizeof start);
    return 1;
}

/* All blocks of a row, their values `stride` bytes apart. Compiled once for all shapes: it takes a tenth of a second. */
PYC_OUTLINE void pyc_quantize_row(const int binary, const float *x, float *scales, int32_t *starts, int8_t *values,
                                  const int stride, const struct pyc_shape s) {
    const int whole = s.inputs / PYC_BLOCK;
    int faults = 0, b = 0;
    PYC_ROLLED for (; b + PYC_LANES <= whole; b += PYC_LANES)
        if (!pyc_quantize_blocks(binary, x + b * PYC_BLOCK, scales + b, starts + b, values + b * stride, stride)) break;
    PYC_ROLLED for (; b < whole; b++)
        faults |= pyc_quantize_block(binary, x + b * PYC_BLOCK, scales + b, starts + b, values + b * stride);
    if (whole < s.blocks) {
        float last[PYC_BLOCK] = {0};
        memcpy(last, x + whole * PYC_BLOCK, 4 * (s.inputs - whole * PYC_BLOCK));
        faults |= pyc_quantize_block(binary, last, scales + whole, starts + whole, values + whole * stride);
    }
    if (binary && faults) scales[0] = __builtin_nanf("");
}

/* The record of one row. */
PYC_INLINE void pyc_quantize_into_record(const int binary, const float *x, uint8_t *record, const struct pyc_shape s) {
    float *scales = (float *)record;
    int32_t *starts = (int32_t *)(record + s.row_starts);
    int8_t *values = (int8_t *)(record + s.row_data);
    memset(scales + s.blocks, 0, s.row_starts - 4 * s.blocks);
    memset(starts + s.blocks, 0, s.row_data - s.row_starts - 4 * s.blocks);
    memset(values + s.blocks * PYC_BLOCK, 0, s.row_bytes - s.row_data - s.blocks * PYC_BLOCK);
    pyc_quantize_row(binary, x, scales, starts, values, PYC_BLOCK, s);
}

/* The part of a tile that one row has. */
PYC_INLINE void pyc_quantize_into_tile(const float *x, uint8_t *records, int row, const struct pyc_shape s) {
    struct pyc_tile_block *blocks = pyc_tile_of(records, row, s);
    const int t = row % PYC_RECORD_TOKENS;
    float scales[s.blocks];
    int32_t starts[s.blocks];
    pyc_quantize_row(1, x, scales, starts, blocks->values[t], sizeof *blocks, s);
    for (int b = 0; b < s.blocks; b++) pyc_place_factors(blocks + b, t, scales[b], starts[b]);
}

/* Each makes records of the rows [row_start, row_stop) of m. */

PYC_INLINE int32_t pyc_quantize_all(const int binary, int tiled, const float *x, uint8_t *out, int m, int row_start,
                                    int row_stop, const struct pyc_shape s) {
    for (int row = row_start; row < row_stop; row++) {
        const float *from = x + (ptrdiff_t)row * s.inputs;
        if (pyc_pairs_tokens(m))
            pyc_round_into_tile(1, from, out, row, m, s);
        else if (row < tiled)
            pyc_quantize_into_tile(from, out, row, s);
        else
            pyc_quantize_into_record(binary, from, out + (ptrdiff_t)row * s.row_bytes, s);
    }
    return 0;
}

PYC_INLINE int32_t pyc_quantize_rows_exact(const float *x, uint8_t *out, int m, int row_start, int row_stop,
                                           const struct pyc_shape s) {
    return pyc_quantize_all(0, 0, x, out, m, row_start, row_stop, s);
}

PYC_INLINE int32_t pyc_quantize_rows_binary(const float *x, uint8_t *out, int m, int row_start, int row_stop,
                                            const struct pyc_shape s) {
    return pyc_quantize_all(1, 0, x, out, m, row_start, row_stop, s);
}

PYC_INLINE int32_t pyc_quantize_rows_tiled(const float *x, uint8_t *out, int m, int row_start, int row_stop,
                                           const struct pyc_shape s) {
    return pyc_quantize_all(1, pyc_tiled_tokens(m), x, out, m, row_start, row_stop, s);
}

#endif
