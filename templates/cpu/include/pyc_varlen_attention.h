/* Attention of an encoder: row t of the stacked q | k | v sees rows [span_start[t], span_end[t]).
 *
 * A work item (pyc_attention_work_item.h) is neighbouring rows with one span. Blocks of the span's keys and values are
 * laid out as the cache would have them, in f32; the positions of a span begin at 0, so that a result depends on the
 * span alone.
 */
#ifndef PYC_VARLEN_ATTENTION_H
#define PYC_VARLEN_ATTENTION_H

#include "pyc_attention_work_item.h"

/* Bytes that a work item works in, a row of the block's among them. */
#define PYC_VARLEN_SCRATCH(head_dim) (PYC_ATTENTION_SCRATCH(head_dim, PYC_CACHE_F16, 0) + 4 * PYC_FEATURES(head_dim))

/* The end of the work item that starts with row n, and what it costs; 0 for rows with an empty span. */
PYC_INLINE int pyc_span_stop(int n, int m, const int32_t *start, const int32_t *end, int64_t *cost) {
    int stop = n + 1;
    while (stop < m && stop < n + PYC_ITEM_ROWS && start[stop] == start[n] && end[stop] == end[n]) stop++;
    const int length = end[n] - start[n];
    *cost = length > 0 ? (int64_t)(stop - n + 8) * (length + PYC_PANEL) : 0;
    return stop;
}

/* Rows [first, first + count) of the batch as one block; `keys` points to the first key, rows are `width` apart. Key
 * groups are filled up with zeros, which scores of masked positions are made of. */
PYC_INLINE void pyc_pack_block(struct pyc_work_item *item, const float *keys, int count, const int width,
                               const struct pyc_attention a) {
    float *row = item->block + 2 * PYC_POSITIONS * PYC_FEATURES(a.head_dim);
    uint8_t *packed = (uint8_t *)item->block, *values = packed + PYC_SCALES_AT(a.head_dim, a.kind);
    for (int i = 0; i < count; i++) {
        const float *key = keys + (ptrdiff_t)i * width;
        pyc_store_key(pyc_whole_head(key, row, a.head_dim), NULL, packed, i, a);
        pyc_store_value(pyc_whole_head(key + a.heads * a.head_dim, row, a.head_dim), NULL, values, i, a);
    }
    memset(row, 0, 4 * PYC_FEATURES(a.head_dim));
    for (int i = count; i % PYC_PANEL; i++) pyc_store_key(row, NULL, packed, i, a);
}

PYC_INLINE void pyc_attend_span(const struct pyc_row_block_calls calls, struct pyc_work_item *item, int n, int stop,
                                int head, const float *qkv, int start, int end, float *y,
                                const struct pyc_attention a) {
    const int features = a.heads * a.head_dim, width = 3 * features, length = end - start;
    float *to = y + (ptrdiff_t)n * features + head * a.head_dim;
    if (length <= 0) {
        for (int r = 0; r < stop - n; r++) memset(to + (ptrdiff_t)r * features, 0, (size_t)a.head_dim * 4);
        return;
    }
    item->count = stop - n;
    for (int r = 0; r < item->count; r++) {
        pyc_begin_item_row(item, r, 0, length - 1);
        pyc_take_query(item, r, qkv + (ptrdiff_t)(n + r) * width + head * a.head_dim, a);
    }
    const float *keys = qkv + (ptrdiff_t)start * width + features + head * a.head_dim;
    const uint8_t *packed = (const uint8_t *)item->block, *values = packed + PYC_SCALES_AT(a.head_dim, a.kind);
    for (int at = 0; at < length; at += PYC_POSITIONS) {
        const int left = length - at, b = at / PYC_POSITIONS;
        pyc_pack_block(item, keys + (ptrdiff_t)at * width, left < PYC_POSITIONS ? left : PYC_POSITIONS, width, a);
        if (b % PYC_SPLIT_BLOCKS == 0) pyc_begin_split(item, a);
        pyc_attend_block(a.kind, calls, item, packed, values, 0, at, a);
        if (left <= PYC_POSITIONS || (b + 1) % PYC_SPLIT_BLOCKS == 0) pyc_merge_split(item, a);
    }
    for (int r = 0; r < item->count; r++) pyc_give_row(item, r, to + (ptrdiff_t)r * features, a);
}

/* Part `part` of `parts` of the work items of m rows, heads outermost; parts cost about the same. */
PYC_INLINE int32_t pyc_varlen_attention(const struct pyc_row_block_calls calls, const float *qkv,
                                        const int32_t *span_start, const int32_t *span_end, float *y, int32_t m,
                                        int32_t part, int32_t parts, uint8_t *scratch, const struct pyc_attention a) {
    struct pyc_work_item item;
    pyc_place_item(&item, scratch, a);
    int64_t cost, total = 0; /* of a head */
    for (int n = 0; n < m; total += cost + 1) n = pyc_span_stop(n, m, span_start, span_end, &cost);
    const int64_t begin = total * a.heads * part / parts, end = total * a.heads * (part + 1) / parts;
    for (int head = (int)(begin / total); head * total < end; head++) {
        int64_t done = head * total;
        for (int n = 0; n < m; done += cost + 1) {
            const int stop = pyc_span_stop(n, m, span_start, span_end, &cost);
            const int64_t middle = done + (cost + 1) / 2;
            if (middle >= begin && middle < end)
                pyc_attend_span(calls, &item, n, stop, head, qkv, span_start[n], span_end[n], y, a);
            n = stop;
        }
    }
    return 0;
}

#endif
