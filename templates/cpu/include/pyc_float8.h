/* Floating point of 8 bits, e4m3 and e5m2: a sign, an exponent and PYC_E4M3 or PYC_E5M2 bits of fraction.
 *
 * As f32 by way of f16: e5m2 is its upper half, and the low 7 bits of e4m3, moved, are a number 2^8 times smaller; both
 * conversions are exact, subnormal numbers included. As bf16 in its own bits: the exponent is raised to that of bf16,
 * and the few subnormal numbers, which are none there, are looked up.
 */
#ifndef PYC_FLOAT8_H
#define PYC_FLOAT8_H

#include "pyc_instructions.h"

#define PYC_E4M3 3
#define PYC_E5M2 2

PYC_INLINE float pyc_float8_value(const int fraction_bits, uint8_t code) {
    const uint16_t magnitude = (uint16_t)((code & 0x7f) << (10 - fraction_bits));
    return pyc_f16_value((uint16_t)(magnitude | (code & 0x80) << 8)) * (fraction_bits == PYC_E4M3 ? 256.0f : 1.0f);
}

/* Bytes of e4m3 as f32, times 2^-8, by way of f16: the sign, which goes to bits 14 and 15, leaves bit 14. Without
 * hardware for f16 the same with the bits of an f32. */
#define PYC_E4M3_UNIT 256.0f
PYC_INLINE pyc_f32v pyc_e4m3_values(const uint8_t *from) {
#if defined(__F16C__) || defined(__aarch64__)
    typedef int16_t pyc_i16s __attribute__((ext_vector_type(PYC_LANES)));
    const pyc_i16s extended = __builtin_convertvector(pyc_load_i8v(from), pyc_i16s);
    return pyc_f16_values((pyc_u16v)(extended << 7) & 0xbfff);
#else
    const pyc_i32v top = (pyc_i32v)(__builtin_convertvector(pyc_load_u8v(from), pyc_u32v) << 24);
    return pyc_bits_f32v((pyc_u32v)(top >> 4) & 0x87f00000) * 0x1p112f;
#endif
}

/* Numbers of up to 448 to the nearest e4m3, ties to even: what is below 2^-6 is rounded by an addition, whose sum has
 * steps of 2^-9. */
PYC_INLINE pyc_u8v pyc_e4m3_codes(pyc_f32v x) {
    const pyc_u32v bits = (pyc_u32v)x & 0x7fffffff;
    const pyc_u32v normal = ((bits + (bits >> 20 & 1) + 0x7ffff) >> 20) - (120 << 3);
    const pyc_u32v small = (pyc_u32v)((pyc_f32v)bits + 0x1p14f) - 0x46800000;
    const pyc_u32v is_small = (pyc_u32v)(bits < 0x3c800000);
    const pyc_u32v code = (small & is_small) | (normal & ~is_small) | (((pyc_u32v)x >> 24) & 0x80);
    return __builtin_convertvector(code, pyc_u8v);
}

/* Byte i of each lane as f32: of e4m3 2^-8 of it. */
PYC_INLINE pyc_f32v pyc_float8_part(const int fraction_bits, pyc_u32v words, const int i) {
    const pyc_u32v byte = i == 0 ? words << 8 : i == 1 ? words : words >> (uint32_t)(8 * i - 8); /* in bits 8 to 15 */
    if (fraction_bits == PYC_E5M2) return pyc_f16_values(__builtin_convertvector(byte & 0xff00u, pyc_u16v));
    return pyc_f16_values(__builtin_convertvector((byte & 0x8000u) | ((byte & 0x7f00u) >> 1), pyc_u16v));
}

/* Scales of rows, times what numbers of `pyc_float8_part` lack. */
PYC_INLINE pyc_f32v pyc_float8_scale(const int fraction_bits, const uint8_t *panel, int g, int column) {
    const pyc_f32v scale = pyc_load_f32v(panel + 4 * (g * PYC_PANEL + column * PYC_LANES));
    return fraction_bits == PYC_E4M3 ? scale * 256 : scale;
}

#if defined(__AVX512BW__)

/* Bytes 0 and 1 (pair 0) or 2 and 3 (pair 1) of each lane as a pair of bf16, exactly. */
PYC_INLINE pyc_u32v pyc_float8_pairs(const int fraction_bits, pyc_u32v words, const int pair) {
    const pyc_u32v two = pair ? words >> 16 : words;
    const pyc_u16x32 code = (pyc_u16x32)((two & 0xffu) | (two & 0xff00u) << 8), magnitude = code & 0x7f;
    const pyc_u16x32 small = fraction_bits == PYC_E4M3
                                        ? (pyc_u16x32){0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60}
                                        : (pyc_u16x32){0, 0x3780, 0x3800, 0x3840};
    const pyc_u16x32 bits =
        (magnitude << (uint16_t)(7 - fraction_bits)) + (uint16_t)(fraction_bits == PYC_E4M3 ? 0x3c00 : 0x3800);
    const pyc_u16x32 is_small = (pyc_u16x32)(magnitude < (uint16_t)(1 << fraction_bits));
    const pyc_u16x32 found = (pyc_vpermw(magnitude, small) & is_small) | (bits & ~is_small);
    return (pyc_u32v)(found | (code & 0x80) << 8);
}

#endif

#endif
