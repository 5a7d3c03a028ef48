/* Register blocks of attention: R rows by V vectors of keys (scores) or of values, in registers.
 *
 * Cache kinds differ in what a lane holds (pyc_cache.h) and in the instruction that multiplies it with 4 bytes of a
 * row: f32, f16 and fp8 an f32 multiply-add, bf16 vdpbf16ps (pairs), int8 the integer dot product of pyc_dot.h (fours).
 * A sum over features is four sums, of every fourth lane, that start at zero; one over positions starts at each block.
 */
#ifndef PYC_ATTENTION_REGISTER_BLOCKS_H
#define PYC_ATTENTION_REGISTER_BLOCKS_H

#include "pyc_dot.h"
#include "pyc_pack.h"
#include "pyc_softmax.h"

/* The most rows of a register block, and how many vectors of values and of keys one of R rows takes: accumulators and
 * operands fit the registers, and there are enough of them to hide the latency of additions. With AVX-512 few rows read
 * keys one vector after the other: what comes from memory is one stream then, which the hardware looks ahead in, and
 * sums of the next set do not wait. */
#if defined(__AVX512F__)
#define PYC_ROWS 6
#define PYC_VALUE_VECTORS(R) ((R) > 2 ? 4 : 8)
#define PYC_KEY_VECTORS(R) ((R) > 4 ? 4 : 1)
#elif defined(__AVX2__)
#define PYC_ROWS 6
#define PYC_VALUE_VECTORS(R) ((R) > 2 ? 2 : 8 / (R))
#define PYC_KEY_VECTORS(R) ((R) > 2 ? 2 : 4)
#elif defined(__aarch64__)
#define PYC_ROWS 6
#define PYC_VALUE_VECTORS(R) ((R) > 2 ? 4 : 16 / (R))
#define PYC_KEY_VECTORS(R) 4
#else
#define PYC_ROWS 2
#define PYC_VALUE_VECTORS(R) 4
#define PYC_KEY_VECTORS(R) 4
#endif

/* Indices (a, b, c, d) of __builtin_shufflevector, and the same for each further four lanes, plus `step` a four. */
#if PYC_LANES == 16
#define PYC_IN_QUADS(a, b, c, d, step)                                                                      \
    a, b, c, d, (a) + (step), (b) + (step), (c) + (step), (d) + (step), (a) + 2 * (step), (b) + 2 * (step), \
        (c) + 2 * (step), (d) + 2 * (step), (a) + 3 * (step), (b) + 3 * (step), (c) + 3 * (step), (d) + 3 * (step)
#elif PYC_LANES == 8
#define PYC_IN_QUADS(a, b, c, d, step) a, b, c, d, (a) + (step), (b) + (step), (c) + (step), (d) + (step)
#else
#define PYC_IN_QUADS(a, b, c, d, step) a, b, c, d
#endif

/* With few rows the cache comes from memory: what is read next, which lies `bytes` further on, is prefetched while this
 * is read, into the second-level cache, and again when `again` more bytes have been read. What a core has too much
 * under way for, it forgets: prefetched once, 28 to 31 GB/s where two cores of a Zen 4 read 34 of int8, and 31 of bf16;
 * twice, 30 to 32 and 33. */
#define PYC_PREFETCHES(R) ((R) <= 4)
#define PYC_PREFETCH_AGAIN 2048

struct pyc_prefetch {
    ptrdiff_t bytes, again;
};

PYC_INLINE void pyc_prefetch_twice(const uint8_t *from, const struct pyc_prefetch prefetch) {
    __builtin_prefetch(from + prefetch.bytes, 0, 2);
    __builtin_prefetch(from + prefetch.bytes - prefetch.again, 0, 2);
}

typedef pyc_f32v pyc_register_block[PYC_ROWS][16];

/* The lanes at `from`: values as f32 (fp8 times 2^-8), or as the cache has them (bf16, int8). */
PYC_INLINE pyc_f32v pyc_cached(const int kind, const uint8_t *from) {
    if (kind == PYC_CACHE_FP8) return pyc_e4m3_values(from);
    return kind == PYC_CACHE_F16 ? pyc_f16_values(pyc_load_u16v(from)) : pyc_load_f32v(from);
}

/* The `words` (1 or PYC_QUAD) words of 4 bytes at `from`, again and again. */
PYC_INLINE pyc_i32v pyc_repeat(const int words, const uint8_t *from) {
    if (words == 1) return (pyc_i32v)pyc_load_i32(from);
    int32_t __attribute__((ext_vector_type(PYC_QUAD))) quad;
    memcpy(&quad, from, sizeof quad);
    return __builtin_shufflevector(quad, quad, PYC_IN_QUADS(0, 1, 2, 3, 0));
}

/* sum + lanes * row. */
PYC_INLINE pyc_f32v pyc_multiply(const int kind, pyc_f32v sum, pyc_f32v lanes, pyc_i32v row) {
    if (kind == PYC_CACHE_INT8) return (pyc_f32v)pyc_multiply_bytes((pyc_i32v)sum, (pyc_u32v)lanes, row);
#if defined(__AVX512BF16__)
    if (kind == PYC_CACHE_BF16) return pyc_vdpbf16ps(sum, (pyc_bf16v)lanes, (pyc_bf16v)row);
#endif
    return pyc_fma((pyc_f32v)row, lanes, sum);
}

/* sum[r][v] = the sum of `count` products of vector v of the cache with `words` words of row r. The vectors are `width`
 * bytes apart and each one's next `pitch` bytes further on; rows are `stride` bytes apart. */
PYC_INLINE void pyc_register_block_sum(const int kind, const int words, const int R, const int V,
                                       pyc_register_block sum, const uint8_t *rows, int stride, const uint8_t *cached,
                                       const int pitch, const int width, int count,
                                       const struct pyc_prefetch prefetch) {
    PYC_UNROLL for (int r = 0; r < R; r++) PYC_UNROLL
        for (int v = 0; v < V; v++) sum[r][v] = 0;
    PYC_ROLLED for (int i = 0; i < count; i++) {
        if (PYC_PREFETCHES(R))
            PYC_UNROLL for (int v = 0; v < V; v++)
                if (v * width % 64 == 0) pyc_prefetch_twice(cached + v * width, prefetch);
        pyc_f32v lanes[16];
        PYC_UNROLL for (int v = 0; v < V; v++) lanes[v] = pyc_cached(kind, cached + v * width);
        PYC_UNROLL for (int r = 0; r < R; r++) {
            const pyc_i32v row = pyc_repeat(words, rows + (ptrdiff_t)r * stride + 4 * words * i);
            PYC_UNROLL for (int v = 0; v < V; v++) sum[r][v] = pyc_multiply(kind, sum[r][v], lanes[v], row);
        }
        cached += pitch;
    }
}

/* Lane 4 k + j of pyc_fold(half(x0, x1), half(x2, x3)) is the sum of lanes [4 k, 4 k + 4) of xj, (0 + 2) + (1 + 3). */
PYC_INLINE pyc_f32v pyc_plus(const int kind, pyc_f32v a, pyc_f32v b) {
    return kind == PYC_CACHE_INT8 ? (pyc_f32v)((pyc_i32v)a + (pyc_i32v)b) : a + b;
}
PYC_INLINE pyc_f32v pyc_fold_half(const int kind, pyc_f32v a, pyc_f32v b) {
    return pyc_plus(kind, __builtin_shufflevector(a, b, PYC_IN_QUADS(0, PYC_LANES, 1, PYC_LANES + 1, 4)),
                    __builtin_shufflevector(a, b, PYC_IN_QUADS(2, PYC_LANES + 2, 3, PYC_LANES + 3, 4)));
}
PYC_INLINE pyc_f32v pyc_fold(const int kind, pyc_f32v a, pyc_f32v b) {
    return pyc_plus(kind, __builtin_shufflevector(a, b, PYC_IN_QUADS(0, 1, PYC_LANES, PYC_LANES + 1, 4)),
                    __builtin_shufflevector(a, b, PYC_IN_QUADS(2, 3, PYC_LANES + 2, PYC_LANES + 3, 4)));
}

/* The numbers of 16 positions in order: number 4 k + j is that of position 4 j + k. */
PYC_INLINE void pyc_order_positions(pyc_f32v *dot) {
    float __attribute__((ext_vector_type(PYC_PANEL))) all;
    memcpy(&all, dot, sizeof all);
    all = __builtin_shufflevector(all, all, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    memcpy(dot, &all, sizeof all);
}

/* Scores of R rows for a group of 16 positions; score f32 [R][64] points to it, as keys do. int8: query_scale and
 * query_total are those of the rows' codes; position_scale are the scales of the keys. */
PYC_INLINE void pyc_score_register_block(const int kind, const int R, float *score, const uint8_t *query, int stride,
                                         const float *query_scale, const int32_t *query_total, const uint8_t *keys,
                                         const float *position_scale, const struct pyc_prefetch prefetch,
                                         const struct pyc_attention a) {
    const int V = PYC_KEY_VECTORS(R), pitch = PYC_PANEL * PYC_LANE_BYTES(kind), width = PYC_KEY_SET(a.head_dim, kind);
    const int count = (a.head_dim + PYC_QUAD * PYC_STEP(kind) - 1) / (PYC_QUAD * PYC_STEP(kind));
    pyc_f32v dot[PYC_ROWS][PYC_COLUMNS];
    PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
        const uint8_t *at = keys + c * PYC_LANES * PYC_LANE_BYTES(kind);
        pyc_f32v set[PYC_QUAD][PYC_ROWS];
        PYC_UNROLL for (int j = 0; j < PYC_QUAD; j += V) {
            pyc_register_block sum;
            pyc_register_block_sum(kind, PYC_QUAD, R, V, sum, query, stride, at + j * width, pitch, width, count,
                                   prefetch);
            PYC_UNROLL for (int r = 0; r < R; r++) PYC_UNROLL
                for (int v = 0; v < V; v++) set[j + v][r] = sum[r][v];
        }
        PYC_UNROLL for (int r = 0; r < R; r++)
            dot[r][c] = pyc_fold(kind, pyc_fold_half(kind, set[0][r], set[1][r]),
                                 pyc_fold_half(kind, set[2][r], set[3][r]));
    }
    PYC_UNROLL for (int r = 0; r < R; r++) {
        pyc_order_positions(dot[r]);
        PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
            pyc_f32v t = dot[r][c];
            if (kind == PYC_CACHE_INT8) {
                const pyc_i32v sum = (pyc_i32v)t - PYC_INT8_ZERO * query_total[r];
                const pyc_f32v scale = pyc_load_f32v(position_scale + c * PYC_LANES);
                t = __builtin_convertvector(sum, pyc_f32v) * query_scale[r] * scale;
            } else if (PYC_IS_FP8(kind)) {
                t *= a.scale * PYC_LOG2_E * PYC_E4M3_UNIT;
                t *= pyc_load_f32v(position_scale + c * PYC_LANES);
            } else {
                t *= a.scale * PYC_LOG2_E;
            }
            memcpy(score + r * PYC_POSITIONS + c * PYC_LANES, &t, sizeof t);
        }
    }
}

/* value = c value + p V for R rows and V vectors of features, over `count` lanes of positions. */
PYC_INLINE void pyc_value_register_block(const int kind, const int R, const int V, struct pyc_row *rows,
                                         const uint8_t *weights, const uint8_t *values, float *value, int count,
                                         const struct pyc_prefetch prefetch, const struct pyc_attention a) {
    pyc_register_block sum;
    const int features = PYC_FEATURES(a.head_dim), pitch = features * PYC_LANE_BYTES(kind);
    pyc_register_block_sum(kind, 1, R, V, sum, weights, PYC_POSITIONS * 4, values, pitch,
                           PYC_LANES * PYC_LANE_BYTES(kind), count, prefetch);
    PYC_UNROLL for (int r = 0; r < R; r++) PYC_UNROLL
        for (int v = 0; v < V; v++) {
            float *at = value + (ptrdiff_t)r * features + v * PYC_LANES;
            pyc_f32v added = sum[r][v];
            if (kind == PYC_CACHE_INT8) {
                const pyc_i32v dot = (pyc_i32v)added - PYC_INT8_ZERO * rows[r].total;
                added = __builtin_convertvector(dot, pyc_f32v) * rows[r].scale;
            }
            if (PYC_IS_FP8(kind)) added *= PYC_E4M3_UNIT;
            added = pyc_fma(pyc_load_f32v(at), (pyc_f32v)rows[r].correction, added);
            memcpy(at, &added, sizeof added);
        }
}

#endif
