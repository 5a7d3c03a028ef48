/* Attention of query rows over a paged cache (pyc_cache.h).
 *
 * Rows are the queries of all tokens and of the `group` heads that share a key/value head, row = token * group + head.
 * A unit (pyc_attention_unit.h) is rows of one sequence and of one key/value head; of several where every token is of a sequence
 * of its own, as when sequences are decoded together.
 */
#ifndef PYC_ATTENTION_H
#define PYC_ATTENTION_H

#include "pyc_amx_records.h"
#include "pyc_attention_amx.h"
#include "pyc_attention_token.h"

/* From so many rows on, f16 is converted once for all of them. */
#define PYC_CONVERTED_ROWS 9

PYC_INLINE void pyc_convert_block(float *to, const uint8_t *from, const struct pyc_attention a) {
    for (int i = 0; i < PYC_POSITIONS * PYC_FEATURES(a.head_dim); i += PYC_LANES) {
        const pyc_f32v values = pyc_f16_values(pyc_load_u16v(from + 2 * i));
        memcpy(to + i, &values, sizeof values);
    }
}

/* Keys of a block of the unit's sequence; its values are pyc_values_after further. */
PYC_INLINE const uint8_t *pyc_block_keys(const struct pyc_unit *unit, const int32_t *table, const uint8_t *cache, int block,
                                         const struct pyc_attention a) {
    return cache + pyc_keys_at(table[block], unit->kv_head, a);
}

/* The rows that are in the unit over blocks [begin, end] of their sequence, which has `held` positions. */
PYC_INLINE void pyc_attend_by_slabs(struct pyc_unit *unit, const int32_t *table, const uint8_t *cache, int begin, int end,
                                    int held, const struct pyc_attention a) {
    for (int b = begin; b <= end; b++) {
        const int slot = b % PYC_SLAB_BLOCKS;
        const uint8_t *keys = pyc_block_keys(unit, table, cache, b, a);
        if (b == begin || b % PYC_STRETCH_BLOCKS == 0) pyc_begin_stretch(unit, a);
        pyc_take_block(a.kind, unit, slot, keys, keys + pyc_values_after(a), held - b * PYC_POSITIONS, a);
        if (b < end && slot < PYC_SLAB_BLOCKS - 1) continue;
        pyc_attend_slab(a.kind, unit, (b - slot) * PYC_POSITIONS, a);
        if (b == end || (b + 1) % PYC_STRETCH_BLOCKS == 0) pyc_merge_stretch(unit, a);
    }
}

/* The same by blocks; `next` are the first keys of the unit that follows, or NULL. */
PYC_INLINE void pyc_attend_by_blocks(struct pyc_unit *unit, const int32_t *table, const uint8_t *cache, int begin, int end,
                                     const uint8_t *next, const struct pyc_attention a) {
    for (int b = begin; b <= end; b++) {
        const uint8_t *keys = pyc_block_keys(unit, table, cache, b, a), *values = keys + pyc_values_after(a);
        const uint8_t *coming = b < end ? pyc_block_keys(unit, table, cache, b + 1, a) : next;
        const ptrdiff_t ahead = coming ? coming - keys : 0;
        if (b == begin || b % PYC_STRETCH_BLOCKS == 0) pyc_begin_stretch(unit, a);
        if (unit->is_token) {
            pyc_attend_token(a.kind, unit, keys, values, coming, b * PYC_POSITIONS, a);
        } else if (a.kind == PYC_CACHE_F16 && unit->count >= PYC_CONVERTED_ROWS) {
            float *wide = unit->block + PYC_POSITIONS * PYC_FEATURES(a.head_dim);
            pyc_convert_block(unit->block, keys, a);
            pyc_convert_block(wide, values, a);
            pyc_attend_block(PYC_CACHE_F32, unit, (const uint8_t *)unit->block, (const uint8_t *)wide, 0,
                             b * PYC_POSITIONS, a);
        } else {
            pyc_attend_block(a.kind, unit, keys, values, ahead, b * PYC_POSITIONS, a);
        }
        if (b == end || (b + 1) % PYC_STRETCH_BLOCKS == 0) pyc_merge_stretch(unit, a);
    }
}

/* The unit that starts with row n: returns the row after it, and what it costs; 0 for padding. */
PYC_INLINE int pyc_unit_stop(int n, int rows, const int32_t *positions, const int32_t *sequences, int64_t *cost,
                             const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads;
    const int limit = (n / PYC_UNIT_ROWS + 1) * PYC_UNIT_ROWS < rows ? (n / PYC_UNIT_ROWS + 1) * PYC_UNIT_ROWS : rows;
    const int token = n / group, padding = positions[token] < 0;
    int last = token;
    while ((last + 1) * group < limit && (positions[last + 1] < 0) == padding &&
           (padding || sequences[last + 1] == sequences[token]))
        last++;
    const int stop = (last + 1) * group < limit ? (last + 1) * group : limit;
    const int seen = a.window && positions[last] >= a.window ? a.window : positions[last] + 1;
    *cost = padding ? 0 : (int64_t)(stop - n + 4) * (seen / PYC_POSITIONS + 1);
    return stop;
}

/* Whether rows [n, stop) are those of one token, and few enough for pyc_attend_token. */
PYC_INLINE int pyc_is_token(int n, int stop, const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads;
    return group <= PYC_TOKEN_GROUP && n % group == 0 && stop - n == group;
}

PYC_INLINE void pyc_run_unit(struct pyc_unit *unit, int n, int stop, const float *queries, const int32_t *positions,
                             const int32_t *table, const uint8_t *cache, const uint8_t *next, float *y, int m,
                             const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads, padding = positions[n / group] < 0, rows = stop - n;
    unit->count = rows * unit->heads;
    unit->is_token = pyc_is_token(n, stop, a);
    const int tiles = a.tiles && pyc_begin_tiles(a.kind, rows);
    int begin = 0, end = -1; /* positions that any row sees */
    for (int r = 0; r < unit->count && !padding; r++) {
        const int at = n + r % rows, token = at / group, last = positions[token];
        const int head = (unit->kv_head + r / rows) * group + at % group;
        const int first = a.window && last >= a.window ? last - a.window + 1 : 0;
        const float *query = queries + ((ptrdiff_t)token * a.heads + head) * a.head_dim;
        begin = r == 0 || first < begin ? first : begin;
        end = last > end ? last : end;
        pyc_begin_unit_row(unit, r, first, last);
        if (tiles)
            pyc_take_tile_query(unit, r, query, a);
        else
            pyc_take_query(unit, r, query, a);
    }
    if (tiles && !padding)
        pyc_attend_by_slabs(unit, table, cache, begin / PYC_POSITIONS, end / PYC_POSITIONS, end + 1, a);
    else if (!padding)
        pyc_attend_by_blocks(unit, table, cache, begin / PYC_POSITIONS, end / PYC_POSITIONS, next, a);
    if (tiles) PYC_TILES_END;
    for (int r = 0; r < unit->count; r++) {
        const int at = n + r % rows, token = at / group, head = (unit->kv_head + r / rows) * group + at % group;
        float *to = a.records ? unit->score : y + ((ptrdiff_t)token * a.heads + head) * a.head_dim;
        if (padding)
            memset(to, 0, (size_t)a.head_dim * 4);
        else
            pyc_give_row(unit, r, to, a);
        if (!a.records) continue;
        const int blocks = a.head_dim / PYC_BLOCK;
        for (int b = 0; b < blocks; b++)
            pyc_round_block(a.records == PYC_ROWS_CODES, to + b * PYC_BLOCK,
                            (uint8_t *)y + pyc_record_at(token, m, a.heads * blocks, head * blocks + b));
    }
}

/* So few rows are those of single tokens, each with blocks of its own, which come from memory. */
#define PYC_EXPECTED_ROWS 64

/* The keys of the first block that row n sees of the key/value head `head`; NULL for padding. */
PYC_INLINE const uint8_t *pyc_first_keys(int n, int head, const int32_t *positions, const int32_t *sequences,
                                         const int32_t *block_table, const uint8_t *cache, const struct pyc_attention a) {
    const int token = n / (a.heads / a.kv_heads), last = positions[token];
    if (last < 0) return NULL;
    const int first = a.window && last >= a.window ? last - a.window + 1 : 0;
    const int block = block_table[(ptrdiff_t)sequences[token] * a.table_width + first / PYC_POSITIONS];
    return cache + pyc_keys_at(block, head, a);
}

/* Part `part` of `parts`, which `threads` share, of the units of m tokens; parts cost about the same. Heads are outermost, or as
 * many of them as a thread has where all units are tokens. */
PYC_INLINE int32_t pyc_cached_attention(const float *queries, const int32_t *positions, const int32_t *sequences,
                                        const int32_t *block_table, const uint8_t *cache, float *y, int32_t m, int32_t threads,
                                        int32_t part, int32_t parts, uint8_t *scratch, const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads, rows = m * group;
    struct pyc_unit unit;
    pyc_place_unit(&unit, scratch, a);
    int64_t cost, total = 0; /* of a head */
    int tokens = group <= PYC_TOKEN_GROUP;
    for (int n = 0, stop; n < rows; n = stop, total += cost + 1) {
        stop = pyc_unit_stop(n, rows, positions, sequences, &cost, a);
        tokens = tokens && (positions[n / group] < 0 || pyc_is_token(n, stop, a));
    }
    const int share = (a.kv_heads + threads - 1) / threads, most = PYC_TOKEN_ROWS / group;
    const int together = !tokens ? 1 : share < most ? share : most;
    const int64_t begin = total * a.kv_heads * part / parts, end = total * a.kv_heads * (part + 1) / parts;
    for (unit.kv_head = 0; unit.kv_head < a.kv_heads; unit.kv_head += unit.heads) {
        const int left = a.kv_heads - unit.kv_head;
        unit.heads = together < left ? together : left;
        int64_t done = unit.kv_head * total, middle;
        if (done + unit.heads * total <= begin || done >= end) continue;
        for (int n = 0, stop; n < rows; n = stop, done += unit.heads * (cost + 1)) {
            stop = pyc_unit_stop(n, rows, positions, sequences, &cost, a);
            middle = done + unit.heads * (cost + 1) / 2;
            if (middle < begin || middle >= end) continue;
            const int after = stop < rows ? stop : 0, head = unit.kv_head + (stop == rows) * unit.heads;
            const uint8_t *next = rows <= PYC_EXPECTED_ROWS && head < a.kv_heads
                                      ? pyc_first_keys(after, head, positions, sequences, block_table, cache, a)
                                      : NULL;
            const int32_t *table = block_table + (ptrdiff_t)sequences[n / group] * a.table_width;
            pyc_run_unit(&unit, n, stop, queries, positions, table, cache, next, y, m, a);
        }
    }
    return 0;
}

#endif
