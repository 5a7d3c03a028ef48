/* A single token's rows of several neighbouring heads over a block of their sequence.
 *
 * Such a token reads its whole cache from memory, a head's keys or values of a block from one place and the next head's
 * from right behind it. So all keys are taken first, then the weights of all rows, side by side, and then all values:
 * streams are as long as there are heads, and what waits for itself in a row's weights is waited for once. What is read
 * next, which is the next head's, is prefetched meanwhile.
 */
#ifndef PYC_ATTENTION_TOKEN_H
#define PYC_ATTENTION_TOKEN_H

#include "pyc_attention_work_item.h"

/* Prefetches the scales of keys or values, which lie behind them and are read out of turn. */
PYC_INLINE void pyc_prefetch_scales(const int kind, const uint8_t *head, const struct pyc_attention a) {
    if (PYC_HAS_SCALES(kind)) pyc_prefetch_far(head + PYC_SCALES_AT(a.head_dim, kind), PYC_POSITIONS * 4);
}

/* All rows of the work item over the block at positions [start, start + 64); keys and values are its first head's,
 * `next` the keys that are read next, or NULL. */
PYC_INLINE void pyc_attend_token(const int kind, const struct pyc_row_block_calls calls, struct pyc_work_item *item,
                                 const uint8_t *keys,
                                 const uint8_t *values, const uint8_t *next, int start, const struct pyc_attention a) {
    const int rows = a.heads / a.kv_heads;
    const ptrdiff_t pitch = PYC_HEAD_BYTES(a.head_dim, kind);
    const struct pyc_reach reach = pyc_reach_of(pyc_seen_by(item, 0, 1), start);
    for (int head = 0; head < item->heads; head++, keys += pitch) {
        const ptrdiff_t prefetch = head + 1 < item->heads ? pitch : values - keys;
        const int first = head * rows;
        pyc_prefetch_scales(kind, keys + prefetch, a);
        pyc_prefetch_scales(kind, values + head * pitch, a);
#define PYC_SCORES(R) calls.scores[R](item, first + r, item->score + (first + r) * PYC_POSITIONS, keys, prefetch, reach)
        PYC_IN_ROW_BLOCKS(0, rows, PYC_SCORES);
#undef PYC_SCORES
    }
    pyc_row_block_weights(kind, item->count, rows, pitch, item, item->score, 0, reach.masked, start, reach.from,
                          reach.to, values + PYC_SCALES_AT(a.head_dim, kind));
    for (int head = 0; head < item->heads; head++, values += pitch) {
        const ptrdiff_t prefetch = head + 1 < item->heads ? pitch : next ? next - values : 0;
        const int first = head * rows;
#define PYC_VALUES(R) \
    calls.values[R](item, first + r, item->score + (first + r) * PYC_POSITIONS, values, prefetch, reach)
        PYC_IN_ROW_BLOCKS(0, rows, PYC_VALUES);
#undef PYC_VALUES
    }
}

#endif
