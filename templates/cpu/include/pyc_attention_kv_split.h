/* KV splits (flash-decoding): those of a work item that several threads attend to, each on its own, and who merges
 * them.
 *
 * A few tokens have as many work items as there are key/value heads: fewer than a large machine's threads, or a number
 * that its threads do not divide. So their KV splits (pyc_attention_work_item.h) are tasks of their own. What a KV
 * split gave is stored here; who is the last of a work item's merges all of them, in order. One thread would have done
 * the same operations.
 */
#ifndef PYC_ATTENTION_KV_SPLIT_H
#define PYC_ATTENTION_KV_SPLIT_H

#include "pyc_attention_work_item.h"

/* The most tokens of which KV splits are tasks; more have work items enough. */
#define PYC_SPLIT_TOKENS 16
#define PYC_SPLITS(table_width) (((table_width) + PYC_SPLIT_BLOCKS - 1) / PYC_SPLIT_BLOCKS)

/* Memory that threads share. A work item has `count` rows from row `base` on of all tokens and heads, other than any
 * other work item's. */
struct pyc_partials {
    int32_t
        *arrived; /* [rows]: how many KV splits of the work item that begins there have been stored; 0 between calls */
    struct pyc_row *row; /* [rows * splits]: of a work item [splits, count] */
    float *value;        /* [rows * splits, features] */
};

/* The same as static memory, one for all kernels of a cache: a process has as much of it as it has touched. */
#define PYC_PARTIALS(name, heads, head_dim, table_width)                                            \
    static struct {                                                                                 \
        int32_t arrived[PYC_SPLIT_TOKENS * (heads)];                                                \
        struct pyc_row row[PYC_SPLIT_TOKENS * (heads) * PYC_SPLITS(table_width)];                   \
        float value[PYC_SPLIT_TOKENS * (heads) * PYC_SPLITS(table_width) * PYC_FEATURES(head_dim)]; \
    } name
#define PYC_PLACES(name) ((struct pyc_partials){(name).arrived, (name).row, (name).value})

/* Stores the work item's only KV split, number `split` of `splits`. Returns whether it was the last to come; the work
 * item is then that of all of them. */
PYC_INLINE int pyc_store_partial(struct pyc_work_item *item, int base, int split, int splits,
                                 const struct pyc_partials partials, const struct pyc_attention a) {
    const int features = PYC_FEATURES(a.head_dim), count = item->count;
    const ptrdiff_t first = (ptrdiff_t)base * PYC_SPLITS(a.table_width);
    struct pyc_row *row = partials.row + first;
    float *value = partials.value + first * features;
    const size_t row_bytes = (size_t)count * sizeof *row, value_bytes = (size_t)count * features * sizeof *value;
    memcpy(row + split * count, item->row, row_bytes);
    memcpy(value + (ptrdiff_t)split * count * features, item->value, value_bytes);
    if (__atomic_add_fetch(partials.arrived + base, 1, __ATOMIC_ACQ_REL) < splits) return 0;
    __atomic_store_n(partials.arrived + base, 0, __ATOMIC_RELAXED);
    item->splits = 0;
    for (int k = 0; k < splits; k++, row += count, value += (ptrdiff_t)count * features) {
        pyc_begin_split(item, a);
        memcpy(item->row, row, row_bytes);
        memcpy(item->value, value, value_bytes);
        pyc_merge_split(item, a);
    }
    return 1;
}

#endif
