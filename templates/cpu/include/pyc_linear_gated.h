/* A product of stacked gates and values, and the records of act(gate) value (pyc_gates.h), by strips: 32 features by the tokens of
 * a chunk. The 2 F floats a token stay in the second-level cache instead of going to memory and back. For batches whose records
 * are all in tiles (pyc_records.h).
 */
#ifndef PYC_LINEAR_GATED_H
#define PYC_LINEAR_GATED_H

#include "pyc_gates.h"
#include "pyc_parts.h"
#include "pyc_quantize_rows.h"

#if PYC_FOLDS

/* Block b of PYC_RECORD_TOKENS rows, f32 [tokens][32]; with a fault in one, which marks its block and not the row's first: that one
 * may be another thread's. */
PYC_INLINE void pyc_quantize_strip(const float *x, struct pyc_tile_block *to) {
    for (int t = 0; t < PYC_RECORD_TOKENS; t++, x += PYC_BLOCK) {
        float scale;
        int32_t start;
        const int fault = pyc_quantize_block(1, x, &scale, &start, to->values[t]);
        pyc_place_factors(to, t, fault ? __builtin_nanf("") : scale, start);
    }
}

/* The same for two tiles, without faults; returns 0 where there is one. */
PYC_INLINE int pyc_quantize_strips(const float *x, struct pyc_tile_block *to, struct pyc_tile_block *other) {
    float scales[PYC_LANES];
    int32_t starts[PYC_LANES];
    int8_t values[PYC_LANES][PYC_BLOCK] __attribute__((aligned(64)));
    if (!pyc_quantize_blocks(1, x, scales, starts, values[0], PYC_BLOCK)) return 0;
    memcpy(to->values, values, sizeof to->values);
    memcpy(other->values, values + PYC_RECORD_TOKENS, sizeof other->values);
    for (int t = 0; t < PYC_RECORD_TOKENS; t++) {
        pyc_place_factors(to, t, scales[t], starts[t]);
        pyc_place_factors(other, t, scales[PYC_RECORD_TOKENS + t], starts[PYC_RECORD_TOKENS + t]);
    }
    return 1;
}

/* Block b of the records of the tokens [start, stop), of a strip f32 [tokens][2][32] of gates and values, which it overwrites. */
PYC_OUTLINE void pyc_gate_strip(const int gate, float *strip, uint8_t *records, int b, int start, int stop,
                                const struct pyc_shape made) {
    const float *from = strip;
    float *to = strip;
    for (int t = start; t < stop; t++, from += 2 * PYC_BLOCK, to += PYC_BLOCK) {
        pyc_f32v value[PYC_BLOCK / PYC_LANES];
        PYC_UNROLL for (int i = 0; i < PYC_BLOCK / PYC_LANES; i++)
            value[i] = pyc_gate(gate, pyc_load_f32v(from + i * PYC_LANES)) * pyc_load_f32v(from + PYC_BLOCK + i * PYC_LANES);
        memcpy(to, value, sizeof value);
    }
    for (int t = start; t < stop; strip += PYC_RECORD_TOKENS * PYC_BLOCK) {
        struct pyc_tile_block *tile = pyc_tile_of(records, t, made) + b;
        t += PYC_RECORD_TOKENS;
        if (t < stop && pyc_quantize_strips(strip, tile, pyc_tile_of(records, t, made) + b)) {
            strip += PYC_RECORD_TOKENS * PYC_BLOCK;
            t += PYC_RECORD_TOKENS;
        } else {
            pyc_quantize_strip(strip, tile);
        }
    }
}

/* Part `part` of `parts` of m tokens; `made` are the constants of the records. */
PYC_INLINE int32_t pyc_linear_gated(const pyc_product multiply, const int gate, const void *x, const uint8_t *w, uint8_t *records,
                                    int32_t m, int32_t part, int32_t parts, const struct pyc_shape s,
                                    const struct pyc_shape made) {
    const int panels = PYC_BLOCK / PYC_PANEL, units = pyc_chunks(m, s) * made.blocks;
    float strip[PYC_MOST_TOKENS * 2 * PYC_BLOCK] __attribute__((aligned(64)));
    for (int unit = pyc_part_row(units, part, parts); unit < pyc_part_row(units, part + 1, parts); unit++) {
        const int b = unit % made.blocks;
        const struct pyc_run run = pyc_strip(unit / made.blocks, panels, m, s);
        const uint8_t *gates = w + (ptrdiff_t)b * panels * s.panel_bytes;
        float *to = strip - (ptrdiff_t)run.token_start * 2 * PYC_BLOCK;
        multiply(x, gates, NULL, to, run, 2 * PYC_BLOCK);
        multiply(x, gates + (ptrdiff_t)made.blocks * panels * s.panel_bytes, NULL, to + PYC_BLOCK, run, 2 * PYC_BLOCK);
        pyc_gate_strip(gate, strip, records, b, run.token_start, run.token_stop, made);
    }
    return 0;
}

#endif
#endif
