/* Tiles of attention: R rows by G groups of 16 positions (scores) or of 16 features (values), in registers.
 *
 * Cache kinds differ in what a lane holds (pyc_cache.h) and in the instruction that multiplies it with 4 bytes of a row,
 * broadcast: f32 and f16 an f32 multiply-add, bf16 vdpbf16ps (pairs), int8 the integer dot product of pyc_dot.h (fours).
 * A sum over features starts at zero and is never split; one over positions starts at each block.
 */
#ifndef PYC_ATTENTION_TILES_H
#define PYC_ATTENTION_TILES_H

#include "pyc_dot.h"
#include "pyc_pack.h"
#include "pyc_softmax.h"

/* The largest tile, and how many groups a tile of R rows takes: accumulators and operands fit the registers, and there
 * are enough of them to hide the latency of additions. */
#if defined(__AVX512F__)
#define PYC_ROWS 6
#define PYC_GROUPS(R) 4
#define PYC_FEATURE_GROUPS(R) ((R) > 2 ? 4 : 8)
#elif defined(__AVX2__)
#define PYC_ROWS 6
#define PYC_GROUPS(R) ((R) > 2 ? 1 : 4 / (R))
#elif defined(__aarch64__)
#define PYC_ROWS 6
#define PYC_GROUPS(R) ((R) > 2 ? 1 : 4 / (R))
#else
#define PYC_ROWS 2
#define PYC_GROUPS(R) 1
#endif
#ifndef PYC_FEATURE_GROUPS
#define PYC_FEATURE_GROUPS PYC_GROUPS
#endif

/* With few rows the cache comes from memory: the next block is asked for while this one is read. */
#define PYC_AHEAD(R) ((R) <= 4)

typedef pyc_f32v pyc_tile[PYC_ROWS][8][PYC_COLUMNS];

/* The lanes at `from`: values as f32, or as the cache has them (bf16, int8). */
PYC_INLINE pyc_f32v pyc_cached(const int kind, const uint8_t *from) {
    return kind == PYC_CACHE_F16 ? pyc_f16_values(pyc_load_u16v(from)) : pyc_load_f32v(from);
}

/* sum + lanes * (the 4 bytes of a row, in every lane). */
PYC_INLINE pyc_f32v pyc_multiply(const int kind, pyc_f32v sum, pyc_f32v lanes, int32_t word) {
    if (kind == PYC_CACHE_INT8) return (pyc_f32v)pyc_multiply_bytes((pyc_i32v)sum, (pyc_u32v)lanes, word);
#if defined(__AVX512BF16__)
    if (kind == PYC_CACHE_BF16)
        return (pyc_f32v)_mm512_dpbf16_ps((__m512)sum, (__m512bh)lanes, (__m512bh)_mm512_set1_epi32(word));
#endif
    return pyc_fma((pyc_f32v)(pyc_i32v)word, lanes, sum);
}

/* sum[r][g] = the products of `count` lanes of row r, `stride` bytes apart, with those of the cache, `pitch` apart. */
PYC_INLINE void pyc_tile_sum(const int kind, const int R, const int G, pyc_tile sum, const uint8_t *rows, int stride,
                             const uint8_t *cached, const int pitch, int count, ptrdiff_t ahead) {
    PYC_UNROLL for (int r = 0; r < R; r++) PYC_UNROLL for (int g = 0; g < G; g++)
        PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) sum[r][g][c] = 0;
    PYC_ROLLED for (int i = 0; i < count; i++) {
        if (PYC_AHEAD(R))
            PYC_UNROLL for (int at = 0; at < G * PYC_PANEL * PYC_LANE_BYTES(kind); at += 64)
                __builtin_prefetch(cached + ahead + at, 0, 2);
        pyc_f32v lanes[8][PYC_COLUMNS];
        PYC_UNROLL for (int g = 0; g < G; g++) PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++)
            lanes[g][c] = pyc_cached(kind, cached + (g * PYC_PANEL + c * PYC_LANES) * PYC_LANE_BYTES(kind));
        PYC_UNROLL for (int r = 0; r < R; r++) {
            const int32_t word = pyc_load_i32(rows + (ptrdiff_t)r * stride + 4 * i);
            PYC_UNROLL for (int g = 0; g < G; g++) PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++)
                sum[r][g][c] = pyc_multiply(kind, sum[r][g][c], lanes[g][c], word);
        }
        cached += pitch;
    }
}

/* Scores of R rows, times `factor`, for G groups of positions; score f32 [R][64] points to the first group, as keys do.
 * int8: rows->scale and rows->total are those of the queries, position_scale the scales of the keys. */
PYC_INLINE void pyc_score_tile(const int kind, const int R, const int G, float *score, const uint8_t *query, int stride,
                               const float *query_scale, const int32_t *query_total, const uint8_t *keys,
                               const float *position_scale, ptrdiff_t ahead, const struct pyc_attention a) {
    pyc_tile sum;
    const int count = (a.head_dim + PYC_STEP(kind) - 1) / PYC_STEP(kind);
    pyc_tile_sum(kind, R, G, sum, query, stride, keys, PYC_POSITIONS * PYC_LANE_BYTES(kind), count, ahead);
    PYC_UNROLL for (int r = 0; r < R; r++) PYC_UNROLL for (int g = 0; g < G; g++)
        PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
            const int at = g * PYC_PANEL + c * PYC_LANES;
            pyc_f32v t = sum[r][g][c];
            if (kind == PYC_CACHE_INT8) {
                const pyc_i32v dot = (pyc_i32v)t - PYC_INT8_ZERO * query_total[r];
                t = __builtin_convertvector(dot, pyc_f32v) * query_scale[r] * pyc_load_f32v(position_scale + at);
            } else {
                t *= a.scale * PYC_LOG2_E;
            }
            memcpy(score + r * PYC_POSITIONS + at, &t, sizeof t);
        }
}

/* value = c value + p V for R rows and G groups of features, over `count` lanes of positions. */
PYC_INLINE void pyc_value_tile(const int kind, const int R, const int G, struct pyc_row *rows, const uint8_t *weights,
                               const uint8_t *values, float *value, int count, ptrdiff_t ahead,
                               const struct pyc_attention a) {
    pyc_tile sum;
    const int features = PYC_FEATURES(a.head_dim);
    pyc_tile_sum(kind, R, G, sum, weights, PYC_POSITIONS * 4, values, features * PYC_LANE_BYTES(kind), count, ahead);
    PYC_UNROLL for (int r = 0; r < R; r++) PYC_UNROLL for (int g = 0; g < G; g++)
        PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
            float *at = value + (ptrdiff_t)r * features + g * PYC_PANEL + c * PYC_LANES;
            pyc_f32v added = sum[r][g][c];
            if (kind == PYC_CACHE_INT8) {
                const pyc_i32v dot = (pyc_i32v)added - PYC_INT8_ZERO * rows[r].total;
                added = __builtin_convertvector(dot, pyc_f32v) * rows[r].scale;
            }
            added = pyc_fma(pyc_load_f32v(at), (pyc_f32v)rows[r].correction, added);
            memcpy(at, &added, sizeof added);
        }
}

#endif
