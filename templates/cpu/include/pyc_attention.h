/* Attention of query rows over a paged cache (pyc_cache.h).
 *
 * Rows are the queries of all tokens and of the `group` heads that share a key/value head, row = token * group + head.
 * A work item (pyc_attention_work_item.h) is rows of one sequence and of one key/value head; of several where every
 * token is of a sequence of its own, as when sequences are decoded together.
 */
#ifndef PYC_ATTENTION_H
#define PYC_ATTENTION_H

#include "pyc_amx_rows.h"
#include "pyc_attention_amx.h"
#include "pyc_attention_kv_split.h"
#include "pyc_attention_token.h"

/* From so many rows on, f16 and fp8 are converted once for all of them. */
#define PYC_CONVERTED_ROWS 9
/* So few rows are those of single tokens, each with blocks of its own, which come from memory. */
#define PYC_EXPECTED_ROWS 64

/* What attention is called with: m tokens, those at negative positions padding, and where the result goes. */
struct pyc_batch {
    const float *queries;     /* [m, heads * head_dim] */
    const int32_t *positions; /* [m] */
    const int32_t *sequences; /* [m] */
    const int32_t *block_table;
    const uint8_t *cache;
    float *y; /* as the queries, or quantized rows */
    int m;
};

/* Keys or values of a head in a block, with their scales. */
PYC_INLINE void pyc_convert_block(float *to, const uint8_t *from, const struct pyc_attention a) {
    const int count = PYC_POSITIONS * PYC_FEATURES(a.head_dim);
    for (int i = 0; i < count; i += PYC_LANES) {
        const pyc_f32v values = pyc_cached(a.kind, from + i * PYC_LANE_BYTES(a.kind));
        memcpy(to + i, &values, sizeof values);
    }
    if (PYC_HAS_SCALES(a.kind))
        pyc_copy(to + count, (const float *)(from + PYC_SCALES_AT(a.head_dim, a.kind)), PYC_POSITIONS);
}

/* The first position that is seen from `position`. */
PYC_INLINE int pyc_first_seen(int position, const struct pyc_attention a) {
    return a.window && position >= a.window ? position - a.window + 1 : 0;
}

/* The largest row blocks of KV blocks that are converted to f32. */
#define PYC_MOST_WIDE_ROWS(kind) (PYC_IS_WIDENED(kind) ? PYC_ROWS : 0)

/* pyc_attend_by_blocks with the constants of a cache: one function for all kernels that attend to it. */
typedef void (*pyc_block_attention)(struct pyc_work_item *item, const int32_t *table, const uint8_t *cache, int begin,
                                    int end, const uint8_t *next);

/* Keys of a block of the work item's sequence; its values are pyc_values_after further. */
PYC_INLINE const uint8_t *pyc_block_keys(const struct pyc_work_item *item, const int32_t *table, const uint8_t *cache,
                                         int block, const struct pyc_attention a) {
    return cache + pyc_keys_at(table[block], item->kv_head, a);
}

/* The rows that are in the work item over blocks [begin, end] of their sequence. */
PYC_INLINE void pyc_attend_by_slabs(struct pyc_work_item *item, const int32_t *table, const uint8_t *cache, int begin,
                                    int end, const struct pyc_attention a) {
    const int held = pyc_seen_by(item, 0, item->count).last + 1;
    for (int b = begin; b <= end; b++) {
        const int slot = b % PYC_SLAB_BLOCKS;
        const uint8_t *keys = pyc_block_keys(item, table, cache, b, a);
        if (b == begin || b % PYC_SPLIT_BLOCKS == 0) pyc_begin_split(item, a);
        pyc_take_block(a.kind, item, slot, keys, keys + pyc_values_after(a), held - b * PYC_POSITIONS, a);
        if (b < end && slot < PYC_SLAB_BLOCKS - 1) continue;
        pyc_attend_slab(a.kind, item, (b - slot) * PYC_POSITIONS, a);
        if (b == end || (b + 1) % PYC_SPLIT_BLOCKS == 0) pyc_merge_split(item, a);
    }
}

/* The same by blocks; `next` are the first keys of the work item that follows, or NULL. `calls` are of the cache's
 * kind, `wide` of PYC_WIDE. */
PYC_INLINE void pyc_attend_by_blocks(const struct pyc_row_block_calls calls, const struct pyc_row_block_calls wide,
                                     struct pyc_work_item *item, const int32_t *table, const uint8_t *cache, int begin,
                                     int end, const uint8_t *next, const struct pyc_attention a) {
    for (int b = begin; b <= end; b++) {
        const uint8_t *keys = pyc_block_keys(item, table, cache, b, a), *values = keys + pyc_values_after(a);
        const uint8_t *next_keys = b < end ? pyc_block_keys(item, table, cache, b + 1, a) : next;
        const ptrdiff_t prefetch = next_keys ? next_keys - keys : 0;
        if (b == begin || b % PYC_SPLIT_BLOCKS == 0) pyc_begin_split(item, a);
        if (item->is_token) {
            pyc_attend_token(a.kind, calls, item, keys, values, next_keys, b * PYC_POSITIONS, a);
        } else if (PYC_IS_WIDENED(a.kind) && item->count >= PYC_CONVERTED_ROWS) {
            float *converted = item->block + PYC_HEAD_BYTES(a.head_dim, PYC_WIDE(a.kind)) / 4;
            pyc_convert_block(item->block, keys, a);
            pyc_convert_block(converted, values, a);
            pyc_attend_block(PYC_WIDE(a.kind), wide, item, (const uint8_t *)item->block, (const uint8_t *)converted, 0,
                             b * PYC_POSITIONS, a);
        } else {
            pyc_attend_block(a.kind, calls, item, keys, values, prefetch, b * PYC_POSITIONS, a);
        }
        if (b == end || (b + 1) % PYC_SPLIT_BLOCKS == 0) pyc_merge_split(item, a);
    }
}

/* Rows [begin, end) of each key/value head that make a work item, and the blocks [first, last] that they see: none
 * where they are of padding. */
struct pyc_members {
    int begin, end, first, last;
};

/* The work item that starts with row `begin`. */
PYC_INLINE struct pyc_members pyc_item_from(int begin, const struct pyc_batch b, const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads, rows = b.m * group, border = (begin / PYC_ITEM_ROWS + 1) * PYC_ITEM_ROWS;
    const int limit = border < rows ? border : rows, token = begin / group, padding = b.positions[token] < 0;
    int last = token, low = b.positions[token], high = low;
    while ((last + 1) * group < limit && (b.positions[last + 1] < 0) == padding &&
           (padding || b.sequences[last + 1] == b.sequences[token])) {
        const int position = b.positions[++last];
        low = position < low ? position : low;
        high = position > high ? position : high;
    }
    const int end = (last + 1) * group < limit ? (last + 1) * group : limit;
    if (padding) return (struct pyc_members){begin, end, 0, -1};
    return (struct pyc_members){begin, end, pyc_first_seen(low, a) / PYC_POSITIONS, high / PYC_POSITIONS};
}

/* What a block of the work item costs, and all of it. */
PYC_INLINE int64_t pyc_block_cost(const struct pyc_members u) { return u.end - u.begin + 4; }
PYC_INLINE int64_t pyc_item_cost(const struct pyc_members u) { return pyc_block_cost(u) * (u.last - u.first + 1) + 1; }

/* Whether they are the rows of one token, and few enough for pyc_attend_token. */
PYC_INLINE int pyc_is_token(const struct pyc_members u, const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads;
    return group <= PYC_TOKEN_GROUP && u.begin % group == 0 && u.end - u.begin == group;
}

/* The rows of the work item, heads outermost; returns whether the tile unit is to work on them. */
PYC_INLINE int pyc_begin_item(struct pyc_work_item *item, const struct pyc_members u, const struct pyc_batch b,
                              const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads, rows = u.end - u.begin;
    item->count = rows * item->heads;
    item->is_token = pyc_is_token(u, a);
    if (u.first > u.last) return 0;
    const int amx = a.amx && pyc_begin_tiles(a.kind, rows);
    for (int r = 0; r < item->count; r++) {
        const int at = u.begin + r % rows, token = at / group, head = (item->kv_head + r / rows) * group + at % group;
        const float *query = b.queries + ((ptrdiff_t)token * a.heads + head) * a.head_dim;
        pyc_begin_item_row(item, r, pyc_first_seen(b.positions[token], a), b.positions[token]);
        if (amx)
            pyc_take_tile_query(item, r, query, a);
        else
            pyc_take_query(item, r, query, a);
    }
    return amx;
}

/* What the work item's rows attended to, into the result. */
PYC_INLINE void pyc_end_item(struct pyc_work_item *item, const struct pyc_members u, const struct pyc_batch b,
                             const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads, rows = u.end - u.begin;
    for (int r = 0; r < item->count; r++) {
        const int at = u.begin + r % rows, token = at / group, head = (item->kv_head + r / rows) * group + at % group;
        float *to = a.result ? item->score : b.y + ((ptrdiff_t)token * a.heads + head) * a.head_dim;
        if (u.first > u.last)
            memset(to, 0, (size_t)a.head_dim * 4);
        else
            pyc_give_row(item, r, to, a);
        if (!a.result) continue;
        const int blocks = a.head_dim / PYC_BLOCK;
        for (int i = 0; i < blocks; i++)
            pyc_round_block(a.result == PYC_ROWS_CODES, to + i * PYC_BLOCK,
                            (uint8_t *)b.y + pyc_amx_row_at(token, b.m, a.heads * blocks, head * blocks + i));
    }
}

/* The keys of the first block that row `row` sees of the key/value head `head`; NULL for padding. */
PYC_INLINE const uint8_t *pyc_first_keys(int row, int head, const struct pyc_batch b, const struct pyc_attention a) {
    const int token = row / (a.heads / a.kv_heads), last = b.positions[token];
    if (last < 0) return NULL;
    const int32_t *table = b.block_table + (ptrdiff_t)b.sequences[token] * a.table_width;
    return b.cache + pyc_keys_at(table[pyc_first_seen(last, a) / PYC_POSITIONS], head, a);
}

/* Blocks [from, to] of the work item, all of them or those of one KV split; returns whether all its KV splits have been
 * attended to. */
PYC_INLINE int pyc_attend(struct pyc_work_item *item, const struct pyc_members u, int from, int to,
                          const struct pyc_batch b, const pyc_block_attention by_blocks,
                          const struct pyc_partials partials, const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads, rows = b.m * group, head = item->kv_head + (u.end == rows) * item->heads;
    const int32_t *table = b.block_table + (ptrdiff_t)b.sequences[u.begin / group] * a.table_width;
    const uint8_t *next = NULL; /* keys that are read after these */
    if (to < u.last)
        next = pyc_block_keys(item, table, b.cache, to + 1, a);
    else if (rows <= PYC_EXPECTED_ROWS && head < a.kv_heads)
        next = pyc_first_keys(u.end < rows ? u.end : 0, head, b, a);
    if (pyc_begin_item(item, u, b, a)) {
        pyc_attend_by_slabs(item, table, b.cache, from, to, a);
        PYC_TILES_END;
    } else {
        by_blocks(item, table, b.cache, from, to, next);
    }
    if (from == u.first && to == u.last) return 1;
    const int first = u.first / PYC_SPLIT_BLOCKS, splits = u.last / PYC_SPLIT_BLOCKS - first + 1;
    return pyc_store_partial(item, item->kv_head * rows + item->heads * u.begin, from / PYC_SPLIT_BLOCKS - first,
                             splits, partials, a);
}

/* Part `part` of `parts`, which `threads` share, of the work items of a batch; parts cost about the same. Heads are
 * outermost, or as many of them as a thread has where all work items are tokens. */
PYC_INLINE int32_t pyc_cached_attention(const struct pyc_batch b, int32_t threads, int32_t part, int32_t parts,
                                        uint8_t *scratch, const pyc_block_attention by_blocks,
                                        const struct pyc_partials partials, const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads, rows = b.m * group,
              is_split = a.kv_heads % threads && b.m <= PYC_SPLIT_TOKENS;
    struct pyc_work_item item;
    pyc_place_item(&item, scratch, a);
    int64_t total = 0; /* cost of a head */
    int tokens = group <= PYC_TOKEN_GROUP;
    for (struct pyc_members u = {0}; u.end < rows; total += pyc_item_cost(u)) {
        u = pyc_item_from(u.end, b, a);
        tokens = tokens && (u.first > u.last || pyc_is_token(u, a));
    }
    const int share = (a.kv_heads + threads - 1) / threads, most = PYC_TOKEN_ROWS / group;
    const int together = !tokens ? 1 : share < most ? share : most;
    const int64_t begin = total * a.kv_heads * part / parts, end = total * a.kv_heads * (part + 1) / parts;
    for (item.kv_head = 0; item.kv_head < a.kv_heads; item.kv_head += item.heads) {
        const int left = a.kv_heads - item.kv_head;
        item.heads = together < left ? together : left;
        int64_t done = item.kv_head * total, cost;
        if (done + item.heads * total <= begin || done >= end) continue;
        for (struct pyc_members u = {0}; u.end < rows; done += cost) {
            u = pyc_item_from(u.end, b, a);
            cost = item.heads * pyc_item_cost(u);
            if (done + cost <= begin || done >= end) continue;
            int from = u.first, to;
            do {
                const int split_end = from / PYC_SPLIT_BLOCKS * PYC_SPLIT_BLOCKS + PYC_SPLIT_BLOCKS - 1;
                to = is_split && split_end < u.last ? split_end : u.last;
                const int64_t middle = done + item.heads * pyc_block_cost(u) * (from + to + 1 - 2 * u.first) / 2;
                if (middle >= begin && middle < end && pyc_attend(&item, u, from, to, b, by_blocks, partials, a))
                    pyc_end_item(&item, u, b, a);
                from = to + 1;
            } while (to < u.last);
        }
    }
    return 0;
}

#endif
