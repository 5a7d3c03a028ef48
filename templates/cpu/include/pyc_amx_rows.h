/* Activations as the tile unit reads them. Where a CPU multiplies tiles, the quantized rows of a batch of
 * PYC_PAIRED_TOKENS or more are bf16 instead, whatever format they have, rounded from f32 to nearest even: closer to it
 * than int8 is.
 *
 * Every 32 tokens from the first on, two tiles, are interleaved, so that a matmul reads one stream; the
 * last have as many rows as tokens are left:
 *
 *   block after block: bf16 [rows][32], zeros beyond K
 *
 * For weights of codes (pyc_amx_weights.h) numbers are times 2^64, as those weights are small, and every four of them
 * are in the order 0, 2, 1, 3.
 */
#ifndef PYC_AMX_ROWS_H
#define PYC_AMX_ROWS_H

#include "pyc_amx.h"
#include "pyc_instructions.h"
#include "pyc_register_blocks.h"

#define PYC_PAIRED_ROWS (2 * PYC_TILE_ROWS)
#define PYC_CODES_POWER 0x1p64f

/* Whether the rows of a batch are bf16 in tiles. */
PYC_INLINE int pyc_pairs_tokens(int m) { return PYC_HAS_TILES && m >= PYC_PAIRED_TOKENS; }

/* Rows of the two tiles that hold `token`, of a batch of m. */
PYC_INLINE int pyc_paired_rows(int token, int m) {
    const int left = m - token / PYC_PAIRED_ROWS * PYC_PAIRED_ROWS;
    return left < PYC_PAIRED_ROWS ? left : PYC_PAIRED_ROWS;
}

/* Where block b of the row of `token` begins, of a batch of m whose rows have `blocks`. */
PYC_INLINE ptrdiff_t pyc_amx_row_at(int token, int m, int blocks, int b) {
    const int before = token / PYC_PAIRED_ROWS * PYC_PAIRED_ROWS;
    return (ptrdiff_t)before * blocks * 64 + (ptrdiff_t)b * pyc_paired_rows(token, m) * 64 + (token - before) * 64;
}

/* f32 to bf16 in the upper half of each lane, to nearest even; the lower half is not cleared. */
PYC_INLINE pyc_u32v pyc_rounded_bits(pyc_f32v x) {
    const pyc_u32v bits = (pyc_u32v)x, even = bits + 0x7fff + (bits >> 16 & 1);
    const pyc_u32v nan = (pyc_u32v)((bits & 0x7fffffff) > 0x7f800000);
    return (nan & (bits | 0x400000)) | (~nan & even);
}

#if PYC_HAS_TILES

/* 16 numbers as weights of codes want them. */
PYC_INLINE pyc_f32v pyc_code_order(const int codes, pyc_f32v x) {
    if (!codes) return x;
    return __builtin_shufflevector(x, x, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15) * PYC_CODES_POWER;
}

/* Half a block of a row, f32 [16] -> bf16 [16]. */
PYC_INLINE void pyc_round_half_block(const int codes, pyc_f32v x, uint8_t *to) {
#if defined(__AVX512BF16__)
    const pyc_bf16h pairs = pyc_vcvtneps2bf16(pyc_code_order(codes, x));
#else
    const pyc_u16v pairs = __builtin_convertvector(pyc_rounded_bits(pyc_code_order(codes, x)) >> 16, pyc_u16v);
#endif
    memcpy(to, &pairs, sizeof pairs);
}

/* A block of a row, f32 [32] -> bf16 [32]. */
PYC_INLINE void pyc_round_block(const int codes, const float *x, uint8_t *to) {
#if defined(__AVX512BF16__)
    const pyc_f32v low = pyc_code_order(codes, pyc_load_f32v(x));
    const pyc_f32v high = pyc_code_order(codes, pyc_load_f32v(x + PYC_LANES));
    const pyc_bf16v pairs = pyc_vcvtne2ps2bf16(high, low);
    memcpy(to, &pairs, sizeof pairs);
#else
    pyc_round_half_block(codes, pyc_load_f32v(x), to);
    pyc_round_half_block(codes, pyc_load_f32v(x + PYC_LANES), to + 32);
#endif
}

/* A block of a row as s.pieces blocks of the quantized row, `apart` bytes from each other: each is what the ones before
 * it leave, rounded. */
PYC_INLINE void pyc_round_pieces(const int codes, const float *x, uint8_t *to, ptrdiff_t apart,
                                 const struct pyc_shape s) {
    pyc_round_block(codes, x, to);
    if (s.pieces == 1) return;
    float left[PYC_BLOCK] __attribute__((aligned(64)));
    memcpy(left, x, sizeof left);
    PYC_UNROLL for (int piece = 1; piece < s.pieces; piece++) {
        PYC_UNROLL for (int i = 0; i < PYC_BLOCK; i += PYC_LANES) {
            const pyc_u32v rounded = __builtin_convertvector(pyc_load_u16v(to + 2 * i), pyc_u32v) << 16;
            const pyc_f32v rest = pyc_load_f32v(left + i) - (pyc_f32v)rounded;
            memcpy(left + i, &rest, sizeof rest);
        }
        pyc_round_block(codes, left, to += apart);
    }
}

/* Row `row` of m, f32 [K], into its tile. */
PYC_INLINE void pyc_round_into_tile(const int codes, const float *x, uint8_t *quantized, int row, int m,
                                    const struct pyc_shape s) {
    const int whole = s.inputs / PYC_BLOCK, blocks = s.blocks * s.pieces;
    const ptrdiff_t apart = (ptrdiff_t)pyc_paired_rows(row, m) * 64;
    PYC_ROLLED for (int b = 0; b < whole; b++)
        pyc_round_pieces(codes, x + b * PYC_BLOCK, quantized + pyc_amx_row_at(row, m, blocks, b * s.pieces), apart, s);
    if (whole < s.blocks) {
        float last[PYC_BLOCK] = {0};
        memcpy(last, x + whole * PYC_BLOCK, 4 * (s.inputs - whole * PYC_BLOCK));
        pyc_round_pieces(codes, last, quantized + pyc_amx_row_at(row, m, blocks, whole * s.pieces), apart, s);
    }
}

#else

PYC_INLINE void pyc_round_block(const int codes, const float *x, uint8_t *to) {}
PYC_INLINE void pyc_round_into_tile(const int codes, const float *x, uint8_t *quantized, int row, int m,
                                    const struct pyc_shape s) {}

#endif

#endif
