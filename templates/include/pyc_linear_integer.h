/* y = x W^T (+ bias) with int8 activations: for token t, row r, blocks b of 32 inputs,
 *
 *   int4: y = sum over groups g of scale_w[g][r] * sum over b in g of scale_x[t][b] * (sum q x - zero[g][r] sum x)
 *   int8: y = scale_w[r] * sum over b of scale_x[t][b] * sum q x
 *   int8 in groups: as int4, with sum q x for the dot product
 *
 * The integer sums are exact, the sum x is stored with the activations, and the sums over blocks are f32 in
 * order of b. Each function handles m tokens and the panels [panel_start, panel_stop).
 * `scratch` i32 [PYC_TILE_TOKENS * blocks] holds what each dot product starts with: -zero * sum x.
 */
#ifndef PYC_LINEAR_INTEGER_H
#define PYC_LINEAR_INTEGER_H

#include "pyc_dot.h"

PYC_INLINE pyc_f32v pyc_to_f32v(pyc_i32v value) { return __builtin_convertvector(value, pyc_f32v); }

PYC_INLINE void pyc_start_values(const int T, const uint8_t *x, const int zero, int32_t *scratch,
                                 const struct pyc_shape s) {
    for (int t = 0; t < T; t++)
        for (int b = 0; b < s.blocks; b++)
            scratch[t * s.blocks + b] = -zero * pyc_load_i32(x + (ptrdiff_t)t * s.row_bytes + s.row_sums + 4 * b);
}

PYC_INLINE float pyc_row_scale(const uint8_t *x, const int t, int b, const struct pyc_shape s) {
    return pyc_load_f32(x + (ptrdiff_t)t * s.row_bytes + 4 * b);
}

/* Where the weights come from memory, `ahead` (the first tile that reads a panel) keeps the stream going:
 * - The header is asked for before the data. Read a little at a time beside the data, headers of 512 bytes and
 *   more made the hardware's prefetcher give up: 12 instead of 32 GB/s on Zen 4 (int4-g32, one token). With one or
 *   two tokens it is also copied, so that the data is the only stream: 31 instead of 19 GB/s (int8-g32, AVX2).
 * - With more than two tokens a panel takes longer than the hardware looks ahead: the next one is asked for, into
 *   the second-level cache (8 tokens: 22 instead of 14 GB/s). With one token that only costs.
 */

#define PYC_HEADER_BYTES (1 << 14) /* of a copied header: it stays in the first-level cache */

/* One tile of codes of `bits` (4 or 8) in groups; `panel`, `bias` and `y` point to the first row of the tile, `x` to
 * the first token. A block of 32 inputs takes `bits` steps of a panel. */
PYC_INLINE void pyc_group_tile(const int bits, const int T, const int C, const uint8_t *x, const uint8_t *panel,
                               int column, const float *bias, float *y, int count, int ahead, int32_t *scratch,
                               const struct pyc_shape s) {
    const int middle = bits == 4 ? 8 : PYC_INT8_ZERO;
    const int block_bytes = bits * PYC_PANEL_STEP;
    const int groups = s.blocks / s.group_blocks;
    const uint8_t *data = panel + s.data + column * PYC_VECTOR_BYTES;
    pyc_f32v sum[PYC_TILE_TOKENS][PYC_COLUMNS];
    PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) sum[t][c] = 0;
    uint8_t held[PYC_HEADER_BYTES] __attribute__((aligned(64)));
    const uint8_t *header = panel;
    if (ahead) pyc_prefetch_near(panel, s.data);
    if (ahead && T <= 2 && s.data <= PYC_HEADER_BYTES) {
        memcpy(held, panel, s.data);
        header = held;
    }
    if (!s.zeros && middle) pyc_start_values(T, x, middle, scratch, s);
    PYC_ROLLED for (int g = 0; g < groups; g++) {
        pyc_f32v part[PYC_TILE_TOKENS][PYC_COLUMNS];
        PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) part[t][c] = 0;
        PYC_ROLLED for (int b = g * s.group_blocks; b < (g + 1) * s.group_blocks; b++) {
            pyc_dots dot;
            if (ahead && T > 2) pyc_prefetch_far(data + b * block_bytes + s.panel_bytes, block_bytes);
            PYC_UNROLL for (int t = 0; t < T; t++)
                PYC_UNROLL for (int c = 0; c < C; c++) {
                    if (!s.zeros) {
                        dot[t][c] = (pyc_i32v)(middle ? scratch[t * s.blocks + b] : 0);
                        continue;
                    }
                    const uint8_t *zero = header + s.zeros + g * PYC_PANEL + (column + c) * PYC_LANES;
                    const int32_t row_sum = pyc_load_i32(x + (ptrdiff_t)t * s.row_bytes + s.row_sums + 4 * b);
                    dot[t][c] = __builtin_convertvector(pyc_load_u8v(zero), pyc_i32v) * -row_sum;
                }
            const uint8_t *row = x + s.row_data + b * PYC_BLOCK;
            if (bits == 4)
                pyc_dot_int4(T, C, data + b * block_bytes, row, s.row_bytes, dot);
            else
                pyc_dot_int8(T, C, data + b * block_bytes, row, s.row_bytes, dot);
            PYC_UNROLL for (int t = 0; t < T; t++)
                PYC_UNROLL for (int c = 0; c < C; c++) {
                    const pyc_f32v scale = pyc_row_scale(x, t, b, s);
                    const pyc_f32v value = pyc_to_f32v(dot[t][c]);
                    part[t][c] = s.group_blocks == 1 ? value * scale : pyc_fma(value, scale, part[t][c]);
                }
        }
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const uint8_t *scale = header + 2 * (g * PYC_PANEL + (column + c) * PYC_LANES);
            const pyc_f32v weight_scale = pyc_f16_values(pyc_load_u16v(scale));
            PYC_UNROLL for (int t = 0; t < T; t++) sum[t][c] = pyc_fma(part[t][c], weight_scale, sum[t][c]);
        }
    }
    PYC_UNROLL for (int t = 0; t < T; t++)
        PYC_UNROLL for (int c = 0; c < C; c++)
            pyc_store_row(y + (ptrdiff_t)t * s.outputs + c * PYC_LANES, bias ? bias + c * PYC_LANES : NULL, sum[t][c],
                          count - c * PYC_LANES);
}

/* One tile of int8 with a scale a row; arguments as above. */
PYC_INLINE void pyc_int8_tile(const int T, const int C, const uint8_t *x, const uint8_t *panel, int column,
                              const float *bias, float *y, int count, int ahead, int32_t *scratch,
                              const struct pyc_shape s) {
    const uint8_t *data = panel + s.data + column * PYC_VECTOR_BYTES;
    pyc_f32v sum[PYC_TILE_TOKENS][PYC_COLUMNS];
    PYC_UNROLL for (int t = 0; t < T; t++) PYC_UNROLL for (int c = 0; c < C; c++) sum[t][c] = 0;
    if (PYC_INT8_ZERO) pyc_start_values(T, x, PYC_INT8_ZERO, scratch, s);
    PYC_ROLLED for (int b = 0; b < s.blocks; b++) {
        pyc_dots dot;
        if (ahead && T > 2) pyc_prefetch_far(data + b * 8 * PYC_PANEL_STEP + s.panel_bytes, 8 * PYC_PANEL_STEP);
        PYC_UNROLL for (int t = 0; t < T; t++)
            PYC_UNROLL for (int c = 0; c < C; c++)
                dot[t][c] = (pyc_i32v)(PYC_INT8_ZERO ? scratch[t * s.blocks + b] : 0);
        pyc_dot_int8(T, C, data + b * 8 * PYC_PANEL_STEP, x + s.row_data + b * PYC_BLOCK, s.row_bytes, dot);
        PYC_UNROLL for (int t = 0; t < T; t++)
            PYC_UNROLL for (int c = 0; c < C; c++)
                sum[t][c] = pyc_fma(pyc_to_f32v(dot[t][c]), (pyc_f32v)pyc_row_scale(x, t, b, s), sum[t][c]);
    }
    PYC_UNROLL for (int t = 0; t < T; t++)
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const pyc_f32v scale = pyc_load_f32v(panel + 4 * (column + c) * PYC_LANES);
            pyc_store_row(y + (ptrdiff_t)t * s.outputs + c * PYC_LANES, bias ? bias + c * PYC_LANES : NULL,
                          sum[t][c] * scale, count - c * PYC_LANES);
        }
}

#define PYC_INTEGER_PRODUCT(name, tile)                                                                             \
    PYC_INLINE int32_t name(const uint8_t *x, const uint8_t *w, const float *bias, float *y, int m, int panel_start, \
                            int panel_stop, int32_t *scratch, const struct pyc_shape s) {                           \
        for (int chunk = 0; chunk < m; chunk += PYC_CHUNK) {                                                        \
            const int stop = m < chunk + PYC_CHUNK ? m : chunk + PYC_CHUNK;                                         \
            for (int p = panel_start; p < panel_stop; p++)                                                          \
                PYC_TILE_TOKENS_OF_PANEL(tile, chunk, stop);                                                        \
        }                                                                                                           \
        return 0;                                                                                                   \
    }

#define PYC_TILE_CALL(tile, token, tokens, column, columns)                                                       \
    tile(tokens, columns, x + (ptrdiff_t)(token)*s.row_bytes, w + (ptrdiff_t)p * s.panel_bytes, column,           \
         bias ? bias + p * PYC_PANEL + (column)*PYC_LANES : NULL,                                                 \
         y + (ptrdiff_t)(token)*s.outputs + p * PYC_PANEL + (column)*PYC_LANES,                                   \
         s.outputs - p * PYC_PANEL - (column)*PYC_LANES, token == chunk && column == 0, scratch, s)
#define PYC_INT4_TILE(...) pyc_group_tile(4, __VA_ARGS__)
#define PYC_INT8_GROUP_TILE(...) pyc_group_tile(8, __VA_ARGS__)
#define PYC_CALL_INT4(token, tokens, column, columns) PYC_TILE_CALL(PYC_INT4_TILE, token, tokens, column, columns)
#define PYC_CALL_INT8G(token, tokens, column, columns) \
    PYC_TILE_CALL(PYC_INT8_GROUP_TILE, token, tokens, column, columns)
#define PYC_CALL_INT8(token, tokens, column, columns) PYC_TILE_CALL(pyc_int8_tile, token, tokens, column, columns)

PYC_INTEGER_PRODUCT(pyc_linear_int4, PYC_CALL_INT4)
PYC_INTEGER_PRODUCT(pyc_linear_int8, PYC_CALL_INT8)
PYC_INTEGER_PRODUCT(pyc_linear_int8_group, PYC_CALL_INT8G)

#endif
