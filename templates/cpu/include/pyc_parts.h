/* How the work of a kernel on m tokens is cut into `parts` parts, which threads take: each writes to places of its own,
 * and neighbours read neighbouring memory.
 *
 * Rows are cut evenly. A product is cut into panels of chunks, panels innermost: the records of a chunk of tokens stay in
 * the second-level cache while the weights go by. Where panels are folded for a chunk (pyc_linear_folded.h) it is as long
 * as that allows.
 */
#ifndef PYC_PARTS_H
#define PYC_PARTS_H

#include "pyc_records.h"
#include "pyc_amx_records.h"

#define PYC_CHUNK 64              /* tokens of a chunk, at most */
#define PYC_FOLDED_CHUNK 256      /* the same where panels are folded, */
#define PYC_FOLDED_LEAST 128      /* or this, if the records of so many */
#define PYC_CHUNK_BYTES (1 << 20) /* are more than that */
#define PYC_ROUND 8               /* chunks are whole multiples of it, but for the last */
#define PYC_PAIRED_CHUNK 512       /* the same where tiles are multiplied, or as many as have records of so */
#define PYC_PAIRED_BYTES (1 << 20) /* many bytes, and no less than */
#define PYC_PAIRED_LEAST 64

/* The first row of part `part`. */
PYC_INLINE int pyc_part_row(int m, int part, int parts) { return (int)((int64_t)m * part / parts); }

PYC_INLINE int pyc_panels(const struct pyc_shape s) { return (s.outputs + PYC_PANEL - 1) / PYC_PANEL; }

/* Whether the records of a product's tokens lie in tiles, where there are many of them. */
PYC_INLINE int pyc_folds(const struct pyc_shape s) { return PYC_FOLDS && s.bases && s.row_starts; }

/* Panels that are done together. */
PYC_INLINE int pyc_stride(const struct pyc_shape s) { return s.tiles ? 2 : 1; }

PYC_INLINE int pyc_chunks(int m, const struct pyc_shape s) {
    if (s.tiles) {
        const int fit = PYC_PAIRED_BYTES / (s.blocks * s.pieces * PYC_BLOCK * 2) / PYC_PAIRED_ROWS * PYC_PAIRED_ROWS;
        const int least = fit < PYC_PAIRED_LEAST ? PYC_PAIRED_LEAST : fit;
        const int tokens = least < PYC_PAIRED_CHUNK ? least : PYC_PAIRED_CHUNK;
        return (m + tokens - 1) / tokens;
    }
    const int fits = PYC_FOLDED_CHUNK * s.row_bytes <= PYC_CHUNK_BYTES;
    const int most = pyc_folds(s) && m >= PYC_TILED_TOKENS ? (fits ? PYC_FOLDED_CHUNK : PYC_FOLDED_LEAST) : PYC_CHUNK;
    return (m + most - 1) / most;
}

/* The first token of chunk `index`; chunks are equal up to one PYC_ROUND. */
PYC_INLINE int pyc_chunk_start(int index, int m, const struct pyc_shape s) {
    const int round = s.tiles ? PYC_PAIRED_ROWS : PYC_ROUND;
    const int start = index * ((m + round - 1) / round) / pyc_chunks(m, s) * round;
    return start < m ? start : m;
}

/* Strides of panels that a chunk is multiplied with. */
PYC_INLINE int pyc_strides(const struct pyc_shape s) { return (pyc_panels(s) + pyc_stride(s) - 1) / pyc_stride(s); }

/* Where part `part` of a product begins, counted in strides of panels of chunks. */
PYC_INLINE int pyc_part_panel(int m, int part, int parts, const struct pyc_shape s) {
    return (int)((int64_t)pyc_chunks(m, s) * pyc_strides(s) * part / parts);
}

/* A run of panels by the tokens of a chunk, of a batch of `tokens`; `next` is where the next one begins. */
struct pyc_run {
    int tokens, token_start, token_stop, panel_start, panel_stop, next;
};

/* The run that begins at `from`, counted as above, and ends with its chunk or at `stop`. */
PYC_INLINE struct pyc_run pyc_run_from(int from, int stop, int m, const struct pyc_shape s) {
    const int strides = pyc_strides(s), chunk = from / strides, first = from % strides, stride = pyc_stride(s);
    const int last = first + stop - from < strides ? first + stop - from : strides;
    const int end = last * stride < pyc_panels(s) ? last * stride : pyc_panels(s);
    return (struct pyc_run){m,   pyc_chunk_start(chunk, m, s), pyc_chunk_start(chunk + 1, m, s), first * stride,
                            end, from + last - first};
}

/* The first `panels` panels by the tokens of chunk `chunk`: a strip of a product, which another kernel takes up while it is in the
 * second-level cache. The panels are at the weights, and y is the strip's, that the product is given. */
PYC_INLINE struct pyc_run pyc_strip(int chunk, int panels, int m, const struct pyc_shape s) {
    return (struct pyc_run){m, pyc_chunk_start(chunk, m, s), pyc_chunk_start(chunk + 1, m, s), 0, panels, 0};
}
#define PYC_MOST_TOKENS (PYC_FOLDS ? PYC_FOLDED_CHUNK : PYC_CHUNK) /* of a strip */

/* A product whose number of outputs, the rows of y, is known when it is called. */
typedef int32_t (*pyc_product)(const void *x, const uint8_t *w, const float *bias, float *y, struct pyc_run run, int outputs);

/* Defines a product that does a run by the tiles that CALL does, `columns` vectors wide, with activations of a type. */
#define PYC_PRODUCT(name, type, columns, call)                                            \
    PYC_INLINE int32_t name(const type *x, const uint8_t *w, const float *bias, float *y, \
                            const struct pyc_run run, const struct pyc_shape s) {         \
        for (int p = run.panel_start; p < run.panel_stop; p++)                            \
            PYC_TILE_TOKENS_OF_PANEL(call, columns, run.token_start, run.token_stop);     \
        return 0;                                                                         \
    }

#endif
