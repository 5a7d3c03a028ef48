/* Products by the tile unit (AMX): bf16 activations (pyc_amx_records.h) by bf16 weights (pyc_amx_weights.h), f32 sums.
 *
 * Two tiles of tokens by two panels at a time. Of two panels a segment of blocks is made ready, so that it stays in the
 * first-level cache while the chunk's tokens go by in the second; sums wait in memory between segments. A sum adds pairs
 * of products in order of the block, so that it depends neither on the chunk nor on the token's place in a tile.
 */
#ifndef PYC_LINEAR_AMX_H
#define PYC_LINEAR_AMX_H

#include "pyc_amx_weights.h"
#include "pyc_parts.h"

#if PYC_HAS_TILES

#define PYC_TILE_SEGMENT 16

/* Sums that are complete, f32 [tiles][P][16][16], and have not been given yet: rows [at, rows) of them, to y. That is done a
 * little at a time beside the tiles that come after them, as the sums themselves have to come back from the tile unit. */
struct pyc_waiting {
    const float *sums;
    float *y;          /* the first row and column */
    const float *bias; /* of the first column; or NULL */
    const uint8_t *panel;
    int at, rows, columns;
    int streamed; /* y is larger than what the caches hold: it goes to memory past them */
};

#define PYC_STREAMED_BYTES (1 << 20)

/* `count` rows, or what is left. */
PYC_INLINE void pyc_give_rows(const int kind, const int P, struct pyc_waiting *from, int count, const struct pyc_shape s) {
    PYC_ROLLED for (; count > 0 && from->at < from->rows; count--, from->at++) {
        const float *sums = from->sums + (from->at / PYC_TILE_ROWS * P * PYC_TILE_ROWS + from->at % PYC_TILE_ROWS) * PYC_PANEL;
        PYC_UNROLL for (int p = 0; p < P; p++) {
            const float *bias = from->bias ? from->bias + p * PYC_PANEL : NULL;
            float *y = from->y + (ptrdiff_t)from->at * s.outputs + p * PYC_PANEL;
            pyc_f32v sum = pyc_load_f32v(sums + p * PYC_TILE_ROWS * PYC_PANEL) *
                           pyc_tile_factor(kind, from->panel + (ptrdiff_t)p * s.panel_bytes, s);
            if (from->streamed)
                __builtin_nontemporal_store(bias ? sum + pyc_load_f32v(bias) : sum, (pyc_f32v *)y);
            else
                pyc_store_row(y, bias, sum, from->columns - p * PYC_PANEL);
        }
    }
}

/* sums [T][P][16][16] (+)= T tiles of tokens by P panels, over `blocks` blocks. Blocks of activations are `a_block` bytes apart,
 * with the second tile behind the first; blocks of weights are `w_block` bytes apart, and those of the second panel `w_panel` further. */
#define PYC_TILE_PRODUCT(T, P)                                                                       \
    do {                                                                                             \
        if (first) {                                                                                 \
            PYC_TILE_ZERO(0);                                                                        \
            if (P > 1) PYC_TILE_ZERO(1);                                                             \
            if (T > 1) PYC_TILE_ZERO(2);                                                             \
            if (T > 1 && P > 1) PYC_TILE_ZERO(3);                                                    \
        } else {                                                                                     \
            PYC_TILE_LOAD(0, sums, 64);                                                              \
            if (P > 1) PYC_TILE_LOAD(1, sums + 256, 64);                                             \
            if (T > 1) PYC_TILE_LOAD(2, sums + 256 * P, 64);                                         \
            if (T > 1 && P > 1) PYC_TILE_LOAD(3, sums + 768, 64);                                    \
        }                                                                                            \
        PYC_ROLLED for (int b = 0; b < blocks; b++) {                                                \
            PYC_TILE_STREAM(4, a, 64);                                                               \
            if (T > 1) PYC_TILE_STREAM(5, a + PYC_TILE_BYTES, 64);                                   \
            PYC_TILE_LOAD(6, w, 64);                                                                 \
            PYC_TILE_PAIRS(0, 4, 6);                                                                 \
            if (T > 1) PYC_TILE_PAIRS(2, 5, 6);                                                      \
            if (P > 1) PYC_TILE_LOAD(7, w + w_panel, 64);                                            \
            if (P > 1) PYC_TILE_PAIRS(1, 4, 7);                                                      \
            if (T > 1 && P > 1) PYC_TILE_PAIRS(3, 5, 7);                                             \
            pyc_give_rows(kind, P, &waiting, 2, s);                                                  \
            a += a_block;                                                                            \
            w += w_block;                                                                            \
        }                                                                                            \
        PYC_TILE_STORE(0, sums, 64);                                                                 \
        if (P > 1) PYC_TILE_STORE(1, sums + 256, 64);                                                \
        if (T > 1) PYC_TILE_STORE(2, sums + 256 * P, 64);                                            \
        if (T > 1 && P > 1) PYC_TILE_STORE(3, sums + 768, 64);                                       \
    } while (0)

/* The tokens of a run by P panels from `panel` on; `bias` and y begin with its first row, of which `columns` are left. */
PYC_INLINE void pyc_amx_panels(const int kind, const int P, const uint8_t *x, const uint8_t *panel, const float *bias,
                                float *y, int columns, const struct pyc_run run, const struct pyc_shape s) {
    uint8_t ready[PYC_TILE_SEGMENT * P * PYC_TILE_BYTES] __attribute__((aligned(64)));
    float held[PYC_PAIRED_CHUNK * P * PYC_PANEL] __attribute__((aligned(64)));
    const int prepared = kind != PYC_PANEL_PAIRS || s.inputs % PYC_BLOCK;
    const ptrdiff_t w_block = prepared ? P * PYC_TILE_BYTES : PYC_TILE_BYTES;
    const ptrdiff_t w_panel = prepared ? PYC_TILE_BYTES : s.panel_bytes;
    struct pyc_waiting waiting = {.panel = panel, .bias = bias, .columns = columns};
    waiting.streamed = s.outputs % PYC_PANEL == 0 && (int64_t)run.tokens * s.outputs * 4 > PYC_STREAMED_BYTES;

    for (int from = 0; from < s.blocks; from += PYC_TILE_SEGMENT) {
        const int blocks = s.blocks - from < PYC_TILE_SEGMENT ? s.blocks - from : PYC_TILE_SEGMENT;
        const int first = from == 0, last = from + blocks == s.blocks;
        const uint8_t *weights = panel + s.data + (ptrdiff_t)from * PYC_TILE_BYTES;
        if (prepared) {
            pyc_pair_panels(kind, panel, P, from, blocks, ready, s);
            weights = ready;
        }
        float *sums = held;
        for (int token = run.token_start; token < run.token_stop;) {
            const int a_block = pyc_paired_rows(token, run.tokens) * 64, left = run.token_stop - token;
            const int tiles = left < PYC_PAIRED_ROWS ? 1 : 2, rows = left < PYC_TILE_ROWS ? left : PYC_TILE_ROWS;
            const uint8_t *a = x + pyc_paired_at(token, s) + (ptrdiff_t)from * a_block, *w = weights;
            a += token % PYC_PAIRED_ROWS * 64;
            if (rows < PYC_TILE_ROWS) PYC_TILES_CHANGE(rows);
            if (tiles == 2)
                PYC_TILE_PRODUCT(2, P);
            else
                PYC_TILE_PRODUCT(1, P);
            if (rows < PYC_TILE_ROWS) PYC_TILES_CHANGE(PYC_TILE_ROWS);
            if (last) {
                pyc_give_rows(kind, P, &waiting, PYC_PAIRED_ROWS, s);
                waiting.sums = sums;
                waiting.y = y + (ptrdiff_t)token * s.outputs;
                waiting.at = 0;
                waiting.rows = tiles * rows;
            }
            token += tiles * rows;
            sums += tiles * P * 256;
        }
    }
    pyc_give_rows(kind, P, &waiting, PYC_PAIRED_ROWS, s);
}

PYC_INLINE int32_t pyc_linear_amx(const int kind, const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                    const struct pyc_run run, const struct pyc_shape s) {
    PYC_TILES_BEGIN(PYC_TILE_ROWS);
    for (int p = run.panel_start; p < run.panel_stop;) {
        const int row = p * PYC_PANEL, panels = p + 2 <= run.panel_stop ? 2 : 1;
        const uint8_t *panel = w + (ptrdiff_t)p * s.panel_bytes;
        const float *own = bias ? bias + row : NULL;
        if (panels == 2)
            pyc_amx_panels(kind, 2, x, panel, own, y + row, s.outputs - row, run, s);
        else
            pyc_amx_panels(kind, 1, x, panel, own, y + row, s.outputs - row, run, s);
        p += panels;
    }
    PYC_TILES_END;
    __builtin_ia32_sfence(); /* what was streamed is there before the call is over */
    return 0;
}

#else

PYC_INLINE int32_t pyc_linear_amx(const int kind, const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                    const struct pyc_run run, const struct pyc_shape s) {
    return 0;
}

#endif

#endif
