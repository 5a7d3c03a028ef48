/* The scales of groups: f16, or where rows have a base, bytes that say what to multiply it with:
 *
 *   sign | exponent [4] | fraction [3]:  +-(1 + fraction / 8) 2^exponent
 *
 * Their bits are those of an f32 in another place, so that the product with the base, a power of two, is an addition.
 * Those of lookup tables have three bits for the exponent, and say in the one above it which table a group has.
 *
 * Tables of e2m1 have others: a byte is the biased exponent of a power of two (e8m0), or a number of e4m3 for each
 * half of a block, which a factor of the row multiplies at the end; of ternary codes the factor is all there is.
 */
#ifndef PYC_SCALES_H
#define PYC_SCALES_H

#include "pyc_float8.h"
#include "pyc_register_blocks.h"

#define PYC_SCALES_SHORT 0 /* f16, or bytes as above */
#define PYC_SCALES_E8M0 1
#define PYC_SCALES_E4M3 2
#define PYC_SCALES_ROW 3

/* Groups of a block. */
#define PYC_HALVES(s) ((s).scale_form == PYC_SCALES_E4M3 ? 2 : 1)

#define PYC_SCALE_BITS(s) ((s).bits ? 0x83f00000u : 0x87f00000u) /* a byte's, moved by 20 */

/* The scales of group g for vector `column` of the rows of a panel. */
PYC_INLINE pyc_f32v pyc_group_scale(const uint8_t *header, int g, int column, const struct pyc_shape s) {
    const int at = g * PYC_PANEL + column * PYC_LANES;
    if (s.scale_form == PYC_SCALES_ROW) return 1;
    if (s.scale_form != PYC_SCALES_SHORT) {
        const pyc_u32v code = __builtin_convertvector(pyc_load_u8v(header + at), pyc_u32v);
        /* the entries of the table are twice the numbers of e2m1 */
        return s.scale_form == PYC_SCALES_E8M0 ? (pyc_f32v)(code << 23) * 0.5f
                                               : pyc_float8_part(PYC_E4M3, code, 0) * 256;
    }
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

/* What multiplies the sums of rows. */
PYC_INLINE pyc_f32v pyc_row_factor(const uint8_t *header, int column, const struct pyc_shape s) {
    if (s.scale_form < PYC_SCALES_E4M3) return 1;
    return pyc_load_f32v(header + s.row_factors + 4 * column * PYC_LANES);
}

/* The scale of group g for one row, with the row's factor. */
PYC_INLINE float pyc_lane_scale(const uint8_t *header, int g, int lane, const struct pyc_shape s) {
    const int at = g * PYC_PANEL + lane;
    if (s.scale_form == PYC_SCALES_E8M0) return pyc_bits_f32((uint32_t)header[at] << 23) * 0.5f;
    if (s.scale_form != PYC_SCALES_SHORT) {
        const float factor = pyc_load_f32(header + s.row_factors + 4 * lane);
        return s.scale_form == PYC_SCALES_ROW ? factor : pyc_float8_value(PYC_E4M3, header[at]) * factor;
    }
    if (!s.row_exponents) return pyc_f16_value(pyc_load_u16(header + 2 * at));
    const uint32_t byte = header[at];
    return pyc_bits_f32((byte >> 7 << 31 | (byte << 20 & PYC_SCALE_BITS(s) & 0x7fffffffu)) +
                        pyc_load_u32(header + s.row_exponents + 4 * lane));
}

#endif
