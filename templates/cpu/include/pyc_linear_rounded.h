/* y = x W^T (+ bias) with weights bf16, or of 8-bit floating point, and activations rounded to bf16 (pyc_round_rows.h),
 * in f32 sums.
 *
 * vdpbf16ps multiplies two pairs and adds them to a sum, twice as many products as f32 has, and keeps no number below
 * 2^-126. Every (token, row) has two chains of sums, one for even and one for odd pairs, added at the end. Elsewhere
 * the rows are f32, and the matmuls those of pyc_linear_float.h: the same exact products, added in another order.
 */
#ifndef PYC_LINEAR_ROUNDED_H
#define PYC_LINEAR_ROUNDED_H

#include "pyc_instructions.h"
#include "pyc_linear_float.h"

#if defined(__AVX512BF16__)

/* sum[t] += the pairs `w` by pair `pair` of token t. */
PYC_INLINE void pyc_add_pair(const int T, pyc_u32v w, const float *x, int pair, pyc_sums sum,
                             const struct pyc_shape s) {
    const pyc_bf16v weights = (pyc_bf16v)w;
    PYC_UNROLL for (int t = 0; t < T; t++) {
        const pyc_i32v values = pyc_load_i32(x + (ptrdiff_t)t * (s.row_bytes / 4) + pair);
        sum[t][0] = pyc_vdpbf16ps(sum[t][0], weights, (pyc_bf16v)values);
    }
}

PYC_INLINE void pyc_rounded_register_block(const int T, const int C, const float *x, const uint8_t *panel, int column,
                                 pyc_sums even, int prefetch, const struct pyc_shape s) {
    const int pairs = (s.inputs + 1) / 2, line = 4 * PYC_PANEL;
    pyc_sums odd;
    pyc_clear(T, C, odd);
    int k = 0;
    PYC_ROLLED for (; k + 2 <= pairs; k += 2) {
        if (prefetch) pyc_prefetch_weights(T, pyc_prefetch_distances.pairs, panel + (ptrdiff_t)k * line, 2 * line, s);
        pyc_add_pair(T, pyc_load_u32v(panel + (ptrdiff_t)k * line), x, k, even, s);
        pyc_add_pair(T, pyc_load_u32v(panel + (ptrdiff_t)(k + 1) * line), x, k + 1, odd, s);
    }
    if (k < pairs) pyc_add_pair(T, pyc_load_u32v(panel + (ptrdiff_t)k * line), x, k, even, s);
    PYC_UNROLL for (int t = 0; t < T; t++) even[t][0] += odd[t][0];
}

/* Adds the inputs [start, stop) of 8-bit floating point, start a multiple of 4: what is beyond K is zero in rows and
 * weights. */
PYC_INLINE void pyc_add_float8_pairs(const int fraction_bits, const int T, const uint8_t *w, const float *x, int start,
                                     int stop, pyc_sums even, pyc_sums odd, int prefetch, const struct pyc_shape s) {
    PYC_ROLLED for (int k = start; k < stop; k += 4) {
        const uint8_t *at = w + (ptrdiff_t)k * PYC_PANEL;
        if (prefetch) pyc_prefetch_weights(T, pyc_prefetch_distances.pairs, at, 64, s);
        const pyc_u32v words = pyc_load_u32v(at);
        pyc_add_pair(T, pyc_float8_pairs(fraction_bits, words, 0), x, k / 2, even, s);
        if (k + 2 < stop) pyc_add_pair(T, pyc_float8_pairs(fraction_bits, words, 1), x, k / 2 + 1, odd, s);
    }
}

#define PYC_ROUNDED8_REGISTER_BLOCK(name, fraction_bits)                                                            \
    PYC_INLINE void name(const int T, const int C, const float *x, const uint8_t *panel, int column, pyc_sums even, \
                         int prefetch, const struct pyc_shape s) {                                                  \
        pyc_sums odd;                                                                                               \
        pyc_clear(T, C, odd);                                                                                       \
        pyc_add_float8_pairs(fraction_bits, T, panel + s.data, x, 0, s.inputs, even, odd, prefetch, s);             \
        const pyc_f32v scale = pyc_load_f32v(panel);                                                                \
        PYC_UNROLL for (int t = 0; t < T; t++) even[t][0] = (even[t][0] + odd[t][0]) * scale;                       \
    }
PYC_ROUNDED8_REGISTER_BLOCK(pyc_fp8_e4m3_rounded_register_block, PYC_E4M3)
PYC_ROUNDED8_REGISTER_BLOCK(pyc_fp8_e5m2_rounded_register_block, PYC_E5M2)

PYC_INLINE void pyc_fp8_e4m3_block_rounded_register_block(const int T, const int C, const float *x,
                                                          const uint8_t *panel, int column, pyc_sums sum, int prefetch,
                                                          const struct pyc_shape s) {
    const int group = PYC_BLOCK * s.group_blocks;
    PYC_ROLLED for (int g = 0; g * group < s.inputs; g++) {
        const int stop = (g + 1) * group < s.inputs ? (g + 1) * group : s.inputs;
        pyc_sums even, odd;
        pyc_clear(T, C, even);
        pyc_clear(T, C, odd);
        pyc_add_float8_pairs(PYC_E4M3, T, panel + s.data, x, g * group, stop, even, odd, prefetch, s);
        const pyc_f32v scale = pyc_load_f32v(panel + 4 * g * PYC_PANEL);
        PYC_UNROLL for (int t = 0; t < T; t++) sum[t][0] = pyc_fma(even[t][0] + odd[t][0], scale, sum[t][0]);
    }
}

#else
#define pyc_rounded_register_block pyc_bf16_register_block
#define pyc_fp8_e4m3_rounded_register_block pyc_fp8_e4m3_register_block
#define pyc_fp8_e5m2_rounded_register_block pyc_fp8_e5m2_register_block
#define pyc_fp8_e4m3_block_rounded_register_block pyc_fp8_e4m3_block_register_block
#endif

#define PYC_CALL_ROUNDED(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_rounded_register_block, token, tokens, column, columns)
#define PYC_CALL_E4M3_ROUNDED(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_fp8_e4m3_rounded_register_block, token, tokens, column, columns)
#define PYC_CALL_E5M2_ROUNDED(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_fp8_e5m2_rounded_register_block, token, tokens, column, columns)
#define PYC_CALL_E4M3B_ROUNDED(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_fp8_e4m3_block_rounded_register_block, token, tokens, column, columns)
PYC_MATMUL(pyc_linear_fp8_e4m3_rounded, float, PYC_REGISTER_COLUMNS, PYC_CALL_E4M3_ROUNDED)
PYC_MATMUL(pyc_linear_fp8_e5m2_rounded, float, PYC_REGISTER_COLUMNS, PYC_CALL_E5M2_ROUNDED)
PYC_MATMUL(pyc_linear_fp8_e4m3_block_rounded, float, PYC_REGISTER_COLUMNS, PYC_CALL_E4M3B_ROUNDED)
PYC_MATMUL(pyc_linear_bf16_rounded, float, PYC_REGISTER_COLUMNS, PYC_CALL_ROUNDED)

#endif
