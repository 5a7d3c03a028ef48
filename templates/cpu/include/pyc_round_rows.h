/* Activations f32 [m, K] -> rows of bf16, rounded to nearest even, one every s.row_bytes; padding is not written.
 *
 * Where the instruction set multiplies pairs of bf16, a row is u16 [K], zero at K where K is odd, and numbers below
 * 2^-126 are zero. Elsewhere it is f32 [K], the same numbers widened, which the matmuls of f32 read.
 */
#ifndef PYC_ROUND_ROWS_H
#define PYC_ROUND_ROWS_H

#include "pyc_amx_rows.h"

#if defined(__AVX512BF16__)

PYC_INLINE void pyc_round_row(const float *x, uint8_t *quantized_row, const int inputs) {
    int k = 0;
    PYC_ROLLED for (; k + PYC_LANES <= inputs; k += PYC_LANES) {
        const pyc_bf16h half = pyc_vcvtneps2bf16(pyc_load_f32v(x + k));
        memcpy(quantized_row + 2 * k, &half, sizeof half);
    }
    if (k == inputs) return;
    const pyc_bf16h half = pyc_vcvtneps2bf16(pyc_vmovups_first(x + k, inputs - k));
    memcpy(quantized_row + 2 * k, &half, sizeof half);
}

#else

PYC_INLINE void pyc_round_row(const float *x, uint8_t *quantized_row, const int inputs) {
    int k = 0;
    PYC_ROLLED for (; k + PYC_LANES <= inputs; k += PYC_LANES) {
        const pyc_u32v rounded = pyc_rounded_bits(pyc_load_f32v(x + k)) & 0xffff0000u;
        memcpy(quantized_row + 4 * k, &rounded, sizeof rounded);
    }
    for (; k < inputs; k++) {
        const uint32_t rounded = pyc_rounded_bits((pyc_f32v)x[k])[0] & 0xffff0000u;
        memcpy(quantized_row + 4 * k, &rounded, 4);
    }
}

#endif

PYC_INLINE int32_t pyc_quantize_rows_bf16(const float *x, uint8_t *out, int m, int row_start, int row_stop,
                                          const struct pyc_shape s) {
    for (int row = row_start; row < row_stop; row++) {
        const float *from = x + (ptrdiff_t)row * s.inputs;
        if (pyc_pairs_tokens(m))
            pyc_round_into_tile(0, from, out, row, m, s);
        else
            pyc_round_row(from, out + (ptrdiff_t)row * s.row_bytes, s.inputs);
    }
    return 0;
}

#endif
