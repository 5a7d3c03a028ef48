/* Rows of f32 as the cache keeps them and as the tiles of attention multiply them, packed in place. */
#ifndef PYC_PACK_H
#define PYC_PACK_H

#include "pyc_cache.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

/* Groups [from, to) of 16 f32 -> int8 in the first quarter of their place; returns the scale and the sum of the codes. */
PYC_INLINE float pyc_pack_codes(float *row, int from, int to, int32_t *total) {
    pyc_f32v top = 0;
    for (int i = from * PYC_PANEL; i < to * PYC_PANEL; i += PYC_LANES)
        top = __builtin_elementwise_max(top, __builtin_elementwise_abs(pyc_load_f32v(row + i)));
    const float largest = __builtin_reduce_max(top);
    const float inverse = largest < 1e-35f ? 0 : 127.0f / largest;
    pyc_i32v sum = 0;
    for (int i = from * PYC_PANEL; i < to * PYC_PANEL; i += PYC_LANES) {
        const pyc_f32v shifted = pyc_load_f32v(row + i) * inverse + 0x1.8p23f; /* rounds to even, in the low bits */
        const pyc_i32v code = (pyc_i32v)shifted - 0x4b400000;
        const pyc_i8v narrow = __builtin_convertvector(code, pyc_i8v);
        memcpy((int8_t *)row + i, &narrow, sizeof narrow);
        sum += code;
    }
    *total = __builtin_reduce_add(sum);
    return largest / 127.0f;
}

/* Groups [from, to) of 16 f32 -> bf16 in the first half of their place. */
PYC_INLINE void pyc_pack_pairs(float *row, int from, int to) {
#if defined(__AVX512BF16__)
    for (int i = from * PYC_PANEL; i < to * PYC_PANEL; i += PYC_PANEL) {
        const __m256bh half = _mm512_cvtneps_pbh(_mm512_loadu_ps(row + i));
        memcpy((uint8_t *)row + 2 * i, &half, sizeof half);
    }
#endif
}

/* A key or value, f32 [features] -> the cache's type, at the row's start; returns the scale of int8. */
PYC_INLINE float pyc_pack_row(const int kind, float *row, const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim);
    float scale = 1;
    if (kind == PYC_CACHE_F16)
        for (int i = 0; i < features; i += PYC_LANES) {
            typedef _Float16 pyc_f16v __attribute__((ext_vector_type(PYC_LANES)));
            const pyc_f16v halves = __builtin_convertvector(pyc_load_f32v(row + i), pyc_f16v);
            memcpy((uint8_t *)row + 2 * i, &halves, sizeof halves);
        }
    if (kind == PYC_CACHE_BF16) pyc_pack_pairs(row, 0, features / PYC_PANEL);
    if (kind == PYC_CACHE_INT8) {
        int32_t total;
        scale = pyc_pack_codes(row, 0, features / PYC_PANEL, &total);
        for (int i = 0; i < features; i++) ((uint8_t *)row)[i] ^= 0x80;
    }
    return scale;
}

#endif
