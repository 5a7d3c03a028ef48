/* y = x W^T (+ bias) with int8 activations: for token t, row r, blocks b of 32 inputs,
 *
 *   int4: y = sum over b of (scale_w[g][r] * scale_x[t][b]) * (sum q x - zero[g][r] sum x), g the group of b
 *   lookup tables: as int4, with the byte of a code in place of q; with scales of halves of a block, a sum of each
 *   int8: y = scale_w[r] * sum over b of scale_x[t][b] * sum q x
 *   int8 in groups: y = sum over groups g of scale_w[g][r] * sum over b in g of scale_x[t][b] * sum q x
 *
 * The integer sums are exact, and begin with the zero-point corrections of the quantized rows (pyc_quantize_rows.h);
 * the sums over blocks are f32 in order of b. int4 takes power-of-two scales: the product of the scales is an addition
 * of exponents, exact.
 */
#ifndef PYC_LINEAR_INTEGER_H
#define PYC_LINEAR_INTEGER_H

#include "pyc_prefetch.h"
#include "pyc_dot.h"
#include "pyc_lookup.h"
#include "pyc_work_partition.h"
#include "pyc_scales.h"

PYC_INLINE pyc_f32v pyc_to_f32v(pyc_i32v value) { return __builtin_convertvector(value, pyc_f32v); }

PYC_INLINE float pyc_row_scale(const uint8_t *x, const int t, int b, const struct pyc_shape s) {
    return pyc_load_f32(x + (ptrdiff_t)t * s.row_bytes + 4 * b);
}

/* The bits of that scale, a power of two. */
PYC_INLINE int32_t pyc_row_power(const uint8_t *x, const int t, int b, const struct pyc_shape s) {
    return pyc_load_i32(x + (ptrdiff_t)t * s.row_bytes + 4 * b);
}

PYC_INLINE int32_t pyc_row_correction(const uint8_t *x, const int t, int b, const struct pyc_shape s) {
    return pyc_load_i32(x + (ptrdiff_t)t * s.row_bytes + s.row_corrections + 4 * b);
}

#define PYC_HEADER_BYTES (1 << 14) /* of a copied header: it stays in the first-level cache */

/* Copies the header of a panel where that pays, and prefetches it otherwise; see above. */
PYC_INLINE const uint8_t *pyc_header(const int T, const uint8_t *panel, uint8_t *held, int prefetch,
                                     const struct pyc_shape s) {
    if (prefetch) pyc_prefetch_near(panel, s.data);
    if (!prefetch || T > 2 || s.data > PYC_HEADER_BYTES) return panel;
    memcpy(held, panel, s.data);
    return held;
}

/* One register block of int4; `bias` and `y` point to the first row of the register block, `x` to the first token. A
 * block of 32 inputs takes 4 steps of a panel. */
PYC_INLINE void pyc_int4_register_block(const int T, const int C, const uint8_t *x, const uint8_t *panel, int column,
                              const float *bias, float *y, int count, int prefetch, const struct pyc_shape s) {
    const int block_bytes = 4 * PYC_PANEL_STEP;
    const uint8_t *data = panel + s.data + column * PYC_VECTOR_BYTES;
    pyc_f32v sum[PYC_REGISTER_TOKENS][PYC_COLUMNS];
    PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) sum[t][c] = 0;
    uint8_t held[PYC_HEADER_BYTES] __attribute__((aligned(64)));
    const uint8_t *header = pyc_header(T, panel, held, prefetch, s);
    PYC_ROLLED for (int g = 0; g < s.blocks / s.group_blocks; g++) {
        pyc_i32v power[PYC_COLUMNS], zero[PYC_COLUMNS];
        PYC_UNROLL for (int c = 0; c < C; c++) {
            power[c] = pyc_group_power(header, g, column + c, s);
            const uint8_t *at = header + s.zeros + g * PYC_PANEL + (column + c) * PYC_LANES;
            if (s.zeros) zero[c] = __builtin_convertvector(pyc_load_u8v(at), pyc_i32v);
        }
        PYC_ROLLED for (int b = g * s.group_blocks; b < (g + 1) * s.group_blocks; b++) {
            if (prefetch) pyc_prefetch_codes(T, data, b, block_bytes, s);
            pyc_dots dot;
            PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) {
                const int32_t correction = pyc_row_correction(x, t, b, s); /* -8 sum x */
                dot[t][c] = s.zeros ? zero[c] * (correction >> 3) : (pyc_i32v)correction;
            }
            pyc_dot_int4(T, C, data + b * block_bytes, x + s.row_data + b * PYC_BLOCK, s.row_bytes, dot);
            PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) {
                const pyc_f32v scale = (pyc_f32v)(power[c] + pyc_row_power(x, t, b, s));
                sum[t][c] = pyc_fma(pyc_to_f32v(dot[t][c]), scale, sum[t][c]);
            }
        }
    }
    PYC_UNROLL for (int t = 0; t < T; t++) {
        const float first = pyc_row_scale(x, t, 0, s); /* NaN marks a row with a fault */
        PYC_UNROLL for (int c = 0; c < C; c++)
            pyc_store_row(y + (ptrdiff_t)t * s.outputs + c * PYC_LANES, bias ? bias + c * PYC_LANES : NULL,
                          sum[t][c] + (first - first), count - c * PYC_LANES);
    }
}

/* sum += the products of block b, whose halves have scales, all but the factor of the row. What the zero point takes
 * off the first half is the sum of its activations by a vector of that byte; off the second, what is left of the
 * block's. */
PYC_INLINE void pyc_add_halves(const int T, const int C, const uint8_t *x, const uint8_t *header, const uint8_t *w,
                               int column, int b, pyc_f32v sum[PYC_REGISTER_TOKENS][PYC_COLUMNS],
                               const struct pyc_shape s) {
    const uint8_t *values = x + s.row_data + b * PYC_BLOCK;
    const pyc_u32v zero = (uint32_t)s.lookup_zero * 0x01010101u;
    pyc_dots first, second;
    PYC_UNROLL for (int t = 0; t < T; t++) {
        pyc_i32v start = 0;
        PYC_UNROLL for (int j = 0; j < 4; j += 2) {
            const uint8_t *at = values + (ptrdiff_t)t * s.row_bytes + 4 * j;
            const pyc_i32v four = (pyc_i32v)pyc_load_i32(at), next = (pyc_i32v)pyc_load_i32(at + 4);
            start = pyc_multiply_entries(PYC_SMALL_ENTRIES(s), start, zero, four, zero, next);
        }
        const int32_t total = s.lookup_zero * (pyc_row_correction(x, t, b, s) >> 3); /* -zero sum x */
        PYC_UNROLL for (int c = 0; c < C; c++) {
            first[t][c] = -start;
            second[t][c] = total + start;
        }
    }
    pyc_dot_lookup(T, C, w, values, 0, 4, first, s);
    pyc_dot_lookup(T, C, w, values, 4, 8, second, s);
    PYC_UNROLL for (int c = 0; c < C; c++) {
        const pyc_f32v low = pyc_group_scale(header, 2 * b, column + c, s);
        const pyc_f32v high = pyc_group_scale(header, 2 * b + 1, column + c, s);
        PYC_UNROLL for (int t = 0; t < T; t++) {
            const pyc_f32v both = pyc_fma(pyc_to_f32v(second[t][c]), high, pyc_to_f32v(first[t][c]) * low);
            sum[t][c] = pyc_fma(both, (pyc_f32v)pyc_row_scale(x, t, b, s), sum[t][c]);
        }
    }
}

/* One register block of lookup codes; arguments as above. */
PYC_INLINE void pyc_lookup_register_block(const int T, const int C, const uint8_t *x, const uint8_t *panel, int column,
                              const float *bias, float *y, int count, int prefetch, const struct pyc_shape s) {
    const int block_bytes = s.bits * PYC_PANEL_STEP;
    const uint8_t *data = panel + s.data + column * PYC_VECTOR_BYTES;
    pyc_f32v sum[PYC_REGISTER_TOKENS][PYC_COLUMNS];
    PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) sum[t][c] = 0;
    uint8_t held[PYC_HEADER_BYTES] __attribute__((aligned(64)));
    const uint8_t *header = pyc_header(T, panel, held, prefetch, s);
    PYC_ROLLED for (int g = 0; g < s.blocks / s.group_blocks; g++) {
        pyc_i32v power[PYC_COLUMNS], zero[PYC_COLUMNS];
        pyc_f32v scales[PYC_COLUMNS];
        PYC_UNROLL for (int c = 0; c < C; c++) {
            power[c] = pyc_group_power(header, g, column + c, s);
            scales[c] = pyc_group_scale(header, g, column + c, s);
            zero[c] = pyc_lookup_zeros(header, g, column + c, s);
        }
        PYC_ROLLED for (int b = g * s.group_blocks; b < (g + 1) * s.group_blocks; b++) {
            if (prefetch) pyc_prefetch_codes(T, data, b, block_bytes, s);
            if (PYC_HALVES(s) == 2) {
                pyc_add_halves(T, C, x, header, data + b * block_bytes, column, b, sum, s);
                continue;
            }
            pyc_dots dot;
            PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++)
                dot[t][c] = zero[c] * (pyc_row_correction(x, t, b, s) >> 3); /* -sum x */
            pyc_dot_lookup(T, C, data + b * block_bytes, x + s.row_data + b * PYC_BLOCK, 0, 8, dot, s);
            PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) {
                pyc_f32v scale = (pyc_f32v)(power[c] + pyc_row_power(x, t, b, s));
                if (s.scale_form != PYC_SCALES_SHORT) scale = scales[c] * pyc_row_scale(x, t, b, s);
                sum[t][c] = pyc_fma(pyc_to_f32v(dot[t][c]), scale, sum[t][c]);
            }
        }
    }
    PYC_UNROLL for (int t = 0; t < T; t++) {
        const float first = pyc_row_scale(x, t, 0, s); /* NaN marks a row with a fault */
        PYC_UNROLL for (int c = 0; c < C; c++) {
            if (s.scale_form >= PYC_SCALES_E4M3) sum[t][c] *= pyc_row_factor(header, column + c, s);
            pyc_store_row(y + (ptrdiff_t)t * s.outputs + c * PYC_LANES, bias ? bias + c * PYC_LANES : NULL,
                          sum[t][c] + (first - first), count - c * PYC_LANES);
        }
    }
}

/* dot[t] = the zero-point correction of block b + the sum of (code of b) x; a block takes 8 steps of a panel. */
PYC_INLINE void pyc_int8_block(const int T, const int C, const uint8_t *x, const uint8_t *data, int b, int prefetch,
                               pyc_dots dot, const struct pyc_shape s) {
    const int block_bytes = 8 * PYC_PANEL_STEP;
    if (prefetch) pyc_prefetch_codes(T, data, b, block_bytes, s);
    PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++)
        dot[t][c] = (pyc_i32v)(PYC_INT8_ZERO ? pyc_row_correction(x, t, b, s) : 0);
    pyc_dot_int8(T, C, data + b * block_bytes, x + s.row_data + b * PYC_BLOCK, s.row_bytes, dot);
}

/* One register block of int8 in groups; arguments as above. */
PYC_INLINE void pyc_int8_group_register_block(const int T, const int C, const uint8_t *x, const uint8_t *panel,
                                              int column, const float *bias, float *y, int count, int prefetch,
                                              const struct pyc_shape s) {
    const uint8_t *data = panel + s.data + column * PYC_VECTOR_BYTES;
    pyc_f32v sum[PYC_REGISTER_TOKENS][PYC_COLUMNS];
    PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) sum[t][c] = 0;
    uint8_t held[PYC_HEADER_BYTES] __attribute__((aligned(64)));
    const uint8_t *header = pyc_header(T, panel, held, prefetch, s);
    PYC_ROLLED for (int g = 0; g < s.blocks / s.group_blocks; g++) {
        pyc_f32v part[PYC_REGISTER_TOKENS][PYC_COLUMNS];
        PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) part[t][c] = 0;
        PYC_ROLLED for (int b = g * s.group_blocks; b < (g + 1) * s.group_blocks; b++) {
            pyc_dots dot;
            pyc_int8_block(T, C, x, data, b, prefetch, dot, s);
            PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) {
                const pyc_f32v scale = pyc_row_scale(x, t, b, s);
                const pyc_f32v value = pyc_to_f32v(dot[t][c]);
                part[t][c] = s.group_blocks == 1 ? value * scale : pyc_fma(value, scale, part[t][c]);
            }
        }
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const pyc_f32v scale = pyc_group_scale(header, g, column + c, s);
            PYC_UNROLL for (int t = 0; t < T; t++) sum[t][c] = pyc_fma(part[t][c], scale, sum[t][c]);
        }
    }
    PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++)
        pyc_store_row(y + (ptrdiff_t)t * s.outputs + c * PYC_LANES, bias ? bias + c * PYC_LANES : NULL, sum[t][c],
                      count - c * PYC_LANES);
}

/* One register block of int8 with a scale a row; arguments as above. */
PYC_INLINE void pyc_int8_register_block(const int T, const int C, const uint8_t *x, const uint8_t *panel, int column,
                              const float *bias, float *y, int count, int prefetch, const struct pyc_shape s) {
    const uint8_t *data = panel + s.data + column * PYC_VECTOR_BYTES;
    pyc_f32v sum[PYC_REGISTER_TOKENS][PYC_COLUMNS];
    PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) sum[t][c] = 0;
    PYC_ROLLED for (int b = 0; b < s.blocks; b++) {
        pyc_dots dot;
        pyc_int8_block(T, C, x, data, b, prefetch, dot, s);
        PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++)
            sum[t][c] = pyc_fma(pyc_to_f32v(dot[t][c]), (pyc_f32v)pyc_row_scale(x, t, b, s), sum[t][c]);
    }
    PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) {
        const pyc_f32v scale = pyc_load_f32v(panel + 4 * (column + c) * PYC_LANES);
        pyc_store_row(y + (ptrdiff_t)t * s.outputs + c * PYC_LANES, bias ? bias + c * PYC_LANES : NULL,
                      sum[t][c] * scale, count - c * PYC_LANES);
    }
}

#define PYC_INTEGER_CALL(block, token, tokens, column, columns)                                          \
    block(tokens, columns, x + (ptrdiff_t)(token)*s.row_bytes, w + (ptrdiff_t)p * s.panel_bytes, column, \
         bias ? bias + p * PYC_PANEL + (column)*PYC_LANES : NULL,                                        \
         y + (ptrdiff_t)(token)*s.outputs + p * PYC_PANEL + (column)*PYC_LANES,                          \
         s.outputs - p * PYC_PANEL - (column)*PYC_LANES, token == run.token_start && column == 0, s)
#define PYC_CALL_INT4(token, tokens, column, columns) \
    PYC_INTEGER_CALL(pyc_int4_register_block, token, tokens, column, columns)
#define PYC_CALL_LOOKUP(token, tokens, column, columns) \
    PYC_INTEGER_CALL(pyc_lookup_register_block, token, tokens, column, columns)
#define PYC_CALL_INT8G(token, tokens, column, columns) \
    PYC_INTEGER_CALL(pyc_int8_group_register_block, token, tokens, column, columns)
#define PYC_CALL_INT8(token, tokens, column, columns) \
    PYC_INTEGER_CALL(pyc_int8_register_block, token, tokens, column, columns)

PYC_MATMUL(pyc_linear_int4_simd, uint8_t, PYC_DOT_COLUMNS, PYC_CALL_INT4)
PYC_MATMUL(pyc_linear_lookup, uint8_t, PYC_DOT_COLUMNS, PYC_CALL_LOOKUP)
PYC_MATMUL(pyc_linear_int8, uint8_t, PYC_DOT_COLUMNS, PYC_CALL_INT8)
PYC_MATMUL(pyc_linear_int8_group, uint8_t, PYC_DOT_COLUMNS, PYC_CALL_INT8G)

#endif
