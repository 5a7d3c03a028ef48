/* The matmul that makes stacked rows q | k | v, and what pyc_qkv_append.h does with them, by N tiles: the rows of a
 * head by the tokens of a chunk. An N tile stays in the second-level cache; written for all tokens and read again, by
 * whichever thread, the rows are 2 (heads + 2 kv_heads) head_dim floats a token to memory and back.
 */
#ifndef PYC_LINEAR_APPEND_H
#define PYC_LINEAR_APPEND_H

#include "pyc_qkv_append.h"

/* Part `part` of `parts` of m tokens. A head is whole panels. */
PYC_INLINE int32_t pyc_linear_append(const pyc_matmul multiply, const void *x, const uint8_t *w, const float *bias,
                                     const struct pyc_append_arguments to, int32_t m, int32_t part, int32_t parts,
                                     const struct pyc_shape s, const struct pyc_append p) {
    const struct pyc_attention a = p.attention;
    const int d = a.head_dim, heads = a.heads + 2 * a.kv_heads, panels = d / PYC_PANEL,
              items = pyc_chunks(m, s) * heads;
    float n_tile[PYC_MOST_TOKENS * d] __attribute__((aligned(64))), row[d] __attribute__((aligned(64)));
    for (int item = pyc_part_row(items, part, parts); item < pyc_part_row(items, part + 1, parts); item++) {
        const int head = item % heads, h = head < a.heads ? head : (head - a.heads) % a.kv_heads;
        const struct pyc_run run = pyc_n_tile(item / heads, panels, m, s);
        multiply(x, w + (ptrdiff_t)head * panels * s.panel_bytes, bias ? bias + head * d : NULL,
                 n_tile - (ptrdiff_t)run.token_start * d, run, d);
        const float *from = n_tile;
        if (head < a.heads) {
            for (int t = run.token_start; t < run.token_stop; t++, from += d) pyc_append_query(t, h, from, to, row, p);
            continue;
        }
        for (int t = run.token_start; t < run.token_stop; t++, from += d) {
            if (to.positions[t] < 0) continue;
            uint8_t *keys = pyc_place_of(t, h, to, a);
            if (head < a.heads + a.kv_heads)
                pyc_append_key(t, from, keys, to, row, p);
            else
                pyc_append_value(t, from, keys, to, row, p);
        }
    }
    return 0;
}

#endif
