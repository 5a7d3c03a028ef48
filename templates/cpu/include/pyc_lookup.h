/* Codes of 2 to 5 bits that stand for entries of a table of bytes, which a shuffle looks up.
 *
 * The bytes are what entries are above the least. That, and the shift of a group's entries, is a zero point of the
 * group. How codes lie in panels: backends/cpu/layouts.py.
 */
#ifndef PYC_LOOKUP_H
#define PYC_LOOKUP_H

#include "pyc_dot.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Bytes table[i] for bytes i below 16; the table is 16 bytes in two words. */
PYC_INLINE pyc_u32v pyc_shuffled(uint64_t low, uint64_t high, pyc_u32v index) {
#if defined(__AVX512BW__) || defined(__AVX2__)
    typedef char bytes __attribute__((ext_vector_type(4 * PYC_LANES)));
    typedef uint64_t words __attribute__((ext_vector_type(PYC_LANES / 2)));
    words table;
    PYC_UNROLL for (int i = 0; i < PYC_LANES / 2; i++) table[i] = i & 1 ? high : low;
#if defined(__AVX512BW__)
    return (pyc_u32v)__builtin_ia32_pshufb512((bytes)table, (bytes)index);
#else
    return (pyc_u32v)__builtin_ia32_pshufb256((bytes)table, (bytes)index);
#endif
#elif defined(__aarch64__)
    return (pyc_u32v)vqtbl1q_u8((uint8x16_t)(uint64x2_t){low, high}, (uint8x16_t)index);
#else
    typedef uint8_t bytes __attribute__((ext_vector_type(4 * PYC_LANES)));
    const uint64_t table[2] = {low, high};
    bytes found;
    PYC_UNROLL for (int i = 0; i < 4 * PYC_LANES; i++) found[i] = ((const uint8_t *)table)[((bytes)index)[i]];
    return (pyc_u32v)found;
#endif
}

/* Bit `to` of each byte, out of bit `from`. */
PYC_INLINE pyc_u32v pyc_moved_bit(const pyc_u32v x, const int from, const int to) {
    return (from < to ? x << (uint32_t)((to - from) & 31) : x >> (uint32_t)((from - to) & 31)) & 0x01010101u << to;
}

/* Bytes table[i + 16] where bit `bit` of `high` is set and table[i] where not, for bytes i of `low` below 16; the table
 * is 32 bytes in four words. */
PYC_INLINE pyc_u32v pyc_shuffled_32(const uint64_t table[4], pyc_u32v low, pyc_u32v high, const int bit) {
#if defined(__AVX512BW__) || defined(__AVX2__)
    typedef signed char bytes __attribute__((ext_vector_type(4 * PYC_LANES)));
    const bytes below = (bytes)pyc_shuffled(table[0], table[1], low);
    const bytes above = (bytes)pyc_shuffled(table[2], table[3], low);
#if defined(__AVX512BW__)
    return (pyc_u32v)(((bytes)high & (bytes)(signed char)(1 << bit)) != 0 ? above : below); /* a mask: vptestmb */
#else
    return (pyc_u32v)((bytes)(high << (uint32_t)(7 - bit)) < 0 ? above : below); /* what a blend reads: the sign */
#endif
#elif defined(__aarch64__)
    const uint8x16x2_t both = {
        {(uint8x16_t)(uint64x2_t){table[0], table[1]}, (uint8x16_t)(uint64x2_t){table[2], table[3]}}};
    return (pyc_u32v)vqtbl2q_u8(both, (uint8x16_t)(low | pyc_moved_bit(high, bit, 4)));
#else
    typedef uint8_t bytes __attribute__((ext_vector_type(4 * PYC_LANES)));
    const bytes codes = (bytes)(low | pyc_moved_bit(high, bit, 4));
    bytes found;
    PYC_UNROLL for (int i = 0; i < 4 * PYC_LANES; i++) found[i] = ((const uint8_t *)table)[codes[i]];
    return (pyc_u32v)found;
#endif
}

/* The zero points of group g: what entries are less than their bytes. */
PYC_INLINE pyc_i32v pyc_lookup_zeros(const uint8_t *header, int g, int column, const struct pyc_shape s) {
    const pyc_i32v byte = __builtin_convertvector(pyc_load_i8v(header + g * PYC_PANEL + column * PYC_LANES), pyc_i32v);
    return s.lookup_zero - (byte << 25 >> 31 & s.lookup_shift);
}

/* The entries of the inputs 4 j to 4 j + 3 of a block, of which `w` points to the wanted vector. */
PYC_INLINE pyc_u32v pyc_lookup_bytes(const uint8_t *w, const int j, const struct pyc_shape s) {
    const pyc_u32v low = s.bits >= 4 ? pyc_load_u32v(w + (j & 3) * PYC_PANEL_STEP) >> (uint32_t)(j & 4) & 0x0f0f0f0fu
                                     : pyc_load_u32v(w + (j & 1) * PYC_PANEL_STEP) >> (uint32_t)(j & 6) & 0x03030303u;
    if (!(s.bits & 1)) return pyc_shuffled(s.table[0], s.table[1], low);
    const pyc_u32v high = pyc_load_u32v(w + (s.bits - 1) * PYC_PANEL_STEP);
    if (s.bits == 5) return pyc_shuffled_32(s.table, low, high, j);
    return pyc_shuffled(s.table[0], s.table[1], low | pyc_moved_bit(high, j, 2));
}

/* Whether four products of bytes of the table fit 16 bits. */
#define PYC_SMALL_ENTRIES(s) \
    (!(((s).table[0] | (s).table[1] | (s).table[2] | (s).table[3]) & 0xc0c0c0c0c0c0c0c0u))

/* dot[t] += the products of the words [start, stop) of a block; `w` points to the first wanted vector of the block in
 * the panel, `x` to the block of the first token. */
PYC_INLINE void pyc_dot_lookup(const int T, const int C, const uint8_t *w, const uint8_t *x, const int start,
                               const int stop, pyc_dots dot, const struct pyc_shape s) {
    PYC_UNROLL for (int j = start; j < stop; j += 2)
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const pyc_u32v first = pyc_lookup_bytes(w + c * PYC_VECTOR_BYTES, j, s);
            const pyc_u32v second = pyc_lookup_bytes(w + c * PYC_VECTOR_BYTES, j + 1, s);
            PYC_UNROLL for (int t = 0; t < T; t++) {
                const uint8_t *at = x + (ptrdiff_t)t * s.row_bytes + 4 * j;
                const pyc_i32v four = (pyc_i32v)pyc_load_i32(at), next = (pyc_i32v)pyc_load_i32(at + 4);
                dot[t][c] = pyc_multiply_entries(PYC_SMALL_ENTRIES(s), dot[t][c], first, four, second, next);
            }
        }
}

/* The byte of input k of a block in one row. */
PYC_INLINE int pyc_lookup_byte(const uint8_t *block, const int lane, const int k, const struct pyc_shape s) {
    const int j = k / 4, step = s.bits >= 4 ? j & 3 : j & 1, shift = s.bits >= 4 ? j & 4 : j & 6;
    const uint8_t *word = block + 4 * lane + k % 4;
    int code = word[step * PYC_PANEL_STEP] >> shift & (s.bits >= 4 ? 15 : 3);
    if (s.bits & 1) code |= (word[(s.bits - 1) * PYC_PANEL_STEP] >> j & 1) << (s.bits - 1);
    return (uint8_t)(s.table[code / 8] >> 8 * (code % 8));
}

#endif
