/* Activations f32 [m, K] -> records of bf16, rounded to nearest even, a row every s.row_bytes; padding is not written.
 *
 * Where the instruction set multiplies pairs of bf16, a record is u16 [K], zero at K where K is odd, and numbers below
 * 2^-126 are zero. Elsewhere it is f32 [K], the same numbers widened, which the products of f32 read.
 */
#ifndef PYC_ROUND_ROWS_H
#define PYC_ROUND_ROWS_H

#include "pyc_amx_records.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

PYC_INLINE void pyc_round_row(const float *x, uint8_t *record, const int inputs) {
    int k = 0;
    PYC_ROLLED for (; k + PYC_LANES <= inputs; k += PYC_LANES) {
        const __m256bh half = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + k));
        memcpy(record + 2 * k, &half, sizeof half);
    }
    if (k == inputs) return;
    const __mmask16 rest = (__mmask16)((1u << (inputs - k)) - 1); /* the others become zero */
    const __m256bh half = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(rest, x + k));
    memcpy(record + 2 * k, &half, sizeof half);
}

#else

PYC_INLINE void pyc_round_row(const float *x, uint8_t *record, const int inputs) {
    int k = 0;
    PYC_ROLLED for (; k + PYC_LANES <= inputs; k += PYC_LANES) {
        const pyc_u32v rounded = pyc_rounded_bits(pyc_load_f32v(x + k)) & 0xffff0000u;
        memcpy(record + 4 * k, &rounded, sizeof rounded);
    }
    for (; k < inputs; k++) {
        const uint32_t rounded = pyc_rounded_bits((pyc_f32v)x[k])[0] & 0xffff0000u;
        memcpy(record + 4 * k, &rounded, 4);
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
