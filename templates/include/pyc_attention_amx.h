/* A unit's rows over a block by the tile unit: 16 rows at a time, for a cache of bf16 or int8.
 *
 * The formulas are those of pyc_attention_unit.h. int8: integers, so the same bits. bf16: sums of pairs in order of features
 * and of positions, where vectors have four sums side by side; a row's bits depend on that choice and on nothing else.
 */
#ifndef PYC_ATTENTION_AMX_H
#define PYC_ATTENTION_AMX_H

#include "pyc_amx.h"
#include "pyc_attention_unit.h"

#if PYC_HAS_TILES

/* Words of 4 bytes that a position's features take, and tiles of 16 of them. */
#define PYC_KEY_WORDS(head_dim, kind) (PYC_FEATURES(head_dim) / PYC_STEP(kind))
#define PYC_KEY_TILES(head_dim, kind) ((PYC_KEY_WORDS(head_dim, kind) + 15) / 16)

/* The keys of a block as right operands: [4 groups of positions][tiles][16 words][16 positions]. */
PYC_INLINE void pyc_turn_keys(const int kind, const uint8_t *keys, uint8_t *to, const struct pyc_attention a) {
    const int words = PYC_KEY_WORDS(a.head_dim, kind), tiles = PYC_KEY_TILES(a.head_dim, kind);
    const int set = PYC_KEY_SET(a.head_dim, kind);
    for (int group = 0; group < PYC_POSITIONS / PYC_PANEL; group++, to += tiles * PYC_TILE_BYTES) {
        const uint8_t *from = keys + group * PYC_QUAD * set;
        PYC_ROLLED for (int word = 0; word < words; word += PYC_QUAD, from += 64) {
            /* 4 words of 4 positions in each of 4 sets */
            const pyc_u32v x0 = pyc_load_u32v(from), x1 = pyc_load_u32v(from + set), x2 = pyc_load_u32v(from + 2 * set),
                           x3 = pyc_load_u32v(from + 3 * set);
#define PYC_TURN(a, b, i)                                                                                             \
    __builtin_shufflevector(a, b, i, i + 4, i + 8, i + 12, i + 16, i + 20, i + 24, i + 28, i + 1, i + 5, i + 9, i + 13, \
                            i + 17, i + 21, i + 25, i + 29)
            const pyc_u32v y0 = PYC_TURN(x0, x1, 0), y1 = PYC_TURN(x2, x3, 0), y2 = PYC_TURN(x0, x1, 2),
                           y3 = PYC_TURN(x2, x3, 2);
#undef PYC_TURN
#define PYC_JOIN(a, b, i)                                                                                             \
    __builtin_shufflevector(a, b, i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6, i + 7, i + 16, i + 17, i + 18, i + 19,   \
                            i + 20, i + 21, i + 22, i + 23)
            const pyc_u32v z[PYC_QUAD] = {PYC_JOIN(y0, y1, 0), PYC_JOIN(y0, y1, 8), PYC_JOIN(y2, y3, 0),
                                          PYC_JOIN(y2, y3, 8)};
#undef PYC_JOIN
            memcpy(to + word * 64, z, sizeof z);
        }
        memset(to + words * 64, 0, (size_t)(tiles * 16 - words) * 64);
    }
}

/* Values of the first `count` positions of a block, zeros behind them: what is there is nobody's, and might be NaN. */
PYC_INLINE void pyc_take_values(const int kind, const uint8_t *values, uint8_t *to, int count,
                                const struct pyc_attention a) {
    const int step = PYC_STEP(kind), line = PYC_FEATURES(a.head_dim) * 4;
    for (int i = 0; i < PYC_POSITIONS / step; i++) {
        const int seen = count - i * step < step ? count - i * step : step;
        const uint32_t mask = seen <= 0 ? 0 : 0xffffffffu >> (32 / step * (step - seen));
        for (int at = i * line; at < (i + 1) * line; at += 64) {
            const pyc_u32v kept = pyc_load_u32v(values + at) & mask;
            memcpy(to + at, &kept, sizeof kept);
        }
    }
}

#define PYC_ATTEND(kind, c, a, b)      \
    do {                               \
        if (kind == PYC_CACHE_INT8)    \
            PYC_TILE_FOURS(c, a, b);   \
        else                           \
            PYC_TILE_PAIRS(c, a, b);   \
    } while (0)

/* f32 or i32 scores [16][64] of 16 rows, or of 32 rows [32][64], for two groups of positions at a time. */
PYC_INLINE void pyc_tile_scores(const int kind, const int pair, float *score, const uint8_t *query, const uint8_t *turned,
                                const struct pyc_attention a) {
    const int tiles = PYC_KEY_TILES(a.head_dim, kind), stride = PYC_FEATURES(a.head_dim) * 4, line = PYC_POSITIONS * 4;
    PYC_ROLLED for (int g = 0; g < PYC_POSITIONS / PYC_PANEL; g += 2) {
        const uint8_t *keys = turned + g * tiles * PYC_TILE_BYTES, *next = keys + tiles * PYC_TILE_BYTES;
        float *to = score + g * PYC_PANEL;
        PYC_TILE_ZERO(0);
        PYC_TILE_ZERO(1);
        if (pair) {
            PYC_TILE_ZERO(2);
            PYC_TILE_ZERO(3);
        }
        PYC_ROLLED for (int i = 0; i < tiles; i++) {
            PYC_TILE_LOAD(4, query + i * 64, stride);
            PYC_TILE_LOAD(6, keys + i * PYC_TILE_BYTES, 64);
            PYC_ATTEND(kind, 0, 4, 6);
            PYC_TILE_LOAD(7, next + i * PYC_TILE_BYTES, 64);
            PYC_ATTEND(kind, 1, 4, 7);
            if (pair) {
                PYC_TILE_LOAD(5, query + i * 64 + PYC_TILE_ROWS * stride, stride);
                PYC_ATTEND(kind, 2, 5, 6);
                PYC_ATTEND(kind, 3, 5, 7);
            }
        }
        PYC_TILE_STORE(0, to, line);
        PYC_TILE_STORE(1, to + PYC_PANEL, line);
        if (pair) {
            PYC_TILE_STORE(2, to + PYC_TILE_ROWS * PYC_POSITIONS, line);
            PYC_TILE_STORE(3, to + PYC_TILE_ROWS * PYC_POSITIONS + PYC_PANEL, line);
        }
    }
}

/* Sums [16][features] of weights by values: of 32 features at a time, and of the last 16. */
PYC_INLINE void pyc_tile_values(const int kind, float *sums, const uint8_t *score, const uint8_t *values,
                                const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim), stride = features * 4;
    const uint8_t *later = values + 16 * stride;
    PYC_TILE_LOAD(4, score, PYC_POSITIONS * 4);
    if (kind == PYC_CACHE_BF16) PYC_TILE_LOAD(5, score + 64, PYC_POSITIONS * 4);
    int f = 0;
    PYC_ROLLED for (; f + 2 * PYC_PANEL <= features; f += 2 * PYC_PANEL) {
        PYC_TILE_ZERO(0);
        PYC_TILE_LOAD(6, values + f * 4, stride);
        PYC_ATTEND(kind, 0, 4, 6);
        PYC_TILE_ZERO(1);
        PYC_TILE_LOAD(7, values + f * 4 + 64, stride);
        PYC_ATTEND(kind, 1, 4, 7);
        if (kind == PYC_CACHE_BF16) {
            PYC_TILE_LOAD(6, later + f * 4, stride);
            PYC_TILE_PAIRS(0, 5, 6);
            PYC_TILE_LOAD(7, later + f * 4 + 64, stride);
            PYC_TILE_PAIRS(1, 5, 7);
        }
        PYC_TILE_STORE(0, sums + f, stride);
        PYC_TILE_STORE(1, sums + f + PYC_PANEL, stride);
    }
    if (f == features) return;
    PYC_TILE_ZERO(0);
    PYC_TILE_LOAD(6, values + f * 4, stride);
    PYC_ATTEND(kind, 0, 4, 6);
    if (kind == PYC_CACHE_BF16) {
        PYC_TILE_LOAD(6, later + f * 4, stride);
        PYC_TILE_PAIRS(0, 5, 6);
    }
    PYC_TILE_STORE(0, sums + f, stride);
}

/* value = c value + sums, for `count` rows. */
PYC_INLINE void pyc_add_values(const int kind, int count, const struct pyc_row *rows, const float *sums, float *value,
                               const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim);
    PYC_ROLLED for (int i = 0; i < count; i++) PYC_UNROLL for (int f = 0; f < features; f += PYC_PANEL) {
        float *at = value + (ptrdiff_t)i * features + f;
        pyc_f32v added = pyc_load_f32v(sums + i * features + f);
        if (kind == PYC_CACHE_INT8) {
            const pyc_i32v dot = (pyc_i32v)added - PYC_INT8_ZERO * rows[i].total;
            added = __builtin_convertvector(dot, pyc_f32v) * rows[i].scale;
        }
        added = pyc_fma(pyc_load_f32v(at), (pyc_f32v)rows[i].correction, added);
        memcpy(at, &added, sizeof added);
    }
}

/* Scores of row r, as the tile unit left them, to those that pyc_tile_weights takes. */
PYC_INLINE void pyc_scale_scores(const int kind, const struct pyc_unit *unit, float *score, int r, const float *key_scale,
                                 const struct pyc_attention a) {
    PYC_UNROLL for (int at = 0; at < PYC_POSITIONS; at += PYC_PANEL) {
        pyc_f32v t = pyc_load_f32v(score + at);
        if (kind == PYC_CACHE_INT8) {
            const pyc_i32v sum = (pyc_i32v)t - PYC_INT8_ZERO * unit->query_total[r];
            t = __builtin_convertvector(sum, pyc_f32v) * unit->query_scale[r] * pyc_load_f32v(key_scale + at);
        } else {
            t *= a.scale * PYC_LOG2_E;
        }
        memcpy(score + at, &t, sizeof t);
    }
}

/* Rows [r, r + count) of the unit, up to 32, over the block at positions [start, start + 64). */
PYC_INLINE void pyc_attend_rows(const int kind, int count, struct pyc_unit *unit, int r, const uint8_t *turned,
                                const uint8_t *values, const float *key_scale, const float *value_scale, int start,
                                const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim), groups = PYC_POSITIONS / PYC_PANEL;
    int masked = 0, seen = 0;
    for (int i = r; i < r + count; i++) {
        masked |= unit->first[i] > start || unit->last[i] < start + PYC_POSITIONS - 1;
        seen |= unit->first[i] < start + PYC_POSITIONS && unit->last[i] >= start;
    }
    if (!seen) return;
    const uint8_t *query = unit->query + (ptrdiff_t)r * features * 4;
    if (count > PYC_TILE_ROWS)
        pyc_tile_scores(kind, 1, unit->score, query, turned, a);
    else
        pyc_tile_scores(kind, 0, unit->score, query, turned, a);
    float sums[PYC_TILE_ROWS * features] __attribute__((aligned(64)));
    for (int from = 0; from < count; from += PYC_TILE_ROWS) {
        const int rows = count - from < PYC_TILE_ROWS ? count - from : PYC_TILE_ROWS;
        float *score = unit->score + from * PYC_POSITIONS;
        PYC_ROLLED for (int i = 0; i < rows; i++)
            pyc_scale_scores(kind, unit, score + i * PYC_POSITIONS, r + from + i, key_scale, a);
        pyc_tile_weights(kind, rows, unit, score, r + from, masked, start, 0, groups, value_scale);
        pyc_tile_values(kind, sums, (const uint8_t *)score, values, a);
        pyc_add_values(kind, rows, unit->row + r + from, sums, unit->value + (ptrdiff_t)(r + from) * features, a);
    }
}

/* Whether a unit of `count` rows is done by tiles; makes them ready. */
PYC_INLINE int pyc_begin_tiles(const int kind, int count) {
    const int tiles = PYC_STEP(kind) > 1 && count >= PYC_TILE_ROWS;
    if (tiles) PYC_TILES_BEGIN(PYC_TILE_ROWS);
    return tiles;
}

/* All rows of the unit over one block, of which its sequence has `held` positions. */
PYC_INLINE void pyc_attend_tiles(const int kind, struct pyc_unit *unit, const uint8_t *keys, const uint8_t *values, int start,
                                 int held, const struct pyc_attention a) {
    const int scales = PYC_SCALES_AT(a.head_dim, kind);
    const float *key_scale = (const float *)(keys + scales), *value_scale = (const float *)(values + scales);
    uint8_t *turned = (uint8_t *)unit->block, *taken = turned + 4 * PYC_KEY_TILES(a.head_dim, kind) * PYC_TILE_BYTES;
    pyc_turn_keys(kind, keys, turned, a);
    if (kind == PYC_CACHE_BF16 && held < PYC_POSITIONS) {
        pyc_take_values(kind, values, taken, held, a);
        values = taken;
    }
    for (int r = 0; r < unit->count; r += PYC_SCORE_ROWS) {
        const int count = unit->count - r < PYC_SCORE_ROWS ? unit->count - r : PYC_SCORE_ROWS;
        pyc_attend_rows(kind, count, unit, r, turned, values, key_scale, value_scale, start, a);
    }
}

#else

PYC_INLINE int pyc_begin_tiles(const int kind, int count) { return 0; }
PYC_INLINE void pyc_attend_tiles(const int kind, struct pyc_unit *unit, const uint8_t *keys, const uint8_t *values, int start,
                                 int held, const struct pyc_attention a) {}

#endif

#endif
