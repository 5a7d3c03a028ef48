/* y[t] = row ids[t] of a table stored in panels, as f32 [m, K], for t in [start, stop); an id outside [0, N) gives a
 * row of zeros. */
#ifndef PYC_EMBEDDING_H
#define PYC_EMBEDDING_H

#include "pyc_float8.h"
#include "pyc_lookup.h"
#include "pyc_scales.h"

PYC_INLINE void pyc_row_f32(const uint8_t *panel, const int lane, float *y, const struct pyc_shape s) {
    for (int k = 0; k < s.inputs; k++) y[k] = pyc_load_f32(panel + 4 * (k * PYC_PANEL + lane));
}

PYC_INLINE uint16_t pyc_pair_item(const uint8_t *panel, const int lane, const int k) {
    return pyc_load_u16(panel + 2 * ((k / 2 * PYC_PANEL + lane) * 2 + k % 2));
}

PYC_INLINE void pyc_row_f16(const uint8_t *panel, const int lane, float *y, const struct pyc_shape s) {
    for (int k = 0; k < s.inputs; k++) y[k] = pyc_f16_value(pyc_pair_item(panel, lane, k));
}

PYC_INLINE void pyc_row_bf16(const uint8_t *panel, const int lane, float *y, const struct pyc_shape s) {
    for (int k = 0; k < s.inputs; k++) y[k] = pyc_bits_f32((uint32_t)pyc_pair_item(panel, lane, k) << 16);
}

PYC_INLINE void pyc_row_int8(const uint8_t *panel, const int lane, float *y, const struct pyc_shape s) {
    const float scale = pyc_load_f32(panel + 4 * lane);
    const uint8_t *data = panel + s.data + 4 * lane;
    for (int k = 0; k < s.inputs; k++) y[k] = scale * (float)(data[k / 4 * 4 * PYC_PANEL + k % 4] - 128);
}

PYC_INLINE void pyc_row_int8_group(const uint8_t *panel, const int lane, float *y, const struct pyc_shape s) {
    const int group = PYC_BLOCK * s.group_blocks;
    const uint8_t *data = panel + s.data + 4 * lane;
    for (int k = 0; k < s.inputs; k++) {
        const float scale = pyc_lane_scale(panel, k / group, lane, s);
        y[k] = scale * (float)(data[k / 4 * 4 * PYC_PANEL + k % 4] - 128);
    }
}

PYC_INLINE void pyc_row_int4(const uint8_t *panel, const int lane, float *y, const struct pyc_shape s) {
    for (int b = 0; b < s.blocks; b++) {
        const int g = b / s.group_blocks;
        const float scale = pyc_lane_scale(panel, g, lane, s);
        const int zero = s.zeros ? panel[s.zeros + g * PYC_PANEL + lane] : 8;
        const uint8_t *block = panel + s.data + b * 16 * PYC_PANEL + 4 * lane;
        for (int k = 0; k < PYC_BLOCK / 2; k++) {
            const int byte = block[k / 4 * 4 * PYC_PANEL + k % 4];
            y[b * PYC_BLOCK + k] = scale * (float)((byte & 15) - zero);
            y[b * PYC_BLOCK + 16 + k] = scale * (float)((byte >> 4) - zero);
        }
    }
}

PYC_INLINE void pyc_row_lookup(const uint8_t *panel, const int lane, float *y, const struct pyc_shape s) {
    for (int b = 0; b < s.blocks; b++) {
        const int g = b / s.group_blocks;
        const int zero = s.lookup_zero - (panel[g * PYC_PANEL + lane] & 0x40 ? s.lookup_shift : 0);
        const uint8_t *block = panel + s.data + b * s.bits * PYC_PANEL_STEP;
        for (int k = 0; k < PYC_BLOCK; k++) {
            const float scale = pyc_lane_scale(panel, PYC_HALVES(s) == 2 ? 2 * b + k / 16 : g, lane, s);
            y[b * PYC_BLOCK + k] = scale * (float)(pyc_lookup_byte(block, lane, k, s) - zero);
        }
    }
}

/* Floating point of 8 bits; a row has one scale, or one for each `group` inputs. */
PYC_INLINE void pyc_row_float8(const int fraction_bits, const int group, const uint8_t *panel, const int lane, float *y,
                               const struct pyc_shape s) {
    const uint8_t *data = panel + s.data + 4 * lane;
    for (int k = 0; k < s.inputs; k++) {
        const float scale = pyc_load_f32(panel + 4 * ((group ? k / group : 0) * PYC_PANEL + lane));
        y[k] = scale * pyc_float8_value(fraction_bits, data[k / 4 * 4 * PYC_PANEL + k % 4]);
    }
}

PYC_INLINE void pyc_row_fp8_e4m3(const uint8_t *panel, const int lane, float *y, const struct pyc_shape s) {
    pyc_row_float8(PYC_E4M3, 0, panel, lane, y, s);
}

PYC_INLINE void pyc_row_fp8_e5m2(const uint8_t *panel, const int lane, float *y, const struct pyc_shape s) {
    pyc_row_float8(PYC_E5M2, 0, panel, lane, y, s);
}

PYC_INLINE void pyc_row_fp8_e4m3_block(const uint8_t *panel, const int lane, float *y, const struct pyc_shape s) {
    pyc_row_float8(PYC_E4M3, PYC_BLOCK * s.group_blocks, panel, lane, y, s);
}

#define PYC_EMBEDDING(name, row)                                                                     \
    PYC_INLINE int32_t name(const int32_t *ids, const uint8_t *table, float *y, int start, int stop, \
                            const struct pyc_shape s) {                                              \
        for (int t = start; t < stop; t++) {                                                         \
            float *to = y + (ptrdiff_t)t * s.inputs;                                                 \
            const int id = ids[t];                                                                   \
            if (id < 0 || id >= s.outputs)                                                           \
                memset(to, 0, 4 * (size_t)s.inputs);                                                 \
            else                                                                                     \
                row(table + (ptrdiff_t)(id / PYC_PANEL) * s.panel_bytes, id % PYC_PANEL, to, s);     \
        }                                                                                            \
        return 0;                                                                                    \
    }
PYC_EMBEDDING(pyc_embedding_f32, pyc_row_f32)
PYC_EMBEDDING(pyc_embedding_f16, pyc_row_f16)
PYC_EMBEDDING(pyc_embedding_bf16, pyc_row_bf16)
PYC_EMBEDDING(pyc_embedding_int8, pyc_row_int8)
PYC_EMBEDDING(pyc_embedding_int8_group, pyc_row_int8_group)
PYC_EMBEDDING(pyc_embedding_fp8_e4m3, pyc_row_fp8_e4m3)
PYC_EMBEDDING(pyc_embedding_fp8_e5m2, pyc_row_fp8_e5m2)
PYC_EMBEDDING(pyc_embedding_fp8_e4m3_block, pyc_row_fp8_e4m3_block)
PYC_EMBEDDING(pyc_embedding_int4, pyc_row_int4)
PYC_EMBEDDING(pyc_embedding_lookup, pyc_row_lookup)

#endif
