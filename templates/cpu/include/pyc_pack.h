/* Rows of f32 as the cache keeps them and as the register blocks of attention multiply them; and into the cache. */
#ifndef PYC_PACK_H
#define PYC_PACK_H

#include "pyc_cache.h"
#include "pyc_float8.h"
#include "pyc_instructions.h"

/* Stores far apart: scatter instructions take longer. */
#define PYC_SCATTERED _Pragma("clang loop vectorize(disable) unroll_count(8)")

/* from [n] -> to [n], in vectors: a call of the C library takes longer than this. */
PYC_INLINE void pyc_copy(float *to, const float *from, const int n) {
    int i = 0;
    PYC_UNROLL for (; i + PYC_LANES <= n; i += PYC_LANES) {
        const pyc_f32v x = pyc_load_f32v(from + i);
        memcpy(to + i, &x, sizeof x);
    }
    PYC_ROLLED for (; i < n; i++) to[i] = from[i];
}

/* f32 [head_dim] as f32 [features], zeros at the end: where it is, when it is as long; in `row` otherwise. */
PYC_INLINE const float *pyc_whole_head(const float *from, float *row, const int head_dim) {
    if (head_dim == PYC_FEATURES(head_dim)) return from;
    pyc_copy(row, from, head_dim);
    for (int i = head_dim; i < PYC_FEATURES(head_dim); i++) row[i] = 0;
    return row;
}

/* What codes of numbers up to `largest` are made with; all become 0 where none is large enough to divide by. */
PYC_INLINE float pyc_code_inverse(float largest) { return largest < 1e-35f ? 0 : 127.0f / largest; }

/* Groups [from, to) of 16 f32 -> int8, also in the first quarter of their place; returns the sum of the codes. */
PYC_INLINE int32_t pyc_make_codes(const float *row, int8_t *codes, int from, int to, float inverse) {
    pyc_i32v sum = 0;
    for (int i = from * PYC_PANEL; i < to * PYC_PANEL; i += PYC_LANES) {
        const pyc_f32v shifted = pyc_load_f32v(row + i) * inverse + 0x1.8p23f; /* rounds to even, in the low bits */
        const pyc_i32v code = (pyc_i32v)shifted - 0x4b400000;
        const pyc_i8v narrow = __builtin_convertvector(code, pyc_i8v);
        memcpy(codes + i, &narrow, sizeof narrow);
        sum += code;
    }
    return __builtin_reduce_add(sum);
}

/* The largest magnitude of a row. */
PYC_INLINE float pyc_largest_magnitude(const float *row, const int features) {
    pyc_f32v top = 0;
    for (int i = 0; i < features; i += PYC_LANES)
        top = pyc_larger(__builtin_elementwise_abs(pyc_load_f32v(row + i)), top);
    return pyc_largest(top);
}

/* A whole row of them; returns the scale. */
PYC_INLINE float pyc_pack_codes(const float *row, int8_t *codes, const int features, int32_t *total) {
    const float largest = pyc_largest_magnitude(row, features);
    *total = pyc_make_codes(row, codes, 0, features / PYC_PANEL, pyc_code_inverse(largest));
    return largest / 127.0f;
}

/* Groups [from, to) of 16 f32 -> bf16, also in the first half of their place. Lines are stored whole: an AMX tile is
 * not loaded from halves before they have left the queue of stores. */
PYC_INLINE void pyc_pack_pairs(const float *row, uint8_t *pairs, int from, int to) {
#if defined(__AVX512BF16__)
    int i = from * PYC_PANEL;
    for (; i + 2 * PYC_PANEL <= to * PYC_PANEL; i += 2 * PYC_PANEL) {
        const pyc_bf16v whole = pyc_vcvtne2ps2bf16(pyc_load_f32v(row + i + PYC_PANEL), pyc_load_f32v(row + i));
        memcpy(pairs + 2 * i, &whole, sizeof whole);
    }
    for (; i < to * PYC_PANEL; i += PYC_PANEL) {
        const pyc_bf16h half = pyc_vcvtneps2bf16(pyc_load_f32v(row + i));
        memcpy(pairs + 2 * i, &half, sizeof half);
    }
#endif
}

/* A row of f32 -> e4m3, also in the first quarter of its place; returns the scale. */
PYC_INLINE float pyc_pack_e4m3(const float *row, uint8_t *to, const int features) {
    const float largest = pyc_largest_magnitude(row, features), inverse = largest < 1e-35f ? 0 : 448.0f / largest;
    for (int i = 0; i < features; i += PYC_LANES) {
        const pyc_u8v codes = pyc_e4m3_codes(pyc_load_f32v(row + i) * inverse);
        memcpy(to + i, &codes, sizeof codes);
    }
    return largest / 448.0f;
}

/* A key or value, f32 [features], in the cache's type: where it is, or in `to`. Sets the scale of int8 and fp8. */
PYC_INLINE const uint8_t *pyc_pack_row(const int kind, const float *row, uint8_t *to, float *scale,
                                       const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim);
    if (kind == PYC_CACHE_F32) return (const uint8_t *)row;
    if (kind == PYC_CACHE_F16)
        for (int i = 0; i < features; i += PYC_LANES) {
            typedef _Float16 pyc_f16v __attribute__((ext_vector_type(PYC_LANES)));
            const pyc_f16v halves = __builtin_convertvector(pyc_load_f32v(row + i), pyc_f16v);
            memcpy(to + 2 * i, &halves, sizeof halves);
        }
    if (kind == PYC_CACHE_BF16) pyc_pack_pairs(row, to, 0, features / PYC_PANEL);
    if (kind == PYC_CACHE_FP8) *scale = pyc_pack_e4m3(row, to, features);
    if (kind == PYC_CACHE_INT8) {
        int32_t total;
        *scale = pyc_pack_codes(row, (int8_t *)to, features, &total);
        for (int i = 0; i < features; i += PYC_PANEL) {
            typedef uint8_t codes __attribute__((ext_vector_type(PYC_PANEL)));
            codes shifted;
            memcpy(&shifted, to + i, sizeof shifted);
            shifted ^= (uint8_t)0x80;
            memcpy(to + i, &shifted, sizeof shifted);
        }
    }
    return to;
}

/* A key, f32 [features], to slot `slot` of a block; `row` has room for it. */
PYC_INLINE void pyc_store_key(const float *key, uint8_t *row, uint8_t *keys, int slot, const struct pyc_attention a) {
    const int quad = PYC_QUAD * PYC_LANE_BYTES(a.kind),
              quads = PYC_FEATURES(a.head_dim) / (PYC_QUAD * PYC_STEP(a.kind));
    float scale;
    const uint8_t *from = pyc_pack_row(a.kind, key, row, &scale, a);
    uint8_t *to = keys + PYC_KEY_AT(slot, a.head_dim, a.kind);
    PYC_SCATTERED for (int i = 0; i < quads; i++) memcpy(to + i * PYC_QUAD * quad, from + i * quad, (size_t)quad);
    if (PYC_HAS_SCALES(a.kind)) memcpy(keys + PYC_SCALES_AT(a.head_dim, a.kind) + 4 * slot, &scale, 4);
}

/* A number of 4 / step bytes to part `part` of each lane; the others are written by other threads. */
PYC_INLINE void pyc_store_parts(uint8_t *lanes, const uint8_t *from, const int features, const int step, int part) {
    const int bytes = 4 / step;
#if defined(__AVX512BW__)
    /* One store a line: more of them wait in the queue for lines that come from memory. */
    for (int i = 0; i < features; i += PYC_PANEL) {
        if (step == 2) {
            const pyc_u32v wide = __builtin_convertvector(pyc_load_u16v(from + i * bytes), pyc_u32v);
            pyc_vmovdqu16_some(lanes + 4 * i, 0x55555555u << part, wide << 16 * part);
        } else {
            const pyc_u32v wide = __builtin_convertvector(pyc_load_u8v(from + i * bytes), pyc_u32v);
            pyc_vmovdqu8_some(lanes + 4 * i, 0x1111111111111111u << part, wide << 8 * part);
        }
    }
#else
    PYC_SCATTERED for (int i = 0; i < features; i++)
        memcpy(lanes + 4 * i + part * bytes, from + i * bytes, (size_t)bytes);
#endif
}

/* The same for a value. */
PYC_INLINE void pyc_store_value(const float *value, uint8_t *row, uint8_t *values, int slot,
                                const struct pyc_attention a) {
    const int step = PYC_STEP(a.kind), features = PYC_FEATURES(a.head_dim);
    float scale;
    const uint8_t *from = pyc_pack_row(a.kind, value, row, &scale, a);
    uint8_t *lanes = values + (ptrdiff_t)(slot / step) * features * PYC_LANE_BYTES(a.kind);
    if (step == 1)
        pyc_copy((float *)lanes, (const float *)from, features * PYC_VALUE_BYTES(a.kind) / 4);
    else
        pyc_store_parts(lanes, from, features, step, slot % step);
    if (PYC_HAS_SCALES(a.kind)) memcpy(values + PYC_SCALES_AT(a.head_dim, a.kind) + 4 * slot, &scale, 4);
}

#endif
