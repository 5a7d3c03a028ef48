/* Work partition: how the work of a kernel on m tokens is cut into `parts` parts, which threads take: each writes to
 * places of its own, and neighbours read neighbouring memory.
 *
 * Rows are cut evenly. A matmul is cut into panels of chunks, panels innermost: the quantized rows of a chunk of tokens
 * stay in the second-level cache while the weights go by. Where panels are folded for a chunk (pyc_linear_folded.h) it
 * is as long as that allows.
 */
#ifndef PYC_WORK_PARTITION_H
#define PYC_WORK_PARTITION_H

#include "pyc_interleaved_rows.h"
#include "pyc_amx_rows.h"

#define PYC_CHUNK 64               /* tokens of a chunk, at most */
#define PYC_FOLDED_CHUNK 256       /* the same where panels are folded, */
#define PYC_FOLDED_LEAST 128       /* or this, if the rows of so many */
#define PYC_CHUNK_BYTES (1 << 20)  /* are more than that */
#define PYC_ROUND 8                /* chunks are whole multiples of it, but for the last */
#define PYC_PAIRED_CHUNK 512       /* the same where AMX tiles are multiplied, or as many as have rows of so */
#define PYC_PAIRED_BYTES (1 << 20) /* many bytes, and no less than */
#define PYC_PAIRED_LEAST 64

/* The first row of part `part`. */
PYC_INLINE int pyc_part_row(int m, int part, int parts) { return (int)((int64_t)m * part / parts); }

PYC_INLINE int pyc_panels(const struct pyc_shape s) { return (s.outputs + PYC_PANEL - 1) / PYC_PANEL; }

/* Whether the rows that a matmul reads are interleaved, where there are many of them. */
PYC_INLINE int pyc_folds(const struct pyc_shape s) {
    return PYC_FOLDS && s.row_exponents && s.row_corrections && !s.bits;
}

/* Panels that are done together. */
PYC_INLINE int pyc_stride(const struct pyc_shape s) { return s.amx ? 2 : 1; }

PYC_INLINE int pyc_chunks(int m, const struct pyc_shape s) {
    if (s.amx) {
        const int fit = PYC_PAIRED_BYTES / (s.blocks * s.pieces * PYC_BLOCK * 2) / PYC_PAIRED_ROWS * PYC_PAIRED_ROWS;
        const int least = fit < PYC_PAIRED_LEAST ? PYC_PAIRED_LEAST : fit;
        const int tokens = least < PYC_PAIRED_CHUNK ? least : PYC_PAIRED_CHUNK;
        return (m + tokens - 1) / tokens;
    }
    const int fits = PYC_FOLDED_CHUNK * s.row_bytes <= PYC_CHUNK_BYTES;
    const int most = pyc_folds(s) && m >= PYC_INTERLEAVED_LEAST ? (fits ? PYC_FOLDED_CHUNK : PYC_FOLDED_LEAST)
                                                                : PYC_CHUNK;
    return (m + most - 1) / most;
}

/* The first token of chunk `index`; chunks are equal up to one PYC_ROUND. */
PYC_INLINE int pyc_chunk_start(int index, int m, const struct pyc_shape s) {
    const int round = s.amx ? PYC_PAIRED_ROWS : PYC_ROUND;
    const int start = index * ((m + round - 1) / round) / pyc_chunks(m, s) * round;
    return start < m ? start : m;
}

/* Strides of panels that a chunk is multiplied with. */
PYC_INLINE int pyc_strides(const struct pyc_shape s) { return (pyc_panels(s) + pyc_stride(s) - 1) / pyc_stride(s); }

/* Where part `part` of a matmul begins, counted in strides of panels of chunks. */
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

/* The first `panels` panels by the tokens of chunk `chunk`: an N tile of a matmul, which another kernel takes up while
 * it is in the second-level cache. The panels are at the weights, and y is the N tile's, that the matmul is given. */
PYC_INLINE struct pyc_run pyc_n_tile(int chunk, int panels, int m, const struct pyc_shape s) {
    return (struct pyc_run){m, pyc_chunk_start(chunk, m, s), pyc_chunk_start(chunk + 1, m, s), 0, panels, 0};
}
#define PYC_MOST_TOKENS (PYC_FOLDS ? PYC_FOLDED_CHUNK : PYC_CHUNK) /* of an N tile */

/* A matmul whose number of outputs, the rows of y, is known when it is called. */
typedef int32_t (*pyc_matmul)(const void *x, const uint8_t *w, const float *bias, float *y, struct pyc_run run,
                              int outputs);

/* Defines a matmul that does a run by the register blocks that CALL does, `columns` vectors wide, with activations of a
 * type. */
#define PYC_MATMUL(name, type, columns, call)                                             \
    PYC_INLINE int32_t name(const type *x, const uint8_t *w, const float *bias, float *y, \
                            const struct pyc_run run, const struct pyc_shape s) {         \
        for (int p = run.panel_start; p < run.panel_stop; p++)                            \
            PYC_REGISTER_BLOCKS_OF_PANEL(call, columns, run.token_start, run.token_stop); \
        return 0;                                                                         \
    }

#endif
