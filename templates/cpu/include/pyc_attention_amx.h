/* A work item's rows by the tile unit, for a cache of bf16, int8 or fp8: 32 rows over slabs of 256 positions.
 *
 * The formulas are those of pyc_attention_work_item.h, over slabs instead of blocks. Operands are bf16: queries, the
 * keys and values of bf16, the codes of int8 or the numbers of fp8 (exact), and weights, which the scales of values
 * multiply first. A
 * sum adds pairs in order of features and of positions. Slabs lie at absolute positions, and what a row does not see
 * adds zero to it: its bits do not depend on the rows beside it.
 */
#ifndef PYC_ATTENTION_AMX_H
#define PYC_ATTENTION_AMX_H

#include "pyc_amx_weights.h"
#include "pyc_attention_work_item.h"

#if PYC_HAS_TILES

/* What is small by 2^112 (pyc_amx_weights.h): keys, whose queries are times 2^64, and values, whose scales make up for
 * it: they may be up to 2^15, which is a value of 4 million. */
#define PYC_SMALL_SCORE 0x1p48f
#define PYC_SMALL_VALUE 0x1p112f

/* Words [0, 4) of 16 positions: words[i] are their i-th, of x0 to x3, each 4 words of 4 positions in a set. */
PYC_INLINE void pyc_turn_sets(const int kind, pyc_u32v x0, pyc_u32v x1, pyc_u32v x2, pyc_u32v x3, pyc_u32v *words) {
    if (kind == PYC_CACHE_FP8) { /* a word of 4 positions, then the next */
#define PYC_EVERY_OTHER(a, b, i)                                                                                   \
    __builtin_shufflevector(a, b, i, i + 1, i + 2, i + 3, i + 8, i + 9, i + 10, i + 11, i + 16, i + 17, i + 18,    \
                            i + 19, i + 24, i + 25, i + 26, i + 27)
        const pyc_u32v y0 = PYC_EVERY_OTHER(x0, x1, 0), y1 = PYC_EVERY_OTHER(x2, x3, 0),
                       y2 = PYC_EVERY_OTHER(x0, x1, 4), y3 = PYC_EVERY_OTHER(x2, x3, 4);
        words[0] = PYC_EVERY_OTHER(y0, y1, 0);
        words[1] = PYC_EVERY_OTHER(y2, y3, 0);
        words[2] = PYC_EVERY_OTHER(y0, y1, 4);
        words[3] = PYC_EVERY_OTHER(y2, y3, 4);
#undef PYC_EVERY_OTHER
        return;
    }
    /* 4 words of a position, then the next */
#define PYC_TURN(a, b, i)                                                                                       \
    __builtin_shufflevector(a, b, i, i + 4, i + 8, i + 12, i + 16, i + 20, i + 24, i + 28, i + 1, i + 5, i + 9, \
                            i + 13, i + 17, i + 21, i + 25, i + 29)
    const pyc_u32v y0 = PYC_TURN(x0, x1, 0), y1 = PYC_TURN(x2, x3, 0), y2 = PYC_TURN(x0, x1, 2),
                   y3 = PYC_TURN(x2, x3, 2);
#undef PYC_TURN
#define PYC_JOIN(a, b, i)                                                                                             \
    __builtin_shufflevector(a, b, i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6, i + 7, i + 16, i + 17, i + 18, i + 19, \
                            i + 20, i + 21, i + 22, i + 23)
    words[0] = PYC_JOIN(y0, y1, 0);
    words[1] = PYC_JOIN(y0, y1, 8);
    words[2] = PYC_JOIN(y2, y3, 0);
    words[3] = PYC_JOIN(y2, y3, 8);
#undef PYC_JOIN
}

/* The keys of a block as right operands: [4 groups of positions][tiles][16 pairs of features][16 positions][2]. */
PYC_INLINE void pyc_turn_keys(const int kind, const uint8_t *keys, uint8_t *to, const struct pyc_attention a) {
    const int words = PYC_FEATURES(a.head_dim) * PYC_VALUE_BYTES(kind) / 4, pairs = PYC_FEATURES(a.head_dim) / 2;
    const int set = PYC_KEY_SET(a.head_dim, kind), bytes = PYC_HEAD_TILES(a.head_dim) * PYC_TILE_BYTES;
    for (int group = 0; group < PYC_POSITIONS / PYC_PANEL; group++, to += bytes) {
        const uint8_t *from = keys + group * PYC_QUAD * set;
        PYC_ROLLED for (int word = 0; word < words; word += PYC_QUAD, from += 64) {
            pyc_u32v turned[PYC_QUAD];
            pyc_turn_sets(kind, pyc_load_u32v(from), pyc_load_u32v(from + set), pyc_load_u32v(from + 2 * set),
                          pyc_load_u32v(from + 3 * set), turned);
            PYC_UNROLL for (int i = 0; i < PYC_QUAD; i++)
                if (kind == PYC_CACHE_INT8)
                    pyc_pairs_of_bytes((pyc_u16w)turned[i], to, 2 * (word + i));
                else if (kind == PYC_CACHE_FP8)
                    pyc_pairs_of_float8_words(PYC_E4M3, turned[i], to, 2 * (word + i));
                else
                    memcpy(to + (word + i) * 64, &turned[i], sizeof turned[i]);
        }
        memset(to + pairs * 64, 0, (size_t)(bytes - pairs * 64));
    }
}

/* Values of the first `held` positions of a block of fp8, as pyc_take_values has them. */
PYC_INLINE void pyc_take_e4m3(const uint8_t *values, uint8_t *to, int held, const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim), tiles = features / PYC_PANEL;
    for (int pair = 0; pair < PYC_POSITIONS / 2; pair++, values += 2 * features) {
        const uint32_t mask = held >= 2 * pair + 2 ? 0xffff : held == 2 * pair + 1 ? 0xff : 0;
        uint8_t *at = to + (ptrdiff_t)(pair / 16) * tiles * PYC_TILE_BYTES + pair % 16 * 64;
        PYC_ROLLED for (int f = 0; f < features; f += PYC_PANEL, at += PYC_TILE_BYTES) {
            const pyc_u32v first = __builtin_convertvector(pyc_load_u8v(values + f), pyc_u32v);
            const pyc_u32v second = __builtin_convertvector(pyc_load_u8v(values + features + f), pyc_u32v);
            const pyc_u32v pairs = pyc_float8_pairs(PYC_E4M3, (first | second << 8) & mask, 0);
            memcpy(at, &pairs, sizeof pairs);
        }
    }
}

/* Values of the first `held` positions of a block as right operands: [2][tiles of 16 features][16 pairs of
 * positions][16 features][2]. Zeros behind them: what is there is nobody's, and might be NaN. */
PYC_INLINE void pyc_take_values(const int kind, const uint8_t *values, uint8_t *to, int held,
                                const struct pyc_attention a) {
    const int step = PYC_STEP(kind), tiles = PYC_FEATURES(a.head_dim) / PYC_PANEL;
    for (int i = 0; i < PYC_POSITIONS / step; i++) {
        const int pair = i * step / 2, seen = held - i * step < step ? held - i * step : step;
        const uint32_t mask = seen <= 0 ? 0 : 0xffffffffu >> (32 / step * (step - seen));
        uint8_t *at = to + (ptrdiff_t)(pair / 16) * tiles * PYC_TILE_BYTES + pair % 16 * 64;
        PYC_ROLLED for (int tile = 0; tile < tiles; tile++, values += 64, at += PYC_TILE_BYTES) {
            pyc_u32v kept = pyc_load_u32v(values);
            if (kind == PYC_CACHE_BF16) {
                kept &= mask;
                memcpy(at, &kept, sizeof kept);
            } else {
                kept = (kept & mask) | (0x80808080 & ~mask);
                kept = (kept & 0xff0000ff) | (kept >> 8 & 0xff00) | (kept << 8 & 0xff0000); /* pairs of neighbours */
                pyc_pairs_of_bytes((pyc_u16w)kept, at, 0);
            }
        }
    }
}

/* Block `block` of the slab, of which the sequence has `held` positions. */
PYC_INLINE void pyc_take_block(const int kind, struct pyc_work_item *item, int block, const uint8_t *keys,
                               const uint8_t *values, int held, const struct pyc_attention a) {
    const int scales = PYC_SCALES_AT(a.head_dim, kind), count = held < PYC_POSITIONS ? held : PYC_POSITIONS;
    pyc_turn_keys(kind, keys,
                  item->keys + block * PYC_POSITIONS / PYC_PANEL * PYC_HEAD_TILES(a.head_dim) * PYC_TILE_BYTES, a);
    uint8_t *taken = item->values + block * PYC_POSITIONS * 2 * PYC_FEATURES(a.head_dim);
    if (kind == PYC_CACHE_FP8)
        pyc_take_e4m3(values, taken, count, a);
    else
        pyc_take_values(kind, values, taken, count, a);
    if (!PYC_HAS_SCALES(kind)) return;
    const float unit = kind == PYC_CACHE_INT8 ? PYC_SMALL_VALUE : 1;
    float *key_scale = item->key_scale + block * PYC_POSITIONS,
          *value_scale = item->value_scale + block * PYC_POSITIONS;
    for (int i = 0; i < PYC_POSITIONS; i++) {
        key_scale[i] = i < count ? ((const float *)(keys + scales))[i] : 0;
        value_scale[i] = i < count ? ((const float *)(values + scales))[i] * unit : 0;
    }
}

/* Scores [16 or 32][256] of positions [from, to), two groups at a time; `query` points to the rows. */
PYC_INLINE void pyc_slab_scores(const int pair, struct pyc_work_item *item, const uint8_t *query, int from, int to,
                                const struct pyc_attention a) {
    const int tiles = PYC_HEAD_TILES(a.head_dim), line = PYC_SLAB * 4, bytes = tiles * PYC_TILE_BYTES;
    PYC_ROLLED for (int at = from; at < to; at += 2 * PYC_PANEL) {
        const uint8_t *keys = item->keys + at / PYC_PANEL * bytes;
        float *score = item->score + at;
        PYC_TILE_ZERO(0);
        PYC_TILE_ZERO(1);
        if (pair) {
            PYC_TILE_ZERO(2);
            PYC_TILE_ZERO(3);
        }
        PYC_ROLLED for (int i = 0; i < bytes; i += PYC_TILE_BYTES) {
            PYC_TILE_LOAD(4, query + 2 * i, 64);
            PYC_TILE_LOAD(6, keys + i, 64);
            PYC_TILE_PAIRS(0, 4, 6);
            PYC_TILE_LOAD(7, keys + bytes + i, 64);
            PYC_TILE_PAIRS(1, 4, 7);
            if (pair) {
                PYC_TILE_LOAD(5, query + 2 * i + PYC_TILE_BYTES, 64);
                PYC_TILE_PAIRS(2, 5, 6);
                PYC_TILE_PAIRS(3, 5, 7);
            }
        }
        PYC_TILE_STORE(0, score, line);
        PYC_TILE_STORE(1, score + PYC_PANEL, line);
        if (pair) {
            PYC_TILE_STORE(2, score + PYC_TILE_ROWS * PYC_SLAB, line);
            PYC_TILE_STORE(3, score + PYC_TILE_ROWS * PYC_SLAB + PYC_PANEL, line);
        }
    }
}

/* value [16 or 32][features] += weights by values of positions [from, to), up to 32 features at a time. */
PYC_INLINE void pyc_slab_values(const int pair, struct pyc_work_item *item, float *value, int from, int to,
                                const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim), stride = features * 4, line = PYC_SLAB * 4;
    const uint8_t *weights = (const uint8_t *)item->score;
    PYC_ROLLED for (int f = 0; f < features; f += 2 * PYC_PANEL) {
        const int both = f + PYC_PANEL < features;
        const uint8_t *values = item->values + f / PYC_PANEL * PYC_TILE_BYTES;
        float *sum = value + f, *below = sum + PYC_TILE_ROWS * features;
        PYC_TILE_LOAD(0, sum, stride);
        if (both) PYC_TILE_LOAD(1, sum + PYC_PANEL, stride);
        if (pair) PYC_TILE_LOAD(2, below, stride);
        if (pair && both) PYC_TILE_LOAD(3, below + PYC_PANEL, stride);
        PYC_ROLLED for (int at = from / 32; at < to / 32; at++) {
            const uint8_t *taken = values + at * features * 64;
            PYC_TILE_LOAD(4, weights + at * 64, line);
            PYC_TILE_LOAD(6, taken, 64);
            PYC_TILE_PAIRS(0, 4, 6);
            if (both) PYC_TILE_LOAD(7, taken + PYC_TILE_BYTES, 64);
            if (both) PYC_TILE_PAIRS(1, 4, 7);
            if (pair) PYC_TILE_LOAD(5, weights + PYC_TILE_ROWS * line + at * 64, line);
            if (pair) PYC_TILE_PAIRS(2, 5, 6);
            if (pair && both) PYC_TILE_PAIRS(3, 5, 7);
        }
        PYC_TILE_STORE(0, sum, stride);
        if (both) PYC_TILE_STORE(1, sum + PYC_PANEL, stride);
        if (pair) PYC_TILE_STORE(2, below, stride);
        if (pair && both) PYC_TILE_STORE(3, below + PYC_PANEL, stride);
    }
}

/* The largest of scores [from, to) of a row that sees slots [first, last] of the slab, in each lane. Scales
 * them, and hides what the row does not see. */
PYC_INLINE pyc_f32v pyc_slab_largest(const int kind, const int masked, const struct pyc_work_item *item, float *score,
                                     int from, int to, int first, int last, const struct pyc_attention a) {
    pyc_i32v lane;
    PYC_UNROLL for (int i = 0; i < PYC_LANES; i++) lane[i] = i;
    pyc_f32v top = -__builtin_inff();
    PYC_ROLLED for (int at = from; at < to; at += PYC_PANEL) {
        pyc_f32v t = pyc_load_f32v(score + at);
        if (PYC_HAS_SCALES(kind)) t *= pyc_load_f32v(item->key_scale + at);
        if (masked) t = lane <= last - at ? t : (pyc_f32v)-__builtin_inff();
        if (masked && a.window) t = lane >= first - at ? t : (pyc_f32v)-__builtin_inff();
        if (masked || PYC_HAS_SCALES(kind)) memcpy(score + at, &t, sizeof t);
        top = pyc_larger(t, top);
    }
    return top;
}

/* Number r is the largest lane of vector r. */
PYC_INLINE pyc_f32v pyc_largest_lanes(const pyc_f32v *v) {
    pyc_f32v x[31];
    memcpy(x, v, 16 * sizeof *v);
#define PYC_EVENS 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define PYC_ODDS 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
    PYC_UNROLL for (int i = 0; i < 15; i++)
        x[16 + i] = pyc_larger(__builtin_shufflevector(x[2 * i], x[2 * i + 1], PYC_EVENS),
                               __builtin_shufflevector(x[2 * i], x[2 * i + 1], PYC_ODDS));
#undef PYC_EVENS
#undef PYC_ODDS
    return x[30];
}

/* Scores [from, to) of a row to weights 2^(factor score - maximum), bf16, at the front of their place; returns their
 * sums. */
PYC_INLINE pyc_f32v pyc_slab_row(const int kind, const struct pyc_work_item *item, float *score, int from, int to,
                                 float factor, float maximum) {
    pyc_f32v sum = 0;
    PYC_ROLLED for (int at = from; at < to; at += 2 * PYC_PANEL) {
        float weight[2 * PYC_PANEL] __attribute__((aligned(64)));
        PYC_UNROLL for (int i = 0; i < 2 * PYC_PANEL; i += PYC_PANEL) {
            pyc_f32v p = pyc_weight(pyc_fma(pyc_load_f32v(score + at + i), (pyc_f32v)factor, (pyc_f32v)-maximum));
            sum += p;
            if (PYC_HAS_SCALES(kind)) p *= pyc_load_f32v(item->value_scale + at + i);
            memcpy(weight + i, &p, sizeof p);
        }
        pyc_round_block(0, weight, (uint8_t *)(score + at / 2));
    }
    return sum;
}

/* Scores [from, to) of up to 16 rows from row r on to weights; their sums and values of earlier slabs are corrected. */
PYC_INLINE void pyc_slab_weights(const int kind, const int masked, int count, struct pyc_work_item *item, float *score,
                                 int r, int start, int from, int to, const struct pyc_attention a) {
    const float factor = a.scale * PYC_LOG2_E * (kind == PYC_CACHE_INT8 ? PYC_SMALL_SCORE : 1.0f);
    const int features = PYC_FEATURES(a.head_dim);
    pyc_f32v largest[PYC_TILE_ROWS];
    PYC_UNROLL for (int i = 0; i < PYC_TILE_ROWS; i++) largest[i] = -__builtin_inff();
    PYC_ROLLED for (int i = 0; i < count; i++)
        largest[i] = pyc_slab_largest(kind, masked, item, score + i * PYC_SLAB, from, to, item->first[r + i] - start,
                                      item->last[r + i] - start, a);
    const pyc_f32v found = pyc_largest_lanes(largest) * factor;
    float before[PYC_TILE_ROWS], maximum[PYC_TILE_ROWS], correction[PYC_TILE_ROWS];
    PYC_ROLLED for (int i = 0; i < count; i++) before[i] = item->row[r + i].maximum;
    const pyc_f32v earlier = pyc_load_f32v(before), now = pyc_larger(found, earlier),
                   corrections = pyc_exp2(earlier - now);
    memcpy(maximum, &now, sizeof now);
    memcpy(correction, &corrections, sizeof corrections);
    PYC_ROLLED for (int i = 0; i < count; i++) {
        struct pyc_row *row = item->row + r + i;
        pyc_f32v sum = pyc_slab_row(kind, item, score + i * PYC_SLAB, from, to, factor, maximum[i]);
        sum = pyc_fma(pyc_load_f32v(row->sum), (pyc_f32v)correction[i], sum);
        memcpy(row->sum, &sum, sizeof sum);
        row->maximum = maximum[i];
        if (correction[i] == 1 || before[i] == PYC_MASKED) continue;
        float *value = item->value + (ptrdiff_t)(r + i) * features;
        PYC_UNROLL for (int f = 0; f < features; f += PYC_PANEL) {
            const pyc_f32v kept = pyc_load_f32v(value + f) * correction[i];
            memcpy(value + f, &kept, sizeof kept);
        }
    }
}

/* Rows [r, r + count) of the work item, up to 32, over the slab at `start`. */
PYC_INLINE void pyc_attend_rows(const int kind, const int pair, int count, struct pyc_work_item *item, int r, int start,
                                const struct pyc_attention a) {
    const struct pyc_seen seen = pyc_seen_by(item, r, count);
    if (seen.last < start || seen.first >= start + PYC_SLAB) return;
    const int from = seen.first > start ? (seen.first - start) / 32 * 32 : 0;
    const int to = seen.last - start < PYC_SLAB - 1 ? (seen.last - start) / 32 * 32 + 32 : PYC_SLAB;
    const int masked = pyc_hides(seen, start + from, start + to), blocks = PYC_HEAD_TILES(a.head_dim);
    pyc_slab_scores(pair, item, item->query + pyc_amx_row_at(r, PYC_ITEM_ROWS, blocks, 0), from, to, a);
    for (int at = 0; at < count; at += PYC_TILE_ROWS) {
        const int rows = count - at < PYC_TILE_ROWS ? count - at : PYC_TILE_ROWS;
        float *score = item->score + at * PYC_SLAB;
        if (masked)
            pyc_slab_weights(kind, 1, rows, item, score, r + at, start, from, to, a);
        else
            pyc_slab_weights(kind, 0, rows, item, score, r + at, start, from, to, a);
    }
    pyc_slab_values(pair, item, item->value + (ptrdiff_t)r * PYC_FEATURES(a.head_dim), from, to, a);
}

/* All rows of the work item over the slab at `start`. */
PYC_INLINE void pyc_attend_slab(const int kind, struct pyc_work_item *item, int start, const struct pyc_attention a) {
    for (int r = 0; r < item->count; r += 2 * PYC_TILE_ROWS) {
        const int left = item->count - r;
        if (left > PYC_TILE_ROWS)
            pyc_attend_rows(kind, 1, left < 2 * PYC_TILE_ROWS ? left : 2 * PYC_TILE_ROWS, item, r, start, a);
        else
            pyc_attend_rows(kind, 0, left, item, r, start, a);
    }
}

/* Whether a work item of `count` rows is done by tiles; makes them ready. */
PYC_INLINE int pyc_begin_tiles(const int kind, int count) {
    const int tiles = PYC_FITS_TILES(kind) && count >= PYC_TILE_ROWS;
    if (tiles) PYC_TILES_BEGIN(PYC_TILE_ROWS);
    return tiles;
}

/* The query of row r: a quantized row of a batch of PYC_ITEM_ROWS. */
PYC_INLINE void pyc_take_tile_query(struct pyc_work_item *item, int r, const float *query,
                                    const struct pyc_attention a) {
    const struct pyc_shape s = {.inputs = a.head_dim, .blocks = PYC_HEAD_TILES(a.head_dim), .pieces = 1};
    pyc_round_into_tile(a.kind == PYC_CACHE_INT8, query, item->query, r, PYC_ITEM_ROWS, s);
}

#else

PYC_INLINE int pyc_begin_tiles(const int kind, int count) { return 0; }
PYC_INLINE void pyc_take_tile_query(struct pyc_work_item *item, int r, const float *query,
                                    const struct pyc_attention a) {}
PYC_INLINE void pyc_take_block(const int kind, struct pyc_work_item *item, int block, const uint8_t *keys,
                               const uint8_t *values, int held, const struct pyc_attention a) {}
PYC_INLINE void pyc_attend_slab(const int kind, struct pyc_work_item *item, int start, const struct pyc_attention a) {}

#endif

#endif
