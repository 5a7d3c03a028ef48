/* Integer products by the tile unit (AMX), bit for bit those of pyc_linear_integer.h: the dot products of a block are
 * exact integers either way, and are scaled and added in the same order.
 *
 * A panel's codes become signed bytes once for the chunk, [blocks][8 steps][16 outputs][4], the order of a tile's operand.
 * For 16 tokens and each block, one multiplication of tiles gives 16 x 16 dot products over 32 inputs, which go through
 * memory into 16 vectors of f32 sums. Two blocks are in flight. The last tile of a chunk overlaps the one before it.
 */
#ifndef PYC_LINEAR_TILES_H
#define PYC_LINEAR_TILES_H

#include "pyc_linear_folded.h"
#include "pyc_linear_integer.h"
#include "pyc_tile_unit.h"

#define PYC_TILE_ROWS 16

#if PYC_HAS_TILES

#define PYC_BLOCK_TILE (PYC_BLOCK * PYC_PANEL) /* bytes of a block's codes */

/* The codes of a panel, less their zero. Asymmetric int4 keeps codes - 8 and the zero points; see pyc_tile_zero. */
PYC_INLINE void pyc_unpack_panel(const int bits, const uint8_t *data, int8_t *codes, const struct pyc_shape s) {
    PYC_ROLLED for (int b = 0; b < s.blocks; b++)
        PYC_UNROLL for (int j = 0; j < bits; j++) {
            const pyc_u32v word = pyc_load_u32v(data + (b * bits + j) * PYC_PANEL_STEP);
            int8_t *to = codes + b * PYC_BLOCK_TILE + j * PYC_PANEL_STEP;
            typedef int8_t bytes __attribute__((ext_vector_type(PYC_PANEL_STEP)));
            if (bits == 8) {
                const pyc_u32v whole = word ^ 0x80808080u;
                memcpy(to, &whole, sizeof whole);
                continue;
            }
            const bytes low = ((bytes)(word & 0x0f0f0f0fu)) - 8, high = ((bytes)(word >> 4 & 0x0f0f0f0fu)) - 8;
            memcpy(to, &low, sizeof low);
            memcpy(to + 4 * PYC_PANEL_STEP, &high, sizeof high);
        }
}

/* 16 tokens by a panel; sum[t] are the f32 sums. */
PYC_INLINE void pyc_tile_block(const int bits, const uint8_t *x, const uint8_t *header, const int32_t *dots, int b,
                               pyc_f32v *sum, const struct pyc_shape s) {
    const int g = b / s.group_blocks;
    const pyc_i32v power = bits == 4 ? pyc_group_power(header, g, 0, s) : (pyc_i32v)0;
    pyc_i32v zero = 8;
    if (s.zeros) zero = __builtin_convertvector(pyc_load_u8v(header + s.zeros + g * PYC_PANEL), pyc_i32v);
    PYC_UNROLL for (int t = 0; t < PYC_TILE_ROWS; t++) {
        pyc_i32v dot;
        memcpy(&dot, dots + t * PYC_PANEL, sizeof dot);
        /* start is -8 sum x: dot counts codes - 8, wanted are codes - zero */
        if (s.zeros) dot += (zero - 8) * (pyc_row_start(x, t, b, s) >> 3);
        const pyc_f32v scale = bits == 4 ? (pyc_f32v)(power + pyc_row_power(x, t, b, s))
                                         : (pyc_f32v)pyc_row_scale(x, t, b, s);
        sum[t] = pyc_fma(pyc_to_f32v(dot), scale, sum[t]);
    }
}

PYC_INLINE int32_t pyc_linear_tiles(const int bits, const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                    const struct pyc_run run, const struct pyc_shape s) {
    PYC_TILES_BEGIN;
    int8_t codes[s.blocks * PYC_BLOCK_TILE] __attribute__((aligned(64)));
    int32_t dots[2][PYC_TILE_ROWS * PYC_PANEL] __attribute__((aligned(64)));
    for (int p = run.panel_start; p < run.panel_stop; p++) {
        const uint8_t *panel = w + (ptrdiff_t)p * s.panel_bytes;
        pyc_unpack_panel(bits, panel + s.data, codes, s);
        for (int from = run.token_start; from < run.token_stop; from += PYC_TILE_ROWS) {
            const int token = from + PYC_TILE_ROWS <= run.token_stop ? from : run.token_stop - PYC_TILE_ROWS;
            const uint8_t *row = x + (ptrdiff_t)token * s.row_bytes;
            pyc_f32v sum[PYC_TILE_ROWS];
            PYC_UNROLL for (int t = 0; t < PYC_TILE_ROWS; t++) sum[t] = 0;
            PYC_ROLLED for (int b = 0; b < s.blocks; b += 2) {
                const int8_t *values = (const int8_t *)row + s.row_data + b * PYC_BLOCK;
                PYC_TILE_ZERO(0);
                PYC_TILE_LOAD(4, values, s.row_bytes);
                PYC_TILE_LOAD(6, codes + b * PYC_BLOCK_TILE, 64);
                PYC_TILE_MULTIPLY(0, 4, 6);
                PYC_TILE_STORE(0, dots[0], 64);
                if (b + 1 < s.blocks) {
                    PYC_TILE_ZERO(1);
                    PYC_TILE_LOAD(5, values + PYC_BLOCK, s.row_bytes);
                    PYC_TILE_LOAD(7, codes + (b + 1) * PYC_BLOCK_TILE, 64);
                    PYC_TILE_MULTIPLY(1, 5, 7);
                    PYC_TILE_STORE(1, dots[1], 64);
                }
                pyc_tile_block(bits, row, panel, dots[0], b, sum, s);
                if (b + 1 < s.blocks) pyc_tile_block(bits, row, panel, dots[1], b + 1, sum, s);
            }
            PYC_UNROLL for (int t = 0; t < PYC_TILE_ROWS; t++) {
                const float first = pyc_row_scale(row, t, 0, s);
                const pyc_f32v value = bits == 4 ? sum[t] + (first - first) : sum[t] * pyc_load_f32v(panel);
                const float *own = bias ? bias + p * PYC_PANEL : NULL;
                pyc_store_row(y + (ptrdiff_t)(token + t) * s.outputs + p * PYC_PANEL, own, value,
                              s.outputs - p * PYC_PANEL);
            }
        }
    }
    PYC_TILES_END;
    return 0;
}

#else

PYC_INLINE int32_t pyc_linear_tiles(const int bits, const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                    const struct pyc_run run, const struct pyc_shape s) {
    return 0;
}

#endif

/* The products that a library exports: by tiles where there are enough tokens for one, or by folded panels. */

PYC_INLINE int pyc_fills_tile(const struct pyc_run run) {
    return PYC_HAS_TILES && run.token_stop - run.token_start >= PYC_TILE_ROWS;
}

PYC_INLINE int32_t pyc_linear_int4(const uint8_t *x, const uint8_t *w, const float *bias, float *y, struct pyc_run run,
                                   const struct pyc_shape s) {
    if (pyc_fills_tile(run)) return pyc_linear_tiles(4, x, w, bias, y, run, s);
    if (pyc_folds(s)) run.token_start = pyc_linear_folded(x, w, bias, y, run, s);
    return pyc_linear_int4_vectors(x, w, bias, y, run, s);
}

PYC_INLINE int32_t pyc_linear_int8(const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                   const struct pyc_run run, const struct pyc_shape s) {
    if (pyc_fills_tile(run)) return pyc_linear_tiles(8, x, w, bias, y, run, s);
    return pyc_linear_int8_vectors(x, w, bias, y, run, s);
}

#endif
