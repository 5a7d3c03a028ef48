/* What attention needs of a stacked row q | k | v: normalised and rotated queries, keys and values in the cache.
 *
 *   head = head / sqrt(mean(head^2) + epsilon) * gain     queries and keys, where the model has gains
 *   (x, y) = (x cos - y sin, y cos + x sin)               pairs (i, i + half) of the first 2 * half features
 *
 * A work item is 16 tokens, read one after another: a head at a time over many tokens made each read a page of its own.
 * The lines of the cache that neighbouring positions share stay in the second-level cache. Up to 16 tokens are a work
 * item for each key head and its queries: a key's features go to as many lines, so a step waits for memory here, on
 * every thread. No two tokens write the same byte.
 */
#ifndef PYC_QKV_APPEND_H
#define PYC_QKV_APPEND_H

#include "pyc_pack.h"
#include "pyc_work_partition.h"

#define PYC_ITEM_TOKENS 16

struct pyc_append {
    struct pyc_attention attention;
    int half; /* pairs of features that rotate */
    float epsilon;
};

/* out = head [features] / sqrt(mean of squares + epsilon) * gain [head_dim]. */
PYC_INLINE void pyc_normalise_head(const float *head, float *out, const float *gain, const int head_dim,
                                   float epsilon) {
    pyc_f32v squares[PYC_COLUMNS];
    PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) squares[c] = 0;
    for (int i = 0; i < PYC_FEATURES(head_dim); i += PYC_PANEL) PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
        const pyc_f32v x = pyc_load_f32v(head + i + c * PYC_LANES);
        squares[c] = pyc_fma(x, x, squares[c]);
    }
    float sum = 0;
    PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++)
        PYC_UNROLL for (int lane = 0; lane < PYC_LANES; lane++) sum += squares[c][lane];
    const float inverse = 1.0f / __builtin_sqrtf(sum / (float)head_dim + epsilon);
    int i = 0;
    for (; i + PYC_LANES <= head_dim; i += PYC_LANES) {
        const pyc_f32v x = pyc_load_f32v(head + i) * inverse * pyc_load_f32v(gain + i);
        memcpy(out + i, &x, sizeof x);
    }
    PYC_ROLLED for (; i < head_dim; i++) out[i] = head[i] * inverse * gain[i];
}

/* Rotates the pairs (i, i + half) of out by `half` cosines and `half` sines. */
PYC_INLINE void pyc_rotate_head(float *out, const float *angles, const int half) {
    int i = 0;
    for (; i + PYC_LANES <= half; i += PYC_LANES) {
        const pyc_f32v x = pyc_load_f32v(out + i), y = pyc_load_f32v(out + half + i);
        const pyc_f32v cosine = pyc_load_f32v(angles + i), sine = pyc_load_f32v(angles + half + i);
        const pyc_f32v left = x * cosine - y * sine, right = y * cosine + x * sine;
        memcpy(out + i, &left, sizeof left);
        memcpy(out + half + i, &right, sizeof right);
    }
    PYC_ROLLED for (; i < half; i++) {
        const float x = out[i], y = out[half + i], cosine = angles[i], sine = angles[half + i];
        out[i] = x * cosine - y * sine;
        out[half + i] = y * cosine + x * sine;
    }
}

/* One query or key, normalised when gain is given, and rotated, to out [features]. */
PYC_INLINE void pyc_prepare_head(const float *head, const float *gain, const float *angles, float *out,
                                 const struct pyc_append p) {
    const int d = p.attention.head_dim;
    const float *whole = pyc_whole_head(head, out, d);
    if (gain)
        pyc_normalise_head(whole, out, gain, d, p.epsilon);
    else if (whole == head)
        pyc_copy(out, head, d);
    pyc_rotate_head(out, angles, p.half);
}

/* What the heads of a batch are prepared by, and where they go. Gains may be NULL. */
struct pyc_append_arguments {
    const float *angles;
    const int32_t *positions, *sequences, *block_table;
    const float *q_gain, *k_gain;
    uint8_t *cache;
    float *queries;
};

/* Query `h` of token t. `row` holds PYC_FEATURES(head_dim) f32. */
PYC_INLINE void pyc_append_query(int t, int h, const float *head, const struct pyc_append_arguments to, float *row,
                                 const struct pyc_append p) {
    const int d = p.attention.head_dim;
    float *query = to.queries + ((ptrdiff_t)t * p.attention.heads + h) * d, *out = d == PYC_FEATURES(d) ? query : row;
    pyc_prepare_head(head, to.q_gain, to.angles + (ptrdiff_t)t * 2 * p.half, out, p);
    if (out == row) pyc_copy(query, row, d);
}

/* Key `h` of token t, whose position is not negative; the place of its value is pyc_values_after further. */
PYC_INLINE uint8_t *pyc_place_of(int t, int h, const struct pyc_append_arguments to, const struct pyc_attention a) {
    const int block = to.positions[t] / PYC_POSITIONS;
    return to.cache + pyc_keys_at(to.block_table[(ptrdiff_t)to.sequences[t] * a.table_width + block], h, a);
}

PYC_INLINE void pyc_append_key(int t, const float *head, uint8_t *keys, const struct pyc_append_arguments to,
                               float *row, const struct pyc_append p) {
    pyc_prepare_head(head, to.k_gain, to.angles + (ptrdiff_t)t * 2 * p.half, row, p);
    pyc_store_key(row, (uint8_t *)row, keys, to.positions[t] % PYC_POSITIONS, p.attention);
}

PYC_INLINE void pyc_append_value(int t, const float *head, uint8_t *keys, const struct pyc_append_arguments to,
                                 float *row, const struct pyc_append p) {
    const struct pyc_attention a = p.attention;
    pyc_store_value(pyc_whole_head(head, row, a.head_dim), (uint8_t *)row, keys + pyc_values_after(a),
                    to.positions[t] % PYC_POSITIONS, a);
}

/* Token t: queries, keys and values of the key/value heads [start, stop); nothing is stored for a negative position. */
PYC_INLINE void pyc_append_token(int t, int start, int stop, const float *qkv, const struct pyc_append_arguments to,
                                 float *row, const struct pyc_append p) {
    const struct pyc_attention a = p.attention;
    const int d = a.head_dim, group = a.heads / a.kv_heads;
    const float *heads = qkv + (ptrdiff_t)t * (a.heads + 2 * a.kv_heads) * d;
    PYC_ROLLED for (int h = start * group; h < stop * group; h++)
        pyc_append_query(t, h, heads + (ptrdiff_t)h * d, to, row, p);
    if (to.positions[t] < 0) return;
    PYC_ROLLED for (int h = start; h < stop; h++) {
        const float *key = heads + (ptrdiff_t)(a.heads + h) * d;
        uint8_t *keys = pyc_place_of(t, h, to, a);
        pyc_append_key(t, key, keys, to, row, p);
        pyc_append_value(t, key + (ptrdiff_t)a.kv_heads * d, keys, to, row, p);
    }
}

/* Part `part` of `parts` of m tokens. */
PYC_INLINE int32_t pyc_qkv_append(const float *qkv, const struct pyc_append_arguments to, int32_t m, int32_t part,
                                  int32_t parts, float *row, const struct pyc_append p) {
    const int runs = (m + PYC_ITEM_TOKENS - 1) / PYC_ITEM_TOKENS, pieces = runs == 1 ? p.attention.kv_heads : 1;
    const int heads = p.attention.kv_heads / pieces, last = pyc_part_row(runs * pieces, part + 1, parts);
    for (int item = pyc_part_row(runs * pieces, part, parts); item < last; item++) {
        const int from = item / pieces * PYC_ITEM_TOKENS, start = item % pieces * heads;
        const int stop = from + PYC_ITEM_TOKENS < m ? from + PYC_ITEM_TOKENS : m;
        for (int t = from; t < stop; t++) pyc_append_token(t, start, start + heads, qkv, to, row, p);
    }
    return 0;
}

#endif
