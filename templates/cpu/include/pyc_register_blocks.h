/* How a matmul [m, K] x [N, K], a GEMM, or a GEMV where m is 1, is cut into register blocks, and what its shape is.
 *
 * A call takes a chunk of tokens, few enough that their activations stay in the second-level cache, and a run of
 * panels. Loops, outermost first: panels of 16 rows, register blocks of tokens (8, 4, 2, 1), vectors of a panel. The
 * sum over K is never split, so a result depends neither on the chunk nor on the run.
 */
#ifndef PYC_REGISTER_BLOCKS_H
#define PYC_REGISTER_BLOCKS_H

#include "pyc_instructions.h"

/* All are compile-time constants in the functions that templates emit. Offsets are bytes in a panel or in a
 * quantized activation row. */
struct pyc_shape {
    int outputs;       /* N */
    int inputs;        /* K */
    int blocks;        /* ceil(K / 32) */
    int group_blocks;  /* blocks that share a weight scale */
    int zeros;         /* offset of the zero points, 0 when the scheme is symmetric */
    int row_exponents; /* offset of the rows' scale exponents, 0 where scales are f16 or f32 */
    int data;          /* offset of the weights */
    int panel_bytes;
    int row_corrections; /* offset of the zero-point corrections of a quantized row */
    int row_data;        /* offset of the values of a quantized row */
    int row_bytes;
    int pieces; /* bf16 numbers whose sum is an activation: 3 (pyc_split_rows.h), or 1 */
    int bits;   /* of a lookup code (pyc_lookup.h), else 0 */
    int lookup_zero;  /* minus the least entry of the table */
    int lookup_shift; /* what is added to the entries of groups whose scale says so */
    int scale_form;   /* PYC_SCALES_...: how the scales of groups are stored (pyc_scales.h) */
    int row_factors;  /* offset of what multiplies the sums of rows, of PYC_SCALES_E4M3 and PYC_SCALES_ROW */
    uint64_t table[4]; /* what entries are above the least, in bytes, the first in the lowest */
    int amx;    /* whether it is done by the tile unit, for batches of PYC_PAIRED_TOKENS or more (pyc_linear_amx.h) */
};

/* Tokens and vectors of the largest register block: accumulators and operands fit the registers. */
#if defined(__AVX512F__)
#define PYC_REGISTER_TOKENS 8
#define PYC_REGISTER_COLUMNS 1
#elif defined(__AVX2__)
#define PYC_REGISTER_TOKENS 4
#define PYC_REGISTER_COLUMNS 1
#elif defined(__aarch64__)
#define PYC_REGISTER_TOKENS 4
#define PYC_REGISTER_COLUMNS 2
#else
#define PYC_REGISTER_TOKENS 2
#define PYC_REGISTER_COLUMNS 1
#endif

/* The vectors where bytes are multiplied. In 256 bits two, which share the words of activations, though the f32 sums do
 * not fit as well: int4 is 1.2 times as fast as by one, with AVX2 and with AVX-VNNI. */
#if defined(__AVX2__) && !defined(__AVX512F__)
#define PYC_DOT_COLUMNS 2
#else
#define PYC_DOT_COLUMNS PYC_REGISTER_COLUMNS
#endif

/* Runs CALL(first token, tokens, first vector, vectors) over the tokens [start, stop) of one panel. One token
 * alone takes the whole panel, for more independent accumulators. Four register blocks beside each other, in the
 * portable library, are a loop: their code would be half of it. */
#if PYC_COLUMNS / PYC_REGISTER_COLUMNS > 2
#define PYC_EACH_REGISTER_BLOCK PYC_ROLLED
#else
#define PYC_EACH_REGISTER_BLOCK PYC_UNROLL
#endif
#define PYC_REGISTER_BLOCK_ROW(CALL, token, tokens, columns)                              \
    PYC_EACH_REGISTER_BLOCK for (int column = 0; column < PYC_COLUMNS; column += columns) \
        CALL(token, tokens, column, columns);

#define PYC_REGISTER_BLOCKS_OF_PANEL(CALL, columns, start, stop)                  \
    do {                                                                          \
        int token = start;                                                        \
        for (; token + PYC_REGISTER_TOKENS <= stop; token += PYC_REGISTER_TOKENS) \
            PYC_REGISTER_BLOCK_ROW(CALL, token, PYC_REGISTER_TOKENS, columns)     \
        if (PYC_REGISTER_TOKENS > 4 && token + 4 <= stop) {                       \
            PYC_REGISTER_BLOCK_ROW(CALL, token, 4, columns)                       \
            token += 4;                                                           \
        }                                                                         \
        if (PYC_REGISTER_TOKENS > 2 && token + 2 <= stop) {                       \
            PYC_REGISTER_BLOCK_ROW(CALL, token, 2, columns)                       \
            token += 2;                                                           \
        }                                                                         \
        if (token < stop) PYC_REGISTER_BLOCK_ROW(CALL, token, 1, PYC_COLUMNS)     \
    } while (0)

#endif
