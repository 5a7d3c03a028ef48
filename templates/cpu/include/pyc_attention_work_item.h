/* The rows that one call of attention works on together, and what they take from block to block.
 *
 * A work item is up to PYC_ITEM_ROWS rows of one head that read the same keys and values, or those of a single token of
 * several neighbouring heads (pyc_attention_token.h). Keys and values come in blocks of 64 positions; each KV block is
 * taken in row blocks (pyc_attention_register_blocks.h). 512 positions are a KV split: it is summed on its own and KV
 * splits are merged in order. All of it lies at absolute positions, so that a result depends neither on the row block,
 * the work item and the batch around the row, nor on how work items are shared out.
 */
#ifndef PYC_ATTENTION_WORK_ITEM_H
#define PYC_ATTENTION_WORK_ITEM_H

#include "pyc_amx.h"
#include "pyc_attention_register_blocks.h"

/* Enough rows to read a block from the second-level cache at no cost, few enough to balance threads. */
#if PYC_HAS_TILES
#define PYC_ITEM_ROWS 256
#else
#define PYC_ITEM_ROWS 96
#endif
#define PYC_SPLIT_BLOCKS 8
/* The most rows of a single token's work item, and of each of its heads. */
#define PYC_TOKEN_ROWS 16
#define PYC_TOKEN_GROUP 8

/* Positions that a work item takes at a time, and tiles of a head's features, where it is done by AMX tiles
 * (pyc_attention_amx.h).
 * */
#define PYC_SLAB_BLOCKS 4
#define PYC_SLAB (PYC_SLAB_BLOCKS * PYC_POSITIONS)
#define PYC_HEAD_TILES(head_dim) ((PYC_FEATURES(head_dim) + 31) / 32)

/* Bytes that a work item works in: queries, values of a KV split and of all, scores, and copies of keys and values. */
#define PYC_ITEM_BYTES(head_dim) (PYC_ITEM_ROWS * 3 * 4 * PYC_FEATURES(head_dim))
#define PYC_BLOCK_BYTES(head_dim, kind)   \
    (PYC_TOKEN_ROWS * PYC_POSITIONS * 4 + \
     (PYC_IS_WIDENED(kind) ? 2 * PYC_HEAD_BYTES(head_dim, PYC_WIDE(kind)) : 0))
#define PYC_SLAB_BYTES(head_dim) \
    (PYC_SLAB * (2 * PYC_TILE_ROWS * 4 + PYC_HEAD_TILES(head_dim) * 64 + PYC_FEATURES(head_dim) * 2 + 2 * 4))
#define PYC_ATTENTION_SCRATCH(head_dim, kind, amx) \
    (PYC_ITEM_BYTES(head_dim) +                    \
     ((amx) && PYC_FITS_TILES(kind) ? PYC_SLAB_BYTES(head_dim) : PYC_BLOCK_BYTES(head_dim, kind)))

struct pyc_work_item {
    int count;   /* rows, of each head as many */
    int kv_head; /* the first of `heads` */
    int heads;
    int is_token;
    int splits;     /* that are done; the values of a single one stay where they are */
    uint8_t *query; /* as the register blocks multiply it: f32, pairs of bf16 or int8; a row takes 4 bytes a feature */
    float *value;   /* [rows, features] of the KV split at hand */
    float *whole;   /* [rows, features] of those before it */
    float *score;   /* [PYC_ROWS or PYC_TOKEN_ROWS, 64], or by AMX tiles [32, 256] */
    float *block;   /* keys and values of a block as f32 */
    uint8_t *keys;  /* keys and values of a slab as operands of the tile unit */
    uint8_t *values;
    float *key_scale; /* of its int8 or fp8 */
    float *value_scale;
    int first[PYC_ITEM_ROWS]; /* positions that a row sees: [first, last] */
    int last[PYC_ITEM_ROWS];
    float query_scale[PYC_ITEM_ROWS];
    int32_t query_total[PYC_ITEM_ROWS];
    struct pyc_row row[PYC_ITEM_ROWS];
    struct pyc_row merged[PYC_ITEM_ROWS];
};

/* The places of the work item's arrays. */
PYC_INLINE void pyc_place_item(struct pyc_work_item *item, uint8_t *scratch, const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim);
    item->query = scratch;
    item->value = (float *)(scratch + PYC_ITEM_ROWS * 4 * features);
    item->whole = item->value + PYC_ITEM_ROWS * features;
    item->score = item->whole + PYC_ITEM_ROWS * features;
    item->block = item->score + PYC_TOKEN_ROWS * PYC_POSITIONS;
    item->keys = (uint8_t *)(item->score + 2 * PYC_TILE_ROWS * PYC_SLAB);
    item->values = item->keys + PYC_SLAB * PYC_HEAD_TILES(a.head_dim) * 64;
    item->key_scale = (float *)(item->values + PYC_SLAB * features * 2);
    item->value_scale = item->key_scale + PYC_SLAB;
}

/* Row r sees positions [first, last]. */
PYC_INLINE void pyc_begin_item_row(struct pyc_work_item *item, int r, int first, int last) {
    item->first[r] = first;
    item->last[r] = last;
    item->splits = 0;
}

/* What some row of several sees, [first, last], and what all of them do. */
struct pyc_seen {
    int first, last, all_first, all_last;
};

PYC_INLINE struct pyc_seen pyc_seen_by(const struct pyc_work_item *item, int r, int count) {
    struct pyc_seen seen = {item->first[r], item->last[r], item->first[r], item->last[r]};
    for (int i = r + 1; i < r + count; i++) {
        const int low = item->first[i], high = item->last[i];
        seen.first = low < seen.first ? low : seen.first;
        seen.last = high > seen.last ? high : seen.last;
        seen.all_first = low > seen.all_first ? low : seen.all_first;
        seen.all_last = high < seen.all_last ? high : seen.all_last;
    }
    return seen;
}

/* Whether some row does not see all positions [from, to). */
PYC_INLINE int pyc_hides(const struct pyc_seen seen, int from, int to) {
    return seen.all_first > from || seen.all_last < to - 1;
}

/* The query of row r. */
PYC_INLINE void pyc_take_query(struct pyc_work_item *item, int r, const float *query, const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim);
    uint8_t *to = item->query + (ptrdiff_t)r * features * 4;
    const float *whole = pyc_whole_head(query, (float *)to, a.head_dim);
    if (a.kind == PYC_CACHE_BF16)
        pyc_pack_pairs(whole, to, 0, features / PYC_PANEL);
    else if (a.kind == PYC_CACHE_INT8)
        item->query_scale[r] =
            pyc_pack_codes(whole, (int8_t *)to, features, &item->query_total[r]) * (a.scale * PYC_LOG2_E);
    else if (whole == query)
        pyc_copy((float *)to, query, features);
}

/* pyc_row_block_weights for groups [from, to); what is horizontal or scalar in a row is done for all rows side by side.
 */
PYC_INLINE void pyc_group_weights(const int kind, const int masked, int count, int rows, ptrdiff_t pitch,
                                  struct pyc_work_item *item,
                                  float *score, int r, int start, int from, int to, const uint8_t *value_scale) {
    float numbers[2 * PYC_PANEL] = {0};
    for (int i = 0; i < count; i++) {
        struct pyc_row *row = item->row + r + i;
        const float largest = pyc_largest_score(masked, score + i * PYC_POSITIONS, start, from, to,
                                                item->first[r + i], item->last[r + i]);
        const float before = row->maximum;
        row->maximum = largest > before ? largest : before;
        numbers[i] = before - row->maximum;
    }
    for (int i = 0; i < count; i += PYC_LANES) {
        const pyc_f32v corrections = pyc_exp2(pyc_load_f32v(numbers + i));
        memcpy(numbers + PYC_PANEL + i, &corrections, sizeof corrections);
    }
    for (int i = 0; i < count; i++) {
        item->row[r + i].correction = numbers[PYC_PANEL + i];
        numbers[i] = pyc_row_weights(masked, PYC_HAS_SCALES(kind), item->row + r + i, score + i * PYC_POSITIONS,
                                     (const float *)(value_scale + i / rows * pitch), from, to);
    }
    for (int i = 0; i < count; i++) {
        struct pyc_row *row = item->row + r + i;
        float *weight = score + i * PYC_POSITIONS;
        if (kind == PYC_CACHE_BF16) pyc_pack_pairs(weight, (uint8_t *)weight, from, to);
        if (kind == PYC_CACHE_INT8) {
            row->scale = numbers[i] / 127.0f;
            row->total = pyc_make_codes(weight, (int8_t *)weight, from, to, pyc_code_inverse(numbers[i]));
        }
    }
}

/* Scores to weights as the value register blocks multiply them, for rows [r, r + count) of the work item and groups
 * [from, to) of 16 positions. A head has `rows` of these rows, and the next one's scales of values are `pitch` bytes
 * further on. One function for row blocks of all sizes: inlined into each, it was a third of the time to compile. */
PYC_OUTLINE void pyc_row_block_weights(const int kind, int count, int rows, ptrdiff_t pitch, struct pyc_work_item *item,
                                       float *score, int r,
                                  int masked, int start, int from, int to, const uint8_t *value_scale) {
    const int all = PYC_POSITIONS / PYC_PANEL;
    if (masked)
        pyc_group_weights(kind, 1, count, rows, pitch, item, score, r, start, from, to, value_scale);
    else if (from == 0 && to == all)
        pyc_group_weights(kind, 0, count, rows, pitch, item, score, r, start, 0, all, value_scale);
    else
        pyc_group_weights(kind, 0, count, rows, pitch, item, score, r, start, from, to, value_scale);
}

/* What rows that see positions as `seen_by` says have of the block at position `start`: groups [from, to) of 16
 * positions, of which the last ends with position `end` of the block. */
struct pyc_reach {
    int from, to, end, masked;
};

PYC_INLINE struct pyc_reach pyc_reach_of(const struct pyc_seen seen_by, int start) {
    const int end = seen_by.last < start + PYC_POSITIONS ? seen_by.last - start + 1 : PYC_POSITIONS;
    const int from = seen_by.first > start ? (seen_by.first - start) / PYC_PANEL : 0,
              to = (end + PYC_PANEL - 1) / PYC_PANEL;
    return (struct pyc_reach){from, to, end, pyc_hides(seen_by, start + from * PYC_PANEL, start + to * PYC_PANEL)};
}

/* Where the part that is read next lies. The end of a part is prefetched again beside the start of the one behind it,
 * unless the parts are not whole and it is not read. */
PYC_INLINE struct pyc_prefetch pyc_prefetch_of(ptrdiff_t bytes, const struct pyc_reach reach) {
    return (struct pyc_prefetch){bytes, reach.from == 0 && reach.end == PYC_POSITIONS ? PYC_PREFETCH_AGAIN : 0};
}

/* Scores f32 [R][64] of rows [r, r + R) of the work item, by the keys of their head. */
PYC_INLINE void pyc_score_rows(const int kind, const int R, struct pyc_work_item *item, int r, float *score,
                               const uint8_t *keys, ptrdiff_t next, const struct pyc_reach reach,
                               const struct pyc_attention a) {
    const struct pyc_prefetch prefetch = pyc_prefetch_of(next, reach);
    const int features = PYC_FEATURES(a.head_dim);
    const float *scale = (const float *)(keys + PYC_SCALES_AT(a.head_dim, kind));
    for (int group = reach.from; group < reach.to; group++)
        pyc_score_register_block(kind, R, score + group * PYC_PANEL, item->query + (ptrdiff_t)r * features * 4,
                                 features * 4, item->query_scale + r, item->query_total + r,
                                 keys + group * PYC_QUAD * PYC_KEY_SET(a.head_dim, kind), scale + group * PYC_PANEL,
                                 prefetch, a);
}

/* Their weights, which are where scores were, by the values of their head. */
PYC_INLINE void pyc_value_rows(const int kind, const int R, struct pyc_work_item *item, int r, const float *score,
                               const uint8_t *values, ptrdiff_t next, const struct pyc_reach reach,
                               const struct pyc_attention a) {
    const struct pyc_prefetch prefetch = pyc_prefetch_of(next, reach);
    const int features = PYC_FEATURES(a.head_dim), step = PYC_STEP(kind);
    const int V = PYC_VALUE_VECTORS(R) * PYC_LANES <= features ? PYC_VALUE_VECTORS(R) : PYC_COLUMNS;
    const int skipped = reach.from * PYC_PANEL / step, count = (reach.end + step - 1) / step - skipped;
    const uint8_t *weights = (const uint8_t *)score + skipped * 4;
    const uint8_t *seen = values + (ptrdiff_t)skipped * features * PYC_LANE_BYTES(kind);
    float *value = item->value + (ptrdiff_t)r * features;
    int f = 0;
#define PYC_VALUES(vectors)                                                                                        \
    pyc_value_register_block(kind, R, vectors, item->row + r, weights, seen + f * PYC_LANE_BYTES(kind), value + f, \
                             count, prefetch, a)
    for (; f + V * PYC_LANES <= features; f += V * PYC_LANES) PYC_VALUES(V);
    if (V > PYC_COLUMNS)
        for (; f < features; f += PYC_PANEL) PYC_VALUES(PYC_COLUMNS);
#undef PYC_VALUES
}

/* The most rows of a row block of a cache as it lies: of f16 and fp8 more are converted (pyc_attend_by_blocks). */
#define PYC_MOST_ROWS(kind) (PYC_IS_WIDENED(kind) ? 4 : PYC_ROWS)

/* pyc_score_rows and pyc_value_rows with the constants of a kind and a head: a function for each R, which all that
 * attends to a cache calls. Inlined they were one large function, and half of what a library takes to compile. */
typedef void (*pyc_rows_call)(struct pyc_work_item *item, int r, float *score, const uint8_t *cached, ptrdiff_t next,
                              struct pyc_reach reach);
struct pyc_row_block_calls {
    pyc_rows_call scores[7], values[7]; /* by R */
};

#define PYC_ROWS_CALL(name, does, R, kind, ...)                                                             \
    __attribute__((unused)) PYC_OUTLINE void name##does##R(struct pyc_work_item *item, int r, float *score, \
                                                           const uint8_t *cached, ptrdiff_t next,           \
                                                           const struct pyc_reach reach) {                  \
        pyc##does##rows(kind, R, item, r, score, cached, next, reach, __VA_ARGS__);                         \
    }
#define PYC_EACH_ROWS_CALL(name, does, ...)   \
    PYC_ROWS_CALL(name, does, 1, __VA_ARGS__) \
    PYC_ROWS_CALL(name, does, 2, __VA_ARGS__) \
    PYC_ROWS_CALL(name, does, 4, __VA_ARGS__) \
    PYC_ROWS_CALL(name, does, 6, __VA_ARGS__)
/* PYC_ROW_BLOCKS_OF(name, kind, constants of a head) defines them, PYC_ROW_BLOCK_CALLS(name, most) names those of up to
 * `most` rows: what is not named is not compiled. */
#define PYC_ROW_BLOCKS_OF(name, ...)               \
    PYC_EACH_ROWS_CALL(name, _score_, __VA_ARGS__) \
    PYC_EACH_ROWS_CALL(name, _value_, __VA_ARGS__)
#define PYC_NAMED(name, R, most) ((R) <= PYC_ROWS && (R) <= (most) ? name##R : NULL)
#define PYC_EACH_NAMED(name, most)                                                             \
    {NULL, PYC_NAMED(name, 1, most), PYC_NAMED(name, 2, most), NULL, PYC_NAMED(name, 4, most), \
     NULL, PYC_NAMED(name, 6, most)}
#define PYC_ROW_BLOCK_CALLS(name, most) \
    ((struct pyc_row_block_calls){PYC_EACH_NAMED(name##_score_, most), PYC_EACH_NAMED(name##_value_, most)})

/* Rows [r, r + R) of the work item over the block at positions [start, start + 64). */
PYC_INLINE void pyc_attend_row_block(const int kind, const int R, const struct pyc_row_block_calls calls,
                                     struct pyc_work_item *item, int r,
                                const uint8_t *keys, const uint8_t *values, ptrdiff_t prefetch, int start,
                                const struct pyc_attention a) {
    const struct pyc_seen seen_by = pyc_seen_by(item, r, R);
    if (seen_by.last < start || seen_by.first >= start + PYC_POSITIONS) return;
    const struct pyc_reach reach = pyc_reach_of(seen_by, start);
    calls.scores[R](item, r, item->score, keys, prefetch, reach);
    pyc_row_block_weights(kind, R, R, 0, item, item->score, r, reach.masked, start, reach.from, reach.to,
                     values + PYC_SCALES_AT(a.head_dim, kind));
    calls.values[R](item, r, item->score, values, prefetch, reach);
}

/* Rows [from, rows) in row blocks, r being the first of each. */
#define PYC_IN_ROW_BLOCKS(from, rows, attend)                              \
    do {                                                                   \
        int r = (from);                                                    \
        if (PYC_ROWS >= 4)                                                 \
            for (; r + 4 <= (rows); r += 4) attend(PYC_ROWS >= 4 ? 4 : 2); \
        for (; r + 2 <= (rows); r += 2) attend(2);                         \
        if (r < (rows)) attend(1);                                         \
    } while (0)

/* All rows of the work item over one block. */
PYC_INLINE void pyc_attend_block(const int kind, const struct pyc_row_block_calls calls, struct pyc_work_item *item,
                                 const uint8_t *keys,
                                 const uint8_t *values, ptrdiff_t prefetch, int start, const struct pyc_attention a) {
    int taken = 0;
    if (PYC_MOST_ROWS(kind) == 6)
        for (; taken + 6 <= item->count && item->count > 8; taken += 6)
            pyc_attend_row_block(kind, PYC_ROWS, calls, item, taken, keys, values, prefetch, start, a);
#define PYC_ATTEND(R) pyc_attend_row_block(kind, R, calls, item, r, keys, values, prefetch, start, a)
    PYC_IN_ROW_BLOCKS(taken, item->count, PYC_ATTEND);
#undef PYC_ATTEND
}

/* Sums and values of a KV split start at nothing. */
PYC_INLINE void pyc_begin_split(struct pyc_work_item *item, const struct pyc_attention a) {
    if (item->splits == 1) {
        float *value = item->value;
        item->value = item->whole;
        item->whole = value;
        memcpy(item->merged, item->row, (size_t)item->count * sizeof *item->row);
    }
    for (int r = 0; r < item->count; r++) pyc_begin_row(item->row + r);
    memset(item->value, 0, (size_t)item->count * PYC_FEATURES(a.head_dim) * 4);
}

/* to [n] = to * kept + from * added; n is whole vectors. */
PYC_INLINE void pyc_merge(float *to, float kept, const float *from, float added, const int n) {
    PYC_ROLLED for (int i = 0; i < n; i += PYC_LANES) {
        const pyc_f32v sum = pyc_load_f32v(to + i) * kept + pyc_load_f32v(from + i) * added;
        memcpy(to + i, &sum, sizeof sum);
    }
}

/* Adds the KV split at hand to those before it. */
PYC_INLINE void pyc_merge_split(struct pyc_work_item *item, const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim);
    for (int r = 0; item->splits && r < item->count; r++) {
        struct pyc_row *merged = item->merged + r, *row = item->row + r;
        const float largest = row->maximum > merged->maximum ? row->maximum : merged->maximum;
        const float kept = pyc_exp2_one(merged->maximum - largest), added = pyc_exp2_one(row->maximum - largest);
        merged->maximum = largest;
        pyc_merge(merged->sum, kept, row->sum, added, PYC_PANEL);
        pyc_merge(item->whole + (ptrdiff_t)r * features, kept, item->value + (ptrdiff_t)r * features, added, features);
    }
    item->splits++;
}

/* The result of row r, f32 [head_dim]. */
PYC_INLINE void pyc_give_row(const struct pyc_work_item *item, int r, float *to, const struct pyc_attention a) {
    const int single = item->splits == 1;
    const struct pyc_row *row = (single ? item->row : item->merged) + r;
    float sum = 0;
    for (int i = 0; i < PYC_PANEL; i++) sum += row->sum[i];
    const float inverse = 1.0f / sum;
    const float *whole = (single ? item->value : item->whole) + (ptrdiff_t)r * PYC_FEATURES(a.head_dim);
    int i = 0;
    PYC_ROLLED for (; i + PYC_LANES <= a.head_dim; i += PYC_LANES) {
        const pyc_f32v value = pyc_load_f32v(whole + i) * inverse;
        memcpy(to + i, &value, sizeof value);
    }
    for (; i < a.head_dim; i++) to[i] = whole[i] * inverse;
}

#endif
