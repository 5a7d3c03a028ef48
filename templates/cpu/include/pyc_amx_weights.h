/* Blocks of a panel as right operands of the tile unit: bf16 [16][16 outputs][2], row i of a block the inputs of pair
 * i.
 *
 * Panels of bf16 are that as they lie. Codes become bf16, for a few blocks and a chunk of tokens at a time, with the
 * scales of groups folded in; what all groups of a row have in common multiplies the sum at the end (pyc_tile_factor).
 * A row of a block holds inputs (k, k + 2) or (k + 1, k + 3) of four: that is how codes lie in words of 16 bits.
 *
 *   symmetric int4: (q - 8) * scale / base is a product of four bits by four: exact
 *   int8:           q: exact
 *   fp8 by rows:    the number: exact, and in order of the inputs, as rows of bf16 are
 *   e2m1, ternary:  (q - zero) * scale, but for the factor of a row: exact
 *   the others:     the weight, rounded to nearest even
 *
 * Those of integers go by way of f16: its bits, shifted by three, are those of a bf16 that is 2^112 times smaller.
 */
#ifndef PYC_AMX_WEIGHTS_H
#define PYC_AMX_WEIGHTS_H

#include "pyc_amx_rows.h"
#include "pyc_dot.h"
#include "pyc_float8.h"
#include "pyc_lookup.h"
#include "pyc_scales.h"

/* What panels hold. */
#define PYC_PANEL_BF16 0
#define PYC_PANEL_INT4 4
#define PYC_PANEL_INT8 8
#define PYC_PANEL_INT8_GROUP 9
#define PYC_PANEL_LOOKUP 10
#define PYC_PANEL_FP8_E4M3 11
#define PYC_PANEL_FP8_E5M2 12
#define PYC_PANEL_FP8_E4M3_BLOCK 13

#if PYC_HAS_TILES

typedef uint16_t pyc_u16w __attribute__((ext_vector_type(32)));
typedef int16_t pyc_i16w __attribute__((ext_vector_type(32)));
typedef _Float16 pyc_f16w __attribute__((ext_vector_type(32)));

/* The bits of a bf16 from those of a normal f16 of eight significant bits, or of 0. */
PYC_INLINE pyc_u16w pyc_small_pairs(pyc_f16w half) { return (pyc_u16w)((pyc_i16w)half >> 3) & 0x8fff; }

/* Codes in bits 6 to 9 -> (code - 8) * scale; offset is -24 scale. 0x4c00 is 16 in f16, and bit 6 is 1. */
PYC_INLINE pyc_u16w pyc_scaled_codes(pyc_u16w codes, pyc_f16w scale, pyc_f16w offset) {
    const pyc_f16w raised = (pyc_f16w)((codes & 0x03c0) | 0x4c00);
#if defined(__AVX512FP16__)
    return pyc_small_pairs(__builtin_elementwise_fma(raised, scale, offset));
#else
    return pyc_small_pairs(raised * scale + offset); /* both exact */
#endif
}

PYC_INLINE void pyc_store_pairs(uint8_t *to, int row, pyc_u16w pairs) { memcpy(to + row * 64, &pairs, sizeof pairs); }

/* Block b of symmetric int4. A scale's byte, moved, is the f16 scale / base * 2^-14. */
PYC_INLINE void pyc_pairs_of_int4(const uint8_t *panel, int b, uint8_t *to, const struct pyc_shape s) {
    const int g = b / s.group_blocks;
    const pyc_u32v byte = __builtin_convertvector(pyc_load_u8v(panel + g * PYC_PANEL), pyc_u32v);
    const pyc_u32v bits = ((byte & 0x80) << 8) | (((byte & 0x7f) << 7) + 0x400);
    const pyc_f16w scale = (pyc_f16w)(bits | bits << 16), offset = scale * (_Float16)-24;
    PYC_UNROLL for (int j = 0; j < 4; j++) {
        pyc_u16w words;
        memcpy(&words, panel + s.data + (4 * b + j) * PYC_PANEL_STEP, sizeof words);
        pyc_store_pairs(to, 2 * j, pyc_scaled_codes(words << 6, scale, offset));
        pyc_store_pairs(to, 2 * j + 1, pyc_scaled_codes(words >> 2, scale, offset));
        pyc_store_pairs(to, 2 * j + 8, pyc_scaled_codes(words << 2, scale, offset));
        pyc_store_pairs(to, 2 * j + 9, pyc_scaled_codes(words >> 6, scale, offset));
    }
}

/* Bytes that hold q + 128, four in a lane -> rows `row` and the next, q * 2^-112: bytes 0 and 2 of each lane, bytes 1
 * and 3. */
PYC_INLINE void pyc_pairs_of_bytes(pyc_u16w words, uint8_t *to, int row) {
    const pyc_i16w codes = (pyc_i16w)(words ^ 0x8080);
    pyc_store_pairs(to, row, pyc_small_pairs(__builtin_convertvector((codes << 8) >> 8, pyc_f16w)));
    pyc_store_pairs(to, row + 1, pyc_small_pairs(__builtin_convertvector(codes >> 8, pyc_f16w)));
}

/* Block b of int8. */
PYC_INLINE void pyc_pairs_of_int8(const uint8_t *panel, int b, uint8_t *to, const struct pyc_shape s) {
    PYC_UNROLL for (int j = 0; j < 8; j++) {
        pyc_u16w words;
        memcpy(&words, panel + s.data + (8 * b + j) * PYC_PANEL_STEP, sizeof words);
        pyc_pairs_of_bytes(words, to, 2 * j);
    }
}

/* The bytes at `shift` and 16 bits further, less zero and times scale. */
PYC_INLINE void pyc_store_rounded(uint8_t *to, int row, pyc_u32v words, const int shift, const uint32_t mask,
                                  pyc_f32v zero, pyc_f32v scale) {
    pyc_u32v half[2];
    PYC_UNROLL for (int i = 0; i < 2; i++) {
        const pyc_i32v code = (pyc_i32v)(words >> (uint32_t)(shift + 16 * i) & mask);
        half[i] = pyc_rounded_bits((__builtin_convertvector(code, pyc_f32v) - zero) * scale);
    }
    const pyc_u32v pairs = (half[1] & 0xffff0000u) | half[0] >> 16;
    memcpy(to + row * 64, &pairs, sizeof pairs);
}

/* Block b of asymmetric int4 or of int8 in groups. */
PYC_INLINE void pyc_pairs_of_groups(const int kind, const uint8_t *panel, int b, uint8_t *to,
                                    const struct pyc_shape s) {
    const int g = b / s.group_blocks, steps = kind == PYC_PANEL_INT4 ? 4 : 8;
    const pyc_f32v scale = pyc_group_scale(panel, g, 0, s);
    pyc_f32v zero = 128;
    if (s.zeros) zero = __builtin_convertvector(pyc_load_u8v(panel + s.zeros + g * PYC_PANEL), pyc_f32v);
    PYC_UNROLL for (int j = 0; j < steps; j++) {
        const pyc_u32v words = pyc_load_u32v(panel + s.data + (steps * b + j) * PYC_PANEL_STEP);
        PYC_UNROLL for (int i = 0; i < 2; i++) {
            const uint32_t mask = kind == PYC_PANEL_INT4 ? 15 : 255;
            pyc_store_rounded(to, 2 * j + i, words, 8 * i, mask, zero, scale);
            if (kind == PYC_PANEL_INT4) pyc_store_rounded(to, 2 * j + 8 + i, words, 8 * i + 4, mask, zero, scale);
        }
    }
}

/* Block b of lookup codes. */
PYC_INLINE void pyc_pairs_of_lookup(const uint8_t *panel, int b, uint8_t *to, const struct pyc_shape s) {
    const int g = b / s.group_blocks;
    const pyc_f32v zero = __builtin_convertvector(pyc_lookup_zeros(panel, g, 0, s), pyc_f32v);
    const uint8_t *block = panel + s.data + b * s.bits * PYC_PANEL_STEP;
    PYC_UNROLL for (int half = 0; half < 2; half++) {
        const pyc_f32v scale = pyc_group_scale(panel, PYC_HALVES(s) == 2 ? 2 * b + half : g, 0, s);
        PYC_UNROLL for (int j = 4 * half; j < 4 * half + 4; j++) {
            const pyc_u32v words = pyc_lookup_bytes(block, j, s);
            PYC_UNROLL for (int i = 0; i < 2; i++) pyc_store_rounded(to, 2 * j + i, words, 8 * i, 255, zero, scale);
        }
    }
}

/* Four numbers of 8-bit floating point in a lane -> rows `row` and the next, in order. */
PYC_INLINE void pyc_pairs_of_float8_words(const int fraction_bits, pyc_u32v words, uint8_t *to, int row) {
    PYC_UNROLL for (int i = 0; i < 2; i++) {
        const pyc_u32v pairs = pyc_float8_pairs(fraction_bits, words, i);
        memcpy(to + (row + i) * 64, &pairs, sizeof pairs);
    }
}

/* Block b of 8-bit floating point, inputs in order. */
PYC_INLINE void pyc_pairs_of_float8(const int fraction_bits, const uint8_t *panel, int b, uint8_t *to,
                                    const struct pyc_shape s) {
    PYC_UNROLL for (int j = 0; j < 8; j++)
        pyc_pairs_of_float8_words(fraction_bits, pyc_load_u32v(panel + s.data + (8 * b + j) * PYC_PANEL_STEP), to,
                                  2 * j);
}

/* The same times the scales of a group of blocks. */
PYC_INLINE void pyc_pairs_of_float8_block(const uint8_t *panel, int b, uint8_t *to, const struct pyc_shape s) {
    const pyc_f32v scale = pyc_float8_scale(PYC_E4M3, panel, b / s.group_blocks, 0);
    PYC_UNROLL for (int j = 0; j < 8; j++) {
        const pyc_u32v words = pyc_load_u32v(panel + s.data + (8 * b + j) * PYC_PANEL_STEP);
        PYC_UNROLL for (int i = 0; i < 2; i++) {
            pyc_u32v half[2];
            PYC_UNROLL for (int k = 0; k < 2; k++)
                half[k] = pyc_rounded_bits(pyc_float8_part(PYC_E4M3, words, 2 * i + k) * scale);
            const pyc_u32v pairs = (half[1] & 0xffff0000u) | half[0] >> 16;
            memcpy(to + (2 * j + i) * 64, &pairs, sizeof pairs);
        }
    }
}

/* Block b of bf16, zeros beyond K. */
PYC_INLINE void pyc_copy_pairs(const uint8_t *panel, int b, uint8_t *to, const struct pyc_shape s) {
    const int pairs = (s.inputs - b * PYC_BLOCK + 1) / 2, bytes = pairs < 16 ? pairs * 64 : PYC_TILE_BYTES;
    memcpy(to, panel + s.data + (ptrdiff_t)b * PYC_TILE_BYTES, (size_t)bytes);
    memset(to + bytes, 0, (size_t)(PYC_TILE_BYTES - bytes));
}

/* Blocks [first, first + blocks) of one panel, or of two that are `second` bytes apart, next to each other:
 * bf16 [blocks][panels][16][16][2]. */
PYC_OUTLINE void pyc_pair_panels(const int kind, const uint8_t *panel, ptrdiff_t second, const int panels, int first,
                                 int blocks, uint8_t *to, const struct pyc_shape s) {
    PYC_ROLLED for (int b = first; b < first + blocks; b++)
        PYC_ROLLED for (int p = 0; p < panels; p++, to += PYC_TILE_BYTES) {
            const uint8_t *from = panel + p * second;
            if (kind == PYC_PANEL_BF16)
                pyc_copy_pairs(from, b, to, s);
            else if (kind == PYC_PANEL_INT8)
                pyc_pairs_of_int8(from, b, to, s);
            else if (kind == PYC_PANEL_FP8_E4M3)
                pyc_pairs_of_float8(PYC_E4M3, from, b, to, s);
            else if (kind == PYC_PANEL_FP8_E5M2)
                pyc_pairs_of_float8(PYC_E5M2, from, b, to, s);
            else if (kind == PYC_PANEL_FP8_E4M3_BLOCK)
                pyc_pairs_of_float8_block(from, b, to, s);
            else if (kind == PYC_PANEL_INT4 && s.row_exponents)
                pyc_pairs_of_int4(from, b, to, s);
            else if (kind == PYC_PANEL_INT4)
                pyc_pairs_of_groups(PYC_PANEL_INT4, from, b, to, s);
            else if (kind == PYC_PANEL_LOOKUP)
                pyc_pairs_of_lookup(from, b, to, s);
            else
                pyc_pairs_of_groups(PYC_PANEL_INT8_GROUP, from, b, to, s);
        }
}

/* What a sum of products with panel rows is multiplied with. */
PYC_INLINE pyc_f32v pyc_tile_factor(const int kind, const uint8_t *panel, const struct pyc_shape s) {
    if (kind == PYC_PANEL_BF16 || kind == PYC_PANEL_FP8_E4M3_BLOCK) return 1;
    if (kind == PYC_PANEL_FP8_E4M3 || kind == PYC_PANEL_FP8_E5M2) return pyc_load_f32v(panel);
    if (kind == PYC_PANEL_INT8) return pyc_load_f32v(panel) * (0x1p112f / PYC_CODES_POWER);
    if (kind == PYC_PANEL_INT4 && s.row_exponents)
        return pyc_load_f32v(panel + s.row_exponents) * (0x1p126f / PYC_CODES_POWER);
    if (kind == PYC_PANEL_LOOKUP) return pyc_row_factor(panel, 0, s) * (1 / PYC_CODES_POWER);
    return 1 / PYC_CODES_POWER;
}

#endif

#endif
