/* f16 <-> f32 for x86 without F16C: the two functions that LLVM calls there, by the names it gives them.
 *
 * They are here, hidden, because a library is linked without a compiler runtime; all of its objects have them. IEEE
 * 754, rounding to nearest even; the magic numbers are those of F. Giesen's float_to_half_fast3_rtne (public domain).
 */
#ifndef PYC_HALF_H
#define PYC_HALF_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && !defined(__F16C__)

__attribute__((weak, visibility("hidden"))) float __extendhfsf2(_Float16 half) {
    uint16_t bits;
    memcpy(&bits, &half, 2);
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
    float value;
    if (magnitude >= 0x0f800000u) { /* infinity, NaN */
        magnitude |= 0x7f800000u;
    } else {
        memcpy(&value, &magnitude, 4);
        value *= 0x1p112f;
        memcpy(&magnitude, &value, 4);
    }
    magnitude |= sign;
    memcpy(&value, &magnitude, 4);
    return value;
}

__attribute__((weak, visibility("hidden"))) _Float16 __truncsfhf2(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t result;
    if (magnitude >= 0x47800000u) { /* at least 2^16 */
        result = magnitude > 0x7f800000u ? 0x7e00 : 0x7c00;
    } else if (magnitude < 0x38800000u) { /* subnormal: the addition rounds */
        float small;
        memcpy(&small, &magnitude, 4);
        small += 0.5f;
        memcpy(&result, &small, 4);
        result -= 0x3f000000u;
    } else {
        result = (magnitude + 0xc8000fffu + (magnitude >> 13 & 1)) >> 13;
    }
    const uint16_t half = (uint16_t)(result | sign);
    _Float16 converted;
    memcpy(&converted, &half, 2);
    return converted;
}

#endif
#endif
