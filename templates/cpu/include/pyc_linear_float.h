/* y = x W^T (+ bias) with f32 activations, a row every s.row_bytes, and f32 sums.
 *
 * Weights f32, f16 or bf16 are widened in registers, and so is floating point of 8 bits, by way of f16, e4m3 as 2^-8 of
 * its value; codes become q - zero, an exact f32, and their scale multiplies the sum of a group or, in int8 without
 * groups, of the row. Every (token, row) keeps two chains of sums, one for even and one for odd inputs (int4: low and
 * high nibbles of a block), added at the end.
 *
 * `prefetch`: the first register block that reads a panel of f32 or 16 bits prefetches the next one, into the
 * second-level cache, which it takes longer over than the hardware looks ahead (pyc_linear_integer.h).
 */
#ifndef PYC_LINEAR_FLOAT_H
#define PYC_LINEAR_FLOAT_H

#include "pyc_float8.h"
#include "pyc_prefetch.h"
#include "pyc_lookup.h"
#include "pyc_work_partition.h"
#include "pyc_scales.h"

#define PYC_LANE_WORD (4 * PYC_LANES) /* bytes that a vector of 32-bit words takes */

typedef pyc_f32v pyc_sums[PYC_REGISTER_TOKENS][PYC_COLUMNS];

PYC_INLINE void pyc_clear(const int T, const int C, pyc_sums sum) {
    PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) sum[t][c] = 0;
}

/* sum[t] += w * x[t][k] for a vector w of rows; `x` points to input k of the first token. */
PYC_INLINE void pyc_add_input(const int T, const int c, pyc_f32v w, const float *x, pyc_sums sum,
                              const struct pyc_shape s) {
    PYC_UNROLL for (int t = 0; t < T; t++)
        sum[t][c] = pyc_fma(w, (pyc_f32v)x[(ptrdiff_t)t * (s.row_bytes / 4)], sum[t][c]);
}

PYC_INLINE void pyc_f32_register_block(const int T, const int C, const float *x, const uint8_t *panel, int column,
                                       pyc_sums even, int prefetch, const struct pyc_shape s) {
    pyc_sums odd;
    pyc_clear(T, C, odd);
    const uint8_t *w = panel + column * PYC_LANE_WORD;
    int k = 0;
    PYC_ROLLED for (; k + 2 <= s.inputs; k += 2) {
        if (prefetch)
            pyc_prefetch_weights(T, pyc_prefetch_distances.floats, panel + (ptrdiff_t)k * 4 * PYC_PANEL, 128, s);
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const uint8_t *at = w + (ptrdiff_t)k * 4 * PYC_PANEL + c * PYC_LANE_WORD;
            pyc_add_input(T, c, pyc_load_f32v(at), x + k, even, s);
            pyc_add_input(T, c, pyc_load_f32v(at + 4 * PYC_PANEL), x + k + 1, odd, s);
        }
    }
    PYC_UNROLL for (int c = 0; c < C; c++) {
        if (k < s.inputs)
            pyc_add_input(T, c, pyc_load_f32v(w + (ptrdiff_t)k * 4 * PYC_PANEL + c * PYC_LANE_WORD), x + k, even, s);
        PYC_UNROLL for (int t = 0; t < T; t++) even[t][c] += odd[t][c];
    }
}

/* The even (part 0) or odd (part 1) inputs of a vector of pairs of 16-bit floats. */
PYC_INLINE pyc_f32v pyc_bf16_part(pyc_u32v pairs, const int part) {
    return pyc_bits_f32v(part ? pairs & 0xffff0000u : pairs << 16);
}

PYC_INLINE pyc_f32v pyc_f16_part(pyc_u32v pairs, const int part) {
    return pyc_f16_values(__builtin_convertvector(part ? pairs >> 16 : pairs & 0xffffu, pyc_u16v));
}

#define PYC_PAIR_REGISTER_BLOCK(name, widen)                                                                         \
    PYC_INLINE void name(const int T, const int C, const float *x, const uint8_t *panel, int column, pyc_sums even,  \
                         int prefetch, const struct pyc_shape s) {                                                   \
        pyc_sums odd;                                                                                                \
        pyc_clear(T, C, odd);                                                                                        \
        const uint8_t *w = panel + column * PYC_LANE_WORD;                                                           \
        int k = 0;                                                                                                   \
        PYC_ROLLED for (; k + 2 <= s.inputs; k += 2) {                                                               \
            if (prefetch)                                                                                            \
                pyc_prefetch_weights(T, pyc_prefetch_distances.floats, panel + (ptrdiff_t)k * 2 * PYC_PANEL, 64, s); \
            PYC_UNROLL for (int c = 0; c < C; c++) {                                                                 \
                const pyc_u32v pairs = pyc_load_u32v(w + (ptrdiff_t)k * 2 * PYC_PANEL + c * PYC_LANE_WORD);          \
                pyc_add_input(T, c, widen(pairs, 0), x + k, even, s);                                                \
                pyc_add_input(T, c, widen(pairs, 1), x + k + 1, odd, s);                                             \
            }                                                                                                        \
        }                                                                                                            \
        PYC_UNROLL for (int c = 0; c < C; c++) {                                                                     \
            if (k < s.inputs) {                                                                                      \
                const pyc_u32v pairs = pyc_load_u32v(w + (ptrdiff_t)k * 2 * PYC_PANEL + c * PYC_LANE_WORD);          \
                pyc_add_input(T, c, widen(pairs, 0), x + k, even, s);                                                \
            }                                                                                                        \
            PYC_UNROLL for (int t = 0; t < T; t++) even[t][c] += odd[t][c];                                          \
        }                                                                                                            \
    }
PYC_PAIR_REGISTER_BLOCK(pyc_f16_register_block, pyc_f16_part)
PYC_PAIR_REGISTER_BLOCK(pyc_bf16_register_block, pyc_bf16_part)

/* Byte i of each lane as q - zero. */
PYC_INLINE pyc_f32v pyc_byte_code(pyc_u32v words, const int i, const uint32_t mask, pyc_f32v zero) {
    return __builtin_convertvector((pyc_i32v)(words >> (uint32_t)(8 * i) & mask), pyc_f32v) - zero;
}

/* Adds the int8 inputs [start, stop), start a multiple of 4; `w` points to the first vector of the data. */
PYC_INLINE void pyc_add_bytes(const int T, const int C, const uint8_t *w, const float *x, const int start,
                              const int stop, pyc_sums even, pyc_sums odd, const struct pyc_shape s) {
    int k = start;
    PYC_ROLLED for (; k + 4 <= stop; k += 4)
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const pyc_u32v words = pyc_load_u32v(w + (ptrdiff_t)k * PYC_PANEL + c * PYC_LANE_WORD);
            PYC_UNROLL for (int i = 0; i < 4; i++)
                pyc_add_input(T, c, pyc_byte_code(words, i, 255, 128), x + k + i, i & 1 ? odd : even, s);
        }
    if (s.inputs % 4 == 0 || k >= stop) return;
    PYC_UNROLL for (int c = 0; c < C; c++) {
        const pyc_u32v words = pyc_load_u32v(w + (ptrdiff_t)k * PYC_PANEL + c * PYC_LANE_WORD);
        PYC_UNROLL for (int i = 0; i < 4; i++)
            if (k + i < stop)
                pyc_add_input(T, c, pyc_byte_code(words, i, 255, 128), x + k + i, i & 1 ? odd : even, s);
    }
}

PYC_INLINE void pyc_int8_float_register_block(const int T, const int C, const float *x, const uint8_t *panel,
                                              int column, pyc_sums even, int prefetch, const struct pyc_shape s) {
    pyc_sums odd;
    pyc_clear(T, C, odd);
    pyc_add_bytes(T, C, panel + s.data + column * PYC_LANE_WORD, x, 0, s.inputs, even, odd, s);
    PYC_UNROLL for (int c = 0; c < C; c++) {
        const pyc_f32v scale = pyc_load_f32v(panel + (column + c) * PYC_LANE_WORD);
        PYC_UNROLL for (int t = 0; t < T; t++) even[t][c] = (even[t][c] + odd[t][c]) * scale;
    }
}

/* Adds the inputs [start, stop) of 8-bit floating point, start a multiple of 4; `w` points to the first vector of the
 * data. */
PYC_INLINE void pyc_add_floats8(const int fraction_bits, const int T, const int C, const uint8_t *w, const float *x,
                                const int start, const int stop, pyc_sums even, pyc_sums odd, int prefetch,
                                const struct pyc_shape s) {
    int k = start;
    PYC_ROLLED for (; k + 4 <= stop; k += 4) {
        if (prefetch) pyc_prefetch_weights(T, pyc_prefetch_distances.floats, w + (ptrdiff_t)k * PYC_PANEL, 64, s);
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const pyc_u32v words = pyc_load_u32v(w + (ptrdiff_t)k * PYC_PANEL + c * PYC_LANE_WORD);
            PYC_UNROLL for (int i = 0; i < 4; i++)
                pyc_add_input(T, c, pyc_float8_part(fraction_bits, words, i), x + k + i, i & 1 ? odd : even, s);
        }
    }
    if (s.inputs % 4 == 0 || k >= stop) return;
    PYC_UNROLL for (int c = 0; c < C; c++) {
        const pyc_u32v words = pyc_load_u32v(w + (ptrdiff_t)k * PYC_PANEL + c * PYC_LANE_WORD);
        PYC_UNROLL for (int i = 0; i < 4; i++)
            if (k + i < stop)
                pyc_add_input(T, c, pyc_float8_part(fraction_bits, words, i), x + k + i, i & 1 ? odd : even, s);
    }
}

#define PYC_FLOAT8_REGISTER_BLOCK(name, fraction_bits)                                                              \
    PYC_INLINE void name(const int T, const int C, const float *x, const uint8_t *panel, int column, pyc_sums even, \
                         int prefetch, const struct pyc_shape s) {                                                  \
        pyc_sums odd;                                                                                               \
        pyc_clear(T, C, odd);                                                                                       \
        pyc_add_floats8(fraction_bits, T, C, panel + s.data + column * PYC_LANE_WORD, x, 0, s.inputs, even, odd,    \
                        prefetch, s);                                                                               \
        PYC_UNROLL for (int c = 0; c < C; c++) {                                                                    \
            const pyc_f32v scale = pyc_float8_scale(fraction_bits, panel, 0, column + c);                           \
            PYC_UNROLL for (int t = 0; t < T; t++) even[t][c] = (even[t][c] + odd[t][c]) * scale;                   \
        }                                                                                                           \
    }
PYC_FLOAT8_REGISTER_BLOCK(pyc_fp8_e4m3_register_block, PYC_E4M3)
PYC_FLOAT8_REGISTER_BLOCK(pyc_fp8_e5m2_register_block, PYC_E5M2)

PYC_INLINE void pyc_fp8_e4m3_block_register_block(const int T, const int C, const float *x, const uint8_t *panel,
                                                  int column, pyc_sums sum, int prefetch, const struct pyc_shape s) {
    const uint8_t *w = panel + s.data + column * PYC_LANE_WORD;
    const int group = PYC_BLOCK * s.group_blocks;
    PYC_ROLLED for (int g = 0; g * group < s.inputs; g++) {
        const int stop = (g + 1) * group < s.inputs ? (g + 1) * group : s.inputs;
        pyc_sums even, odd;
        pyc_clear(T, C, even);
        pyc_clear(T, C, odd);
        pyc_add_floats8(PYC_E4M3, T, C, w, x, g * group, stop, even, odd, prefetch, s);
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const pyc_f32v scale = pyc_float8_scale(PYC_E4M3, panel, g, column + c);
            PYC_UNROLL for (int t = 0; t < T; t++) sum[t][c] = pyc_fma(even[t][c] + odd[t][c], scale, sum[t][c]);
        }
    }
}

/* sum += (low + high) * the scales of group g */
PYC_INLINE void pyc_add_group(const int T, const int C, const uint8_t *panel, const int column, const int g,
                              pyc_sums low, pyc_sums high, pyc_sums sum, const struct pyc_shape s) {
    PYC_UNROLL for (int c = 0; c < C; c++) {
        const pyc_f32v scale = pyc_group_scale(panel, g, column + c, s);
        PYC_UNROLL for (int t = 0; t < T; t++) sum[t][c] = pyc_fma(low[t][c] + high[t][c], scale, sum[t][c]);
    }
}

PYC_INLINE void pyc_int8_group_float_register_block(const int T, const int C, const float *x, const uint8_t *panel,
                                                    int column, pyc_sums sum, int prefetch, const struct pyc_shape s) {
    const uint8_t *w = panel + s.data + column * PYC_LANE_WORD;
    const int group = PYC_BLOCK * s.group_blocks;
    if (T <= 2) pyc_prefetch_near(panel, s.data); /* see pyc_linear_integer.h */
    PYC_ROLLED for (int g = 0; g < s.blocks / s.group_blocks; g++) {
        const int stop = (g + 1) * group < s.inputs ? (g + 1) * group : s.inputs;
        pyc_sums even, odd;
        pyc_clear(T, C, even);
        pyc_clear(T, C, odd);
        pyc_add_bytes(T, C, w, x, g * group, stop, even, odd, s);
        pyc_add_group(T, C, panel, column, g, even, odd, sum, s);
    }
}

PYC_INLINE void pyc_int4_float_register_block(const int T, const int C, const float *x, const uint8_t *panel,
                                              int column, pyc_sums sum, int prefetch, const struct pyc_shape s) {
    const uint8_t *w = panel + s.data + column * PYC_LANE_WORD;
    if (T <= 2) pyc_prefetch_near(panel, s.data); /* see pyc_linear_integer.h */
    PYC_ROLLED for (int g = 0; g < s.blocks / s.group_blocks; g++) {
        pyc_sums low, high;
        pyc_clear(T, C, low);
        pyc_clear(T, C, high);
        PYC_ROLLED for (int j = 4 * g * s.group_blocks; j < 4 * (g + 1) * s.group_blocks; j++)
            PYC_UNROLL for (int c = 0; c < C; c++) {
                const pyc_u32v words = pyc_load_u32v(w + (ptrdiff_t)j * 4 * PYC_PANEL + c * PYC_LANE_WORD);
                const float *block = x + (j / 4) * PYC_BLOCK + (j % 4) * 4;
                pyc_f32v zero = 8;
                if (s.zeros) {
                    const uint8_t *at = panel + s.zeros + g * PYC_PANEL + (column + c) * PYC_LANES;
                    zero = __builtin_convertvector(pyc_load_u8v(at), pyc_f32v);
                }
                PYC_UNROLL for (int i = 0; i < 4; i++) {
                    pyc_add_input(T, c, pyc_byte_code(words, i, 15, zero), block + i, low, s);
                    pyc_add_input(T, c, pyc_byte_code(words >> 4, i, 15, zero), block + 16 + i, high, s);
                }
            }
        pyc_add_group(T, C, panel, column, g, low, high, sum, s);
    }
}

PYC_INLINE void pyc_lookup_float_register_block(const int T, const int C, const float *x, const uint8_t *panel,
                                                int column, pyc_sums sum, int prefetch, const struct pyc_shape s) {
    const uint8_t *w = panel + s.data + column * PYC_LANE_WORD;
    if (T <= 2) pyc_prefetch_near(panel, s.data); /* see pyc_linear_integer.h */
    PYC_ROLLED for (int g = 0; g < s.blocks / s.group_blocks; g++) {
        pyc_sums low, high;
        pyc_clear(T, C, low);
        pyc_clear(T, C, high);
        PYC_ROLLED for (int b = g * s.group_blocks; b < (g + 1) * s.group_blocks; b++)
            PYC_UNROLL for (int c = 0; c < C; c++) {
                const uint8_t *block = w + (ptrdiff_t)b * s.bits * PYC_PANEL_STEP + c * PYC_LANE_WORD;
                const pyc_f32v zero = __builtin_convertvector(pyc_lookup_zeros(panel, g, column + c, s), pyc_f32v);
                PYC_UNROLL for (int j = 0; j < 8; j++) {
                    const pyc_u32v words = pyc_lookup_bytes(block, j, s);
                    const float *at = x + b * PYC_BLOCK + 4 * j;
                    PYC_UNROLL for (int i = 0; i < 4; i++)
                        pyc_add_input(T, c, pyc_byte_code(words, i, 255, zero), at + i, j < 4 ? low : high, s);
                }
            }
        if (PYC_HALVES(s) == 1) {
            pyc_add_group(T, C, panel, column, g, low, high, sum, s);
            continue;
        }
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const pyc_f32v first = pyc_group_scale(panel, 2 * g, column + c, s);
            const pyc_f32v second = pyc_group_scale(panel, 2 * g + 1, column + c, s);
            PYC_UNROLL for (int t = 0; t < T; t++)
                sum[t][c] = pyc_fma(high[t][c], second, pyc_fma(low[t][c], first, sum[t][c]));
        }
    }
    if (s.scale_form >= PYC_SCALES_E4M3)
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const pyc_f32v factor = pyc_row_factor(panel, column + c, s);
            PYC_UNROLL for (int t = 0; t < T; t++) sum[t][c] *= factor;
        }
}

/* One register block, and the stores of its sums. */
#define PYC_FLOAT_CALL(block, token, tokens, column, columns)                                                        \
    do {                                                                                                             \
        pyc_sums sum;                                                                                                \
        pyc_clear(tokens, columns, sum);                                                                             \
        block(tokens, columns, x + (ptrdiff_t)(token) * (s.row_bytes / 4), w + (ptrdiff_t)p * s.panel_bytes, column, \
              sum, token == run.token_start && (column) == 0, s);                                                    \
        PYC_UNROLL for (int t = 0; t < tokens; t++) PYC_UNROLL for (int c = 0; c < columns; c++) {                   \
            const int row = p * PYC_PANEL + (column + c) * PYC_LANES;                                                \
            pyc_store_row(y + (ptrdiff_t)(token + t) * s.outputs + row, bias ? bias + row : NULL, sum[t][c],         \
                          s.outputs - row);                                                                          \
        }                                                                                                            \
    } while (0)
#define PYC_CALL_F32(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_f32_register_block, token, tokens, column, columns)
#define PYC_CALL_F16(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_f16_register_block, token, tokens, column, columns)
#define PYC_CALL_BF16(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_bf16_register_block, token, tokens, column, columns)
#define PYC_CALL_INT8F(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_int8_float_register_block, token, tokens, column, columns)
#define PYC_CALL_INT8GF(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_int8_group_float_register_block, token, tokens, column, columns)
#define PYC_CALL_E4M3(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_fp8_e4m3_register_block, token, tokens, column, columns)
#define PYC_CALL_E5M2(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_fp8_e5m2_register_block, token, tokens, column, columns)
#define PYC_CALL_E4M3B(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_fp8_e4m3_block_register_block, token, tokens, column, columns)
#define PYC_CALL_INT4F(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_int4_float_register_block, token, tokens, column, columns)
#define PYC_CALL_LOOKUPF(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_lookup_float_register_block, token, tokens, column, columns)

PYC_MATMUL(pyc_linear_f32, float, PYC_REGISTER_COLUMNS, PYC_CALL_F32)
PYC_MATMUL(pyc_linear_f16, float, PYC_REGISTER_COLUMNS, PYC_CALL_F16)
PYC_MATMUL(pyc_linear_bf16, float, PYC_REGISTER_COLUMNS, PYC_CALL_BF16)
PYC_MATMUL(pyc_linear_int8_float, float, PYC_REGISTER_COLUMNS, PYC_CALL_INT8F)
PYC_MATMUL(pyc_linear_int8_group_float, float, PYC_REGISTER_COLUMNS, PYC_CALL_INT8GF)
PYC_MATMUL(pyc_linear_fp8_e4m3, float, PYC_REGISTER_COLUMNS, PYC_CALL_E4M3)
PYC_MATMUL(pyc_linear_fp8_e5m2, float, PYC_REGISTER_COLUMNS, PYC_CALL_E5M2)
PYC_MATMUL(pyc_linear_fp8_e4m3_block, float, PYC_REGISTER_COLUMNS, PYC_CALL_E4M3B)
PYC_MATMUL(pyc_linear_int4_float, float, PYC_REGISTER_COLUMNS, PYC_CALL_INT4F)
PYC_MATMUL(pyc_linear_lookup_float, float, PYC_REGISTER_COLUMNS, PYC_CALL_LOOKUPF)

#endif
