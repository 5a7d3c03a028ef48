/* Stretches of a unit that several threads attend to, each on its own, and who merges them.
 *
 * A few tokens have as many units as there are key/value heads: fewer than a large machine's threads, or a number that its
 * threads do not divide. So their stretches (pyc_attention_unit.h) are tasks of their own. What a stretch gave is put down
 * here; who is the last of a unit's merges all of them, in order. One thread would have done the same operations.
 */
#ifndef PYC_ATTENTION_PARTIALS_H
#define PYC_ATTENTION_PARTIALS_H

#include "pyc_attention_unit.h"

/* The most tokens of which stretches are tasks; more have units enough. */
#define PYC_SPLIT_TOKENS 16
#define PYC_STRETCHES(table_width) (((table_width) + PYC_STRETCH_BLOCKS - 1) / PYC_STRETCH_BLOCKS)

/* Memory that threads share. A unit has `count` rows from row `base` on of all tokens and heads, other than any other unit's. */
struct pyc_partials {
    int32_t *arrived;    /* [rows]: how many stretches of the unit that begins there have been put down; 0 between calls */
    struct pyc_row *row; /* [rows * stretches]: of a unit [stretches, count] */
    float *value;        /* [rows * stretches, features] */
};

/* The same as static memory, one for all kernels of a cache: a process has as much of it as it has touched. */
#define PYC_PARTIALS(name, heads, head_dim, table_width)                                              \
    static struct {                                                                                   \
        int32_t arrived[PYC_SPLIT_TOKENS * (heads)];                                                  \
        struct pyc_row row[PYC_SPLIT_TOKENS * (heads) * PYC_STRETCHES(table_width)];                  \
        float value[PYC_SPLIT_TOKENS * (heads) * PYC_STRETCHES(table_width) * PYC_FEATURES(head_dim)]; \
    } name
#define PYC_PLACES(name) ((struct pyc_partials){(name).arrived, (name).row, (name).value})

/* Puts down the unit's only stretch, number `stretch` of `stretches`. Returns whether it was the last to come; the unit is then
 * that of all of them. */
PYC_INLINE int pyc_put_down(struct pyc_unit *unit, int base, int stretch, int stretches, const struct pyc_partials partials,
                            const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim), count = unit->count;
    const ptrdiff_t first = (ptrdiff_t)base * PYC_STRETCHES(a.table_width);
    struct pyc_row *row = partials.row + first;
    float *value = partials.value + first * features;
    const size_t row_bytes = (size_t)count * sizeof *row, value_bytes = (size_t)count * features * sizeof *value;
    memcpy(row + stretch * count, unit->row, row_bytes);
    memcpy(value + (ptrdiff_t)stretch * count * features, unit->value, value_bytes);
    if (__atomic_add_fetch(partials.arrived + base, 1, __ATOMIC_ACQ_REL) < stretches) return 0;
    __atomic_store_n(partials.arrived + base, 0, __ATOMIC_RELAXED);
    unit->stretches = 0;
    for (int k = 0; k < stretches; k++, row += count, value += (ptrdiff_t)count * features) {
        pyc_begin_stretch(unit, a);
        memcpy(unit->row, row, row_bytes);
        memcpy(unit->value, value, value_bytes);
        pyc_merge_stretch(unit, a);
    }
    return 1;
}

#endif
