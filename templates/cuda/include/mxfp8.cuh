/* Numbers rounded to MXFP8, by blocks of 32 inputs (compiler/mxfp8.py):
 *
 *   scale = 2^e, the least at or above 2^-116 with max |x| <= 448 scale; x becomes scale * v, v of e4m3, ties to even
 *
 * Such a number is one of bf16, exactly. A block with NaN or infinity gets the scale NaN and zeros. */
#pragma once
#include "dtypes.cuh"

namespace pyc {

/* The scale of a block by the bits of its largest magnitude, and 1 / scale; 0 for a block that is at fault. */
__device__ __forceinline__ float mxfp8_scale(u32 largest, float &inverse) {
    const bool is_fault = largest >= 0x7f800000u;
    /* The exponent's bits: above 448 = 1.75 * 2^8 and its multiples a sum carries into them. */
    const u32 exponent = max((largest + 0x1fffffu) >> 23, 19u) - 8u;
    inverse = is_fault ? 0.0f : __uint_as_float((254u - exponent) << 23);
    return __uint_as_float(is_fault ? 0x7fc00000u : exponent << 23);
}

/* x times `inverse`, at most 448, as the nearest number of e4m3; 0 of anything by an inverse of 0. */
__device__ __forceinline__ float rounded_e4m3(float x, float inverse) {
    const float scaled = inverse == 0.0f ? 0.0f : __fmul_rn(x, inverse);
    /* 1.5 * 2^20 times the power of two at or below |scaled|, 2^-6 at least, leaves three bits of fraction. */
    const u32 power = max(__float_as_uint(scaled) & 0x7f800000u, 0x3c800000u);
    const float large = __uint_as_float(power + 0x0a400000u);
    return __fsub_rn(__fadd_rn(scaled, large), large);
}

/* The code of a number of e4m3: as bits of an f32, 2^-120 times it has e4m3's exponent and fraction in their places. */
__device__ __forceinline__ u32 e4m3_code(float number) {
    const u32 bits = __float_as_uint(__fmul_rn(number, 0x1p-120f));
    return bits >> 20 & 127u | bits >> 24 & 128u;
}

/* The largest magnitude of eight numbers of a thread, as bits: infinity and NaN are on top. */
__device__ __forceinline__ u32 largest_of_thread(const float (&values)[4][2]) {
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) largest = max(largest, __float_as_uint(values[i / 2][i % 2]) & 0x7fffffffu);
    return largest;
}

/* The same of these and those of the three threads beside it. */
__device__ __forceinline__ u32 largest_of_four_threads(const float (&values)[4][2]) {
    u32 largest = largest_of_thread(values);
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    return max(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
}

/* Rounds the eight numbers that a thread has of a block, of which the three threads beside it have the others. */
__device__ __forceinline__ void round_to_mxfp8(float (&values)[4][2]) {
    float inverse;
    const float scale = mxfp8_scale(largest_of_four_threads(values), inverse);
#pragma unroll
    for (int i = 0; i < 8; i++) values[i / 2][i % 2] = rounded_e4m3(values[i / 2][i % 2], inverse) * scale;
}

}  // namespace pyc
