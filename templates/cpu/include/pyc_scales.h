/* The scales of groups: f16, or where rows have a base, bytes that say what to multiply it with:
 *
 *   sign | exponent [4] | fraction [3]:  +-(1 + fraction / 8) 2^exponent
 *
 * Their bits are those of an f32 in another place, so that the product with the base, a power of two, is an addition.
 * Those of lookup tables have three bits for the exponent, and say in the one above it which table a group has.
 */
#ifndef PYC_SCALES_H
#define PYC_SCALES_H

#include "pyc_register_blocks.h"

#define PYC_SCALE_BITS(s) ((s).bits ? 0x83f00000u : 0x87f00000u) /* a byte's, moved by 20 */

/* The scales of group g for vector `column` of the rows of a panel. */
PYC_INLINE pyc_f32v pyc_group_scale(const uint8_t *header, int g, int column, const struct pyc_shape s) {
    const int at = g * PYC_PANEL + column * PYC_LANES;
    if (!s.row_exponents) return pyc_f16_values(pyc_load_u16v(header + 2 * at));
    const pyc_i32v byte = __builtin_convertvector(pyc_load_i8v(header + at), pyc_i32v);
    const pyc_u32v base = pyc_load_u32v(header + s.row_exponents + 4 * column * PYC_LANES);
    return (pyc_f32v)(((pyc_u32v)byte << 20 & PYC_SCALE_BITS(s)) + base);
}

/* The bits of scale / 1.0, to which the bits of a power of two are added. A scale of zero becomes the smallest f16: its
 * codes are all zero, and an exponent can be added to it. */
PYC_INLINE pyc_i32v pyc_group_power(const uint8_t *header, int g, int column, const struct pyc_shape s) {
    const pyc_u32v bits = (pyc_u32v)pyc_group_scale(header, g, column, s);
    if (s.row_exponents) return (pyc_i32v)(bits - 0x3f800000u);
    return (pyc_i32v)(__builtin_elementwise_max(bits, (pyc_u32v)0x33800000u) - 0x3f800000u);
}

/* The scale of group g for one row. */
PYC_INLINE float pyc_lane_scale(const uint8_t *header, int g, int lane, const struct pyc_shape s) {
    const int at = g * PYC_PANEL + lane;
    if (!s.row_exponents) return pyc_f16_value(pyc_load_u16(header + 2 * at));
    const uint32_t byte = header[at];
    return pyc_bits_f32((byte >> 7 << 31 | (byte << 20 & PYC_SCALE_BITS(s) & 0x7fffffffu)) +
                        pyc_load_u32(header + s.row_exponents + 4 * lane));
}

#endif
