/* The products of a library that read records: by AMX where there are enough tokens for it, by folded panels, or by vectors. */
#ifndef PYC_LINEAR_H
#define PYC_LINEAR_H

#include "pyc_linear_amx.h"
#include "pyc_linear_folded.h"
#include "pyc_linear_integer.h"
#include "pyc_linear_rounded.h"

PYC_INLINE int32_t pyc_linear_int4(const uint8_t *x, const uint8_t *w, const float *bias, float *y, struct pyc_run run,
                                   const struct pyc_shape s) {
    if (pyc_pairs_tokens(run.tokens)) return pyc_linear_amx(PYC_PANEL_INT4, x, w, bias, y, run, s);
    if (pyc_folds(s)) run.token_start = pyc_linear_folded(x, w, bias, y, run, s);
    return pyc_linear_int4_vectors(x, w, bias, y, run, s);
}

PYC_INLINE int32_t pyc_linear_int8(const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                   const struct pyc_run run, const struct pyc_shape s) {
    if (pyc_pairs_tokens(run.tokens)) return pyc_linear_amx(PYC_PANEL_INT8, x, w, bias, y, run, s);
    return pyc_linear_int8_vectors(x, w, bias, y, run, s);
}

PYC_INLINE int32_t pyc_linear_int8_group(const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                         const struct pyc_run run, const struct pyc_shape s) {
    if (pyc_pairs_tokens(run.tokens)) return pyc_linear_amx(PYC_PANEL_INT8_GROUP, x, w, bias, y, run, s);
    return pyc_linear_int8_group_vectors(x, w, bias, y, run, s);
}

PYC_INLINE int32_t pyc_linear_bf16_rounded(const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                           const struct pyc_run run, const struct pyc_shape s) {
    if (pyc_pairs_tokens(run.tokens)) return pyc_linear_amx(PYC_PANEL_BF16, x, w, bias, y, run, s);
    return pyc_linear_rounded_vectors((const float *)x, w, bias, y, run, s);
}

/* Activations that are split (pyc_split_rows.h), for libraries and batches that multiply tiles. */
PYC_INLINE int32_t pyc_linear_bf16_split(const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                         const struct pyc_run run, const struct pyc_shape s) {
    return pyc_linear_amx(PYC_PANEL_BF16, x, w, bias, y, run, s);
}

#endif
