/* SwiGLU and GeGLU: a matmul of stacked gates and values, and the quantized rows of act(gate) value (pyc_gates.h), by N
 * tiles: 32 features by the tokens of a chunk. The 2 F floats a token stay in the second-level cache instead of going
 * to memory and back. For batches whose rows are all interleaved (pyc_interleaved_rows.h).
 */
#ifndef PYC_LINEAR_GATED_H
#define PYC_LINEAR_GATED_H

#include "pyc_gates.h"
#include "pyc_work_partition.h"
#include "pyc_quantize_rows.h"

#if PYC_FOLDS

/* Block b of PYC_INTERLEAVED_TOKENS rows, f32 [tokens][32]; with a fault in one, which marks its block and not the
 * row's first: that one may be another thread's. */
PYC_INLINE void pyc_quantize_n_tile(const float *x, struct pyc_interleaved_block *to) {
    for (int t = 0; t < PYC_INTERLEAVED_TOKENS; t++, x += PYC_BLOCK) {
        float scale;
        int32_t correction;
        const int fault = pyc_quantize_block(1, x, &scale, &correction, to->values[t]);
        pyc_place_factors(to, t, fault ? __builtin_nanf("") : scale, correction);
    }
}

/* The same for two groups of rows, without faults; returns 0 where there is one. */
PYC_INLINE int pyc_quantize_n_tiles(const float *x, struct pyc_interleaved_block *to,
                                    struct pyc_interleaved_block *other) {
    float scales[PYC_LANES];
    int32_t corrections[PYC_LANES];
    int8_t values[PYC_LANES][PYC_BLOCK] __attribute__((aligned(64)));
    if (!pyc_quantize_blocks(1, x, scales, corrections, values[0], PYC_BLOCK)) return 0;
    memcpy(to->values, values, sizeof to->values);
    memcpy(other->values, values + PYC_INTERLEAVED_TOKENS, sizeof other->values);
    for (int t = 0; t < PYC_INTERLEAVED_TOKENS; t++) {
        pyc_place_factors(to, t, scales[t], corrections[t]);
        pyc_place_factors(other, t, scales[PYC_INTERLEAVED_TOKENS + t], corrections[PYC_INTERLEAVED_TOKENS + t]);
    }
    return 1;
}

/* Block b of the quantized rows of the tokens [start, stop), of an N tile f32 [tokens][2][32] of gates and values,
 * which it overwrites. */
PYC_OUTLINE void pyc_gate_n_tile(const int gate, float *n_tile, uint8_t *quantized, int b, int start, int stop,
                                const struct pyc_shape made) {
    const float *from = n_tile;
    float *to = n_tile;
    for (int t = start; t < stop; t++, from += 2 * PYC_BLOCK, to += PYC_BLOCK) {
        pyc_f32v value[PYC_BLOCK / PYC_LANES];
        PYC_UNROLL for (int i = 0; i < PYC_BLOCK / PYC_LANES; i++)
            value[i] = pyc_gate(gate, pyc_load_f32v(from + i * PYC_LANES)) *
                       pyc_load_f32v(from + PYC_BLOCK + i * PYC_LANES);
        memcpy(to, value, sizeof value);
    }
    for (int t = start; t < stop; n_tile += PYC_INTERLEAVED_TOKENS * PYC_BLOCK) {
        struct pyc_interleaved_block *block = pyc_interleaved_at(quantized, t, made) + b;
        t += PYC_INTERLEAVED_TOKENS;
        if (t < stop && pyc_quantize_n_tiles(n_tile, block, pyc_interleaved_at(quantized, t, made) + b)) {
            n_tile += PYC_INTERLEAVED_TOKENS * PYC_BLOCK;
            t += PYC_INTERLEAVED_TOKENS;
        } else {
            pyc_quantize_n_tile(n_tile, block);
        }
    }
}

/* Part `part` of `parts` of m tokens; `made` are the constants of the quantized rows. */
PYC_INLINE int32_t pyc_linear_gated(const pyc_matmul multiply, const int gate, const void *x, const uint8_t *w,
                                    uint8_t *quantized, int32_t m, int32_t part, int32_t parts,
                                    const struct pyc_shape s, const struct pyc_shape made) {
    const int panels = PYC_BLOCK / PYC_PANEL, items = pyc_chunks(m, s) * made.blocks;
    float n_tile[PYC_MOST_TOKENS * 2 * PYC_BLOCK] __attribute__((aligned(64)));
    for (int item = pyc_part_row(items, part, parts); item < pyc_part_row(items, part + 1, parts); item++) {
        const int b = item % made.blocks;
        const struct pyc_run run = pyc_n_tile(item / made.blocks, panels, m, s);
        const uint8_t *gates = w + (ptrdiff_t)b * panels * s.panel_bytes;
        float *to = n_tile - (ptrdiff_t)run.token_start * 2 * PYC_BLOCK;
        multiply(x, gates, NULL, to, run, 2 * PYC_BLOCK);
        multiply(x, gates + (ptrdiff_t)made.blocks * panels * s.panel_bytes, NULL, to + PYC_BLOCK, run, 2 * PYC_BLOCK);
        pyc_gate_n_tile(gate, n_tile, quantized, b, run.token_start, run.token_stop, made);
    }
    return 0;
}

#endif
#endif
