/* A single token's rows of several neighbouring heads over a block of their sequence.
 *
 * Such a token reads its whole cache from memory, a head's keys or values of a block from one place and the next head's from
 * right behind it. So all keys are taken first, then the weights of all rows, side by side, and then all values: streams are
 * as long as there are heads, and what waits for itself in a row's weights is waited for once. What is read next, which is
 * the next head's, is asked for meanwhile.
 */
#ifndef PYC_ATTENTION_TOKEN_H
#define PYC_ATTENTION_TOKEN_H

#include "pyc_attention_unit.h"

/* Asks for the scales of int8 keys or values, which lie behind them and are read out of turn. */
PYC_INLINE void pyc_ask_for_scales(const int kind, const uint8_t *head, const struct pyc_attention a) {
    if (kind == PYC_CACHE_INT8) pyc_prefetch_far(head + PYC_SCALES_AT(a.head_dim, kind), PYC_POSITIONS * 4);
}

/* All rows of the unit over the block at positions [start, start + 64); keys and values are its first head's, `next` the keys
 * that are read next, or NULL. */
PYC_INLINE void pyc_attend_token(const int kind, const struct pyc_tile_calls tiles, struct pyc_unit *unit, const uint8_t *keys,
                                 const uint8_t *values, const uint8_t *next, int start, const struct pyc_attention a) {
    const int rows = a.heads / a.kv_heads;
    const ptrdiff_t pitch = PYC_HEAD_BYTES(a.head_dim, kind);
    const struct pyc_reach reach = pyc_reach_of(pyc_seen_by(unit, 0, 1), start);
    for (int head = 0; head < unit->heads; head++, keys += pitch) {
        const ptrdiff_t ahead = head + 1 < unit->heads ? pitch : values - keys;
        const int first = head * rows;
        pyc_ask_for_scales(kind, keys + ahead, a);
        pyc_ask_for_scales(kind, values + head * pitch, a);
#define PYC_SCORES(R) tiles.scores[R](unit, first + r, unit->score + (first + r) * PYC_POSITIONS, keys, ahead, reach)
        PYC_IN_TILES(0, rows, PYC_SCORES);
#undef PYC_SCORES
    }
    pyc_tile_weights(kind, unit->count, rows, pitch, unit, unit->score, 0, reach.masked, start, reach.from, reach.to,
                     values + PYC_SCALES_AT(a.head_dim, kind));
    for (int head = 0; head < unit->heads; head++, values += pitch) {
        const ptrdiff_t ahead = head + 1 < unit->heads ? pitch : next ? next - values : 0;
        const int first = head * rows;
#define PYC_VALUES(R) tiles.values[R](unit, first + r, unit->score + (first + r) * PYC_POSITIONS, values, ahead, reach)
        PYC_IN_TILES(0, rows, PYC_VALUES);
#undef PYC_VALUES
    }
}

#endif
