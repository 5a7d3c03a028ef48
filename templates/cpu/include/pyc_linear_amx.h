/* Matmuls by the tile unit (AMX): bf16 activations (pyc_amx_rows.h) by bf16 weights (pyc_amx_weights.h), f32 sums.
 *
 * Two tiles of tokens by two panels at a time. Of two panels a segment of blocks is made ready, so that it stays in the
 * first-level cache while the chunk's tokens go by in the second; sums wait in memory between segments. A sum adds
 * pairs of products in order of the block, so that it depends neither on the chunk nor on the token's place in a tile.
 *
 * A gated matmul (SwiGLU, GeGLU) has the rows of a gate and those of values after each other. It takes a panel of each
 * at a time, and gives no sums but the quantized rows of act(gate) value: 2 F floats a token would go to memory and
 * come back.
 */
#ifndef PYC_LINEAR_AMX_H
#define PYC_LINEAR_AMX_H

#include "pyc_amx_weights.h"
#include "pyc_gates.h"
#include "pyc_work_partition.h"

#if PYC_HAS_TILES

#define PYC_TILE_SEGMENT 16 /* blocks: those of two panels take 32 KB */
#define PYC_STREAMED_BYTES (1 << 20)

/* Two panels, or the last one, and where their sums go. */
struct pyc_amx_panels {
    const uint8_t *first;
    ptrdiff_t second;  /* bytes from the first panel to the other */
    const float *bias; /* of the first panel's rows; or NULL */
    float *y;          /* the column of the first panel's rows, of which `columns` are left */
    int columns;
    int streamed;       /* y is larger than what the caches hold: it goes to memory past them */
    uint8_t *quantized; /* of a gated matmul, of which these are features `feature` to `feature` + 15 */
    int feature, codes;
    ptrdiff_t next; /* bytes to the panels that come next; 0: none */
};

/* Prefetches share `index` of `shares` of what is made ready next: `blocks` blocks behind block `from`, or the start of
 * the panels that come next. Weights come from memory, and a segment of them is read in one go. */
PYC_INLINE void pyc_prefetch_segment(const int kind, const int P, const struct pyc_amx_panels to, int from, int index,
                                     int shares, const struct pyc_shape s) {
    const int steps = kind == PYC_PANEL_LOOKUP ? s.bits : kind == PYC_PANEL_INT4 ? 4 : 8;
    const int block = kind == PYC_PANEL_BF16 ? PYC_TILE_BYTES : steps * PYC_PANEL_STEP;
    const int later = from < s.blocks, left = s.blocks - from;
    const int blocks = !later || left > PYC_TILE_SEGMENT ? PYC_TILE_SEGMENT : left;
    const int lines = (blocks * block + (later ? 0 : s.data)) / 64;
    const uint8_t *at = to.first + (later ? s.data + (ptrdiff_t)from * block : to.next);
    if (!later && !to.next) return;
    for (int line = lines * index / shares; line < lines * (index + 1) / shares; line++)
        PYC_UNROLL for (int p = 0; p < P; p++) __builtin_prefetch(at + p * to.second + line * 64, 0, 2);
}

/* Sums that are complete, f32 [tiles][P][16][16], and have not been given yet: those of rows [at, rows) from `token`
 * on. That is done a little at a time beside the tiles that come after them, as sums have to come back from the tile
 * unit first. */
struct pyc_amx_waiting {
    const float *sums;
    int token, at, rows;
};

/* Stores a line past the caches. As an intrinsic, the compiler took it and the other store of y for one. */
PYC_INLINE void pyc_stream(float *y, pyc_f32v value) {
    __asm__ volatile("vmovntps %1, %0" : "=m"(*(pyc_f32v *)y) : "v"(value));
}

/* Row `row` of a batch of m: 16 features of it, quantized. */
PYC_INLINE void pyc_give_gated(const int gate, pyc_f32v x, pyc_f32v value, int row, int m,
                               const struct pyc_amx_panels to, const struct pyc_shape s) {
    uint8_t *block = to.quantized + pyc_amx_row_at(row, m, s.outputs / 2 / PYC_BLOCK, to.feature / PYC_BLOCK);
    pyc_round_half_block(to.codes, pyc_gate(gate, x) * value, block + to.feature % PYC_BLOCK * 2);
}

/* `count` rows, or what is left. */
PYC_INLINE void pyc_give_rows(const int kind, const int P, const int gate, struct pyc_amx_waiting *from, int count,
                              int m, const struct pyc_amx_panels to, const struct pyc_shape s) {
    PYC_ROLLED for (; count > 0 && from->at < from->rows; count--, from->at++) {
        const float *sums = from->sums +
                            (from->at / PYC_TILE_ROWS * P * PYC_TILE_ROWS + from->at % PYC_TILE_ROWS) * PYC_PANEL;
        const int row = from->token + from->at;
        pyc_f32v sum[2];
        PYC_UNROLL for (int p = 0; p < P; p++)
            sum[p] = pyc_load_f32v(sums + p * PYC_TILE_ROWS * PYC_PANEL) *
                     pyc_tile_factor(kind, to.first + p * to.second, s);
        if (gate) {
            pyc_give_gated(gate, sum[0], sum[P - 1], row, m, to, s);
            continue;
        }
        PYC_UNROLL for (int p = 0; p < P; p++) {
            const float *bias = to.bias ? to.bias + p * PYC_PANEL : NULL;
            float *y = to.y + (ptrdiff_t)row * s.outputs + p * PYC_PANEL;
            if (to.streamed)
                pyc_stream(y, bias ? sum[p] + pyc_load_f32v(bias) : sum[p]);
            else
                pyc_store_row(y, bias, sum[p], to.columns - p * PYC_PANEL);
        }
    }
}

/* Adds a block, or a piece of one, by weights that are loaded if `other` is set, and else those of the piece before. */
#define PYC_TILE_BLOCK(T, P, other)                            \
    do {                                                       \
        PYC_TILE_STREAM(4, a, 64);                             \
        if (T > 1) PYC_TILE_STREAM(5, a + PYC_TILE_BYTES, 64); \
        if (other) PYC_TILE_LOAD(6, w, 64);                    \
        PYC_TILE_PAIRS(0, 4, 6);                               \
        if (T > 1) PYC_TILE_PAIRS(2, 5, 6);                    \
        if (P > 1 && other) PYC_TILE_LOAD(7, w + w_panel, 64); \
        if (P > 1) PYC_TILE_PAIRS(1, 4, 7);                    \
        if (T > 1 && P > 1) PYC_TILE_PAIRS(3, 5, 7);           \
        a += a_block;                                          \
    } while (0)

/* sums [T][P][16][16] (+)= T tiles of tokens by P panels, over `blocks` blocks. Blocks of activations, or their pieces,
 * are `a_block` bytes apart, with the second tile behind the first; blocks of weights are `w_block` bytes apart, and
 * those of the second panel `w_panel` further. */
#define PYC_TILE_MATMUL(T, P)                                             \
    do {                                                                  \
        if (first) {                                                      \
            PYC_TILE_ZERO(0);                                             \
            if (P > 1) PYC_TILE_ZERO(1);                                  \
            if (T > 1) PYC_TILE_ZERO(2);                                  \
            if (T > 1 && P > 1) PYC_TILE_ZERO(3);                         \
        } else {                                                          \
            PYC_TILE_LOAD(0, sums, 64);                                   \
            if (P > 1) PYC_TILE_LOAD(1, sums + 256, 64);                  \
            if (T > 1) PYC_TILE_LOAD(2, sums + 256 * P, 64);              \
            if (T > 1 && P > 1) PYC_TILE_LOAD(3, sums + 768, 64);         \
        }                                                                 \
        PYC_ROLLED for (int b = 0; b < blocks; b++) {                     \
            PYC_TILE_BLOCK(T, P, 1);                                      \
            if (s.pieces == 3) {                                          \
                PYC_TILE_BLOCK(T, P, 0);                                  \
                PYC_TILE_BLOCK(T, P, 0);                                  \
            }                                                             \
            pyc_give_rows(kind, P, gate, &waiting, 2, run.tokens, to, s); \
            w += w_block;                                                 \
        }                                                                 \
        PYC_TILE_STORE(0, sums, 64);                                      \
        if (P > 1) PYC_TILE_STORE(1, sums + 256, 64);                     \
        if (T > 1) PYC_TILE_STORE(2, sums + 256 * P, 64);                 \
        if (T > 1 && P > 1) PYC_TILE_STORE(3, sums + 768, 64);            \
    } while (0)

/* The tokens of a run by P panels; the tile unit is `configured` for so many rows. */
PYC_INLINE void pyc_linear_amx_panels(const int kind, const int P, const int gate, const uint8_t *x,
                                      const struct pyc_amx_panels to, const struct pyc_run run, int *configured,
                                      const struct pyc_shape s) {
    uint8_t ready[PYC_TILE_SEGMENT * P * PYC_TILE_BYTES] __attribute__((aligned(64)));
    float held[PYC_PAIRED_CHUNK * P * PYC_PANEL] __attribute__((aligned(64)));
    const int prepared = kind != PYC_PANEL_BF16 || s.inputs % PYC_BLOCK;
    const ptrdiff_t w_block = prepared ? P * PYC_TILE_BYTES : PYC_TILE_BYTES;
    const ptrdiff_t w_panel = prepared ? PYC_TILE_BYTES : to.second;
    struct pyc_amx_waiting waiting = {0};
    for (int from = 0; from < s.blocks; from += PYC_TILE_SEGMENT) {
        const int blocks = s.blocks - from < PYC_TILE_SEGMENT ? s.blocks - from : PYC_TILE_SEGMENT;
        const int first = from == 0, last = from + blocks == s.blocks;
        const uint8_t *weights = to.first + s.data + (ptrdiff_t)from * PYC_TILE_BYTES;
        if (prepared) {
            pyc_pair_panels(kind, to.first, to.second, P, from, blocks, ready, s);
            weights = ready;
        }
        float *sums = held;
        const int shares = (run.token_stop - run.token_start + PYC_PAIRED_ROWS - 1) / PYC_PAIRED_ROWS;
        for (int token = run.token_start, share = 0; token < run.token_stop; share++) {
            pyc_prefetch_segment(kind, P, to, from + PYC_TILE_SEGMENT, share, shares, s);
            const int a_block = pyc_paired_rows(token, run.tokens) * 64, left = run.token_stop - token;
            const int tiles = left < PYC_PAIRED_ROWS ? 1 : 2, rows = left < PYC_TILE_ROWS ? left : PYC_TILE_ROWS;
            const uint8_t *a = x + pyc_amx_row_at(token, run.tokens, s.blocks * s.pieces, from * s.pieces),
                          *w = weights;
            if (rows != *configured) PYC_TILES_BEGIN(rows);
            *configured = rows;
            if (tiles == 2)
                PYC_TILE_MATMUL(2, P);
            else
                PYC_TILE_MATMUL(1, P);
            if (last) {
                pyc_give_rows(kind, P, gate, &waiting, PYC_PAIRED_ROWS, run.tokens, to, s);
                waiting = (struct pyc_amx_waiting){sums, token, 0, tiles * rows};
            }
            token += tiles * rows;
            sums += tiles * P * 256;
        }
    }
    pyc_give_rows(kind, P, gate, &waiting, PYC_PAIRED_ROWS, run.tokens, to, s);
}

/* Rows of the first tile of a run. */
PYC_INLINE int pyc_first_rows(const struct pyc_run run) {
    const int tokens = run.token_stop - run.token_start;
    return tokens < PYC_TILE_ROWS ? tokens : PYC_TILE_ROWS;
}

PYC_INLINE int32_t pyc_linear_amx(const int kind, const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                  const struct pyc_run run, const struct pyc_shape s) {
    int configured = pyc_first_rows(run);
    PYC_TILES_BEGIN(configured);
    const int streamed = s.outputs % PYC_PANEL == 0 && (int64_t)run.tokens * s.outputs * 4 > PYC_STREAMED_BYTES;
    for (int p = run.panel_start; p < run.panel_stop; p += 2) {
        const int row = p * PYC_PANEL;
        const struct pyc_amx_panels to = {.first = w + (ptrdiff_t)p * s.panel_bytes,
                                          .second = s.panel_bytes,
                                          .bias = bias ? bias + row : NULL,
                                          .y = y + row,
                                          .columns = s.outputs - row,
                                          .streamed = streamed,
                                          .next = p + 3 < pyc_panels(s) ? 2 * s.panel_bytes : 0};
        if (pyc_panels(s) % 2 == 0 || p + 1 < run.panel_stop)
            pyc_linear_amx_panels(kind, 2, 0, x, to, run, &configured, s);
        else
            pyc_linear_amx_panels(kind, 1, 0, x, to, run, &configured, s);
    }
    PYC_TILES_END;
    __builtin_ia32_sfence(); /* what was streamed is there before the call is over */
    return 0;
}

/* The same for a gated matmul; a stride of panels is one of the gate and one of values. */
PYC_INLINE int32_t pyc_linear_amx_gated(const int kind, const int gate, const int codes, const uint8_t *x,
                                        const uint8_t *w, uint8_t *quantized, const struct pyc_run run,
                                        const struct pyc_shape s) {
    int configured = pyc_first_rows(run);
    PYC_TILES_BEGIN(configured);
    for (int p = run.panel_start / 2; p < run.panel_stop / 2; p++) {
        const struct pyc_amx_panels to = {.first = w + (ptrdiff_t)p * s.panel_bytes,
                                          .second = (ptrdiff_t)(s.outputs / 2 / PYC_PANEL) * s.panel_bytes,
                                          .quantized = quantized,
                                          .feature = p * PYC_PANEL,
                                          .codes = codes,
                                          .next = p + 1 < pyc_panels(s) / 2 ? s.panel_bytes : 0};
        pyc_linear_amx_panels(kind, 2, gate, x, to, run, &configured, s);
    }
    PYC_TILES_END;
    return 0;
}

#else

PYC_INLINE int32_t pyc_linear_amx(const int kind, const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                  const struct pyc_run run, const struct pyc_shape s) {
    return 0;
}

#endif

#endif
