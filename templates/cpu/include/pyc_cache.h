/* The cache of keys and values of a layer: u8 [blocks, 2, kv_heads, head bytes], blocks of 64 positions.
 *
 * With d features a head, D = d rounded up to 16, and `step` neighbours side by side in a lane of 4 bytes (f16: 2, fp8:
 * 1):
 *   keys   [16][D / 4 step][4][4][step]   sets of 4 positions; 4 lanes of one, then those of the next
 *   values [64 / step][D][step]           a lane is a feature
 *   scales f32 [64]                       int8 and fp8: the scale of each position, after the keys and after the values
 * A key goes to a quarter of the lines that it would if each lane of a vector were another position's.
 * step is 1 for f32, f16 and fp8, 2 for bf16, 4 for int8: what one dot product instruction takes. int8 holds q + 128,
 * with q in [-127, 127] and scale = max abs / 127 over the features of a position and head; fp8 holds e4m3 of a byte a
 * lane, with scale = max abs / 448. docs/tensor-layouts.md.
 */
#ifndef PYC_CACHE_H
#define PYC_CACHE_H

#include "pyc_vectors.h"

#define PYC_CACHE_F32 0
#define PYC_CACHE_F16 1
#define PYC_CACHE_BF16 2
#define PYC_CACHE_INT8 3
#define PYC_CACHE_FP8 4
#define PYC_CACHE_FP8_WIDE 5 /* not in a cache: a block of fp8 that has been converted to f32 (PYC_FP8_UNIT) */

/* What 16 bits hold where attention may round its operands to bf16. */
#if defined(__AVX512BF16__)
#define PYC_CACHE_ROUNDED PYC_CACHE_BF16
#else
#define PYC_CACHE_ROUNDED PYC_CACHE_F16
#endif

#define PYC_STEP(kind) ((kind) == PYC_CACHE_INT8 ? 4 : (kind) == PYC_CACHE_BF16 ? 2 : 1)
#define PYC_LANE_BYTES(kind) ((kind) == PYC_CACHE_FP8 ? 1 : (kind) == PYC_CACHE_F16 ? 2 : 4)
#define PYC_IS_FP8(kind) ((kind) == PYC_CACHE_FP8 || (kind) == PYC_CACHE_FP8_WIDE)
#define PYC_HAS_SCALES(kind) ((kind) == PYC_CACHE_INT8 || PYC_IS_FP8(kind))
/* Those that become f32, and what blocks of them are then; those that AMX tiles multiply. */
#define PYC_IS_WIDENED(kind) ((kind) == PYC_CACHE_F16 || (kind) == PYC_CACHE_FP8)
#define PYC_WIDE(kind) ((kind) == PYC_CACHE_FP8 ? PYC_CACHE_FP8_WIDE : PYC_CACHE_F32)
#define PYC_FITS_TILES(kind) ((kind) == PYC_CACHE_BF16 || (kind) == PYC_CACHE_INT8 || (kind) == PYC_CACHE_FP8)
#define PYC_VALUE_BYTES(kind) (PYC_LANE_BYTES(kind) / PYC_STEP(kind))
/* Features of a head as stored: whole vectors. */
#define PYC_FEATURES(head_dim) (((head_dim) + PYC_PANEL - 1) / PYC_PANEL * PYC_PANEL)
/* Positions of a set, and lanes of one that lie side by side; the bytes of a set's keys; where the key of a slot
 * begins. */
#define PYC_QUAD 4
#define PYC_KEY_SET(head_dim, kind) (PYC_QUAD * PYC_FEATURES(head_dim) * PYC_VALUE_BYTES(kind))
#define PYC_KEY_AT(slot, head_dim, kind) \
    ((slot) / PYC_QUAD * PYC_KEY_SET(head_dim, kind) + (slot) % PYC_QUAD * PYC_QUAD * PYC_LANE_BYTES(kind))
/* Bytes of the keys, or of the values, of a head in a block; the scales are the last 256. */
#define PYC_SCALES_AT(head_dim, kind) (PYC_POSITIONS * PYC_FEATURES(head_dim) * PYC_VALUE_BYTES(kind))
#define PYC_HEAD_BYTES(head_dim, kind) \
    (PYC_SCALES_AT(head_dim, kind) + (PYC_HAS_SCALES(kind) ? PYC_POSITIONS * 4 : 0))

/* All are compile-time constants in the functions that templates emit. */
struct pyc_attention {
    int heads;
    int kv_heads;
    int head_dim;
    int table_width;
    int window; /* 0: unbounded */
    int kind;   /* PYC_CACHE_* */
    float scale;
    int result;  /* what it is: PYC_ROWS_F32, or quantized rows of the tile unit (pyc_amx_rows.h) */
    int amx;     /* whether the tile unit does what it can, in batches of PYC_PAIRED_TOKENS or more */
};

#define PYC_ROWS_F32 0
#define PYC_ROWS_PAIRS 1
#define PYC_ROWS_CODES 2 /* for weights of codes */

/* Offset of the keys of a head in the cache; its values are kv_heads * PYC_HEAD_BYTES further. */
PYC_INLINE ptrdiff_t pyc_keys_at(int block, int kv_head, const struct pyc_attention a) {
    return ((ptrdiff_t)block * 2 * a.kv_heads + kv_head) * PYC_HEAD_BYTES(a.head_dim, a.kind);
}

PYC_INLINE ptrdiff_t pyc_values_after(const struct pyc_attention a) {
    return (ptrdiff_t)a.kv_heads * PYC_HEAD_BYTES(a.head_dim, a.kind);
}

#endif
