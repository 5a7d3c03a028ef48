/* y = x W^T (+ bias) with weights bf16 and activations rounded to bf16 (pyc_round_rows.h), in f32 sums.
 *
 * vdpbf16ps multiplies two pairs and adds them to a sum, twice as many products as f32 has, and keeps no number below
 * 2^-126. Every (token, row) has two chains of sums, one for even and one for odd pairs, added at the end. Elsewhere the
 * rows are f32, and the matmuls those of pyc_linear_float.h: the same exact products, added in another order.
 */
#ifndef PYC_LINEAR_ROUNDED_H
#define PYC_LINEAR_ROUNDED_H

#include "pyc_instructions.h"
#include "pyc_linear_float.h"

#if defined(__AVX512BF16__)

/* sum[t] += the pairs of w by pair `pair` of token t. */
PYC_INLINE void pyc_add_pair(const int T, const uint8_t *w, const float *x, int pair, pyc_sums sum,
                             const struct pyc_shape s) {
    const pyc_bf16v weights = (pyc_bf16v)pyc_load_u32v(w);
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
        pyc_add_pair(T, panel + (ptrdiff_t)k * line, x, k, even, s);
        pyc_add_pair(T, panel + (ptrdiff_t)(k + 1) * line, x, k + 1, odd, s);
    }
    if (k < pairs) pyc_add_pair(T, panel + (ptrdiff_t)k * line, x, k, even, s);
    PYC_UNROLL for (int t = 0; t < T; t++) even[t][0] += odd[t][0];
}

#else
#define pyc_rounded_register_block pyc_bf16_register_block
#endif

#define PYC_CALL_ROUNDED(token, tokens, column, columns) \
    PYC_FLOAT_CALL(pyc_rounded_register_block, token, tokens, column, columns)
PYC_MATMUL(pyc_linear_bf16_rounded, float, PYC_REGISTER_COLUMNS, PYC_CALL_ROUNDED)

#endif
