/* Activations f32 [ROWS, INPUTS] as bytes [ROWS, PADDED], and a scale f32 for 32 inputs, [PADDED / 32, ROWS]: as int8
 *
 *   scale = max |x| / 127, q = round to nearest even (x * (127 / max |x|))
 *
 * as on CPUs (templates/cpu/include/pyc_quantize_rows.h): a block without a magnitude of at least 1e-35 becomes zero, and
 * one with NaN or infinity gets the scale NaN and zeros; or as MXFP8 (mxfp8.cuh). Behind the last input are zeros.
 *
 * Inputs of a block lie as matrix instructions take them (byte_fragments.cuh): position 16 h + 4 t + j has input
 * 8 t + 4 h + j. Bound by bytes: four of x, and one and an eighth of what is written.
 */
#pragma once
#include "matrix.cuh"
#include "mxfp8.cuh"

namespace pyc {

/* The scale of a block by the bits of its largest magnitude, and what its inputs are multiplied by. */
__device__ __forceinline__ float scale_of_block(u32 largest, float &inverse) {
    const float magnitude = __uint_as_float(largest);
    const bool is_fault = largest >= 0x7f800000u, is_zero = is_fault || magnitude < 1e-35f;
    inverse = is_zero ? 0.0f : 127.0f / magnitude;
    return is_fault ? __uint_as_float(0x7fc00000u) : is_zero ? 0.0f : magnitude / 127.0f;
}

/* Numbers times `inverse`, which is below infinity, rounded to bytes; of what is not finite by an inverse of 0, zeros, or any
 * bytes where scales of NaN `have_faults`. */
template <bool have_faults = false>
__device__ __forceinline__ u32 rounded_bytes(float a, float b, float c, float d, float inverse) {
    const float values[4] = {a, b, c, d};
    u32 bytes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) { /* 1.5 * 2^23 rounds to nearest even: the sum's low bits are the integer */
        const float scaled = !have_faults && inverse == 0.0f ? 0.0f : __fmul_rn(values[i], inverse);
        bytes |= (__float_as_uint(__fadd_rn(scaled, 12582912.0f)) & 255u) << 8 * i;
    }
    return bytes;
}

template <bool IS_MXFP8, int ROWS, int INPUTS, int PADDED, int THREADS>
__device__ __forceinline__ void quantize_rows(const float *x, u8 *codes, float *scales) {
    /* Eight threads have a block, of four inputs each. */
    const int index = blockIdx.x * THREADS + threadIdx.x, block = index / 8, part = index % 8, row = blockIdx.y;
    const int k = 4 * index;
    float values[4] = {};
    if (INPUTS % 4 == 0 && k < INPUTS) {
        const float4 loaded = *(const float4 *)(x + (long long)row * INPUTS + k);
        values[0] = loaded.x, values[1] = loaded.y, values[2] = loaded.z, values[3] = loaded.w;
    } else if (INPUTS % 4 != 0) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (k + i < INPUTS) values[i] = x[(long long)row * INPUTS + k + i];
    }
    /* Magnitudes of floats order as their bits do, with infinity and NaN on top. */
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) largest = max(largest, __float_as_uint(values[i]) & 0x7fffffffu);
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
    float inverse;
    const float scale = IS_MXFP8 ? mxfp8_scale(largest, inverse) : scale_of_block(largest, inverse);
    u32 bytes = 0;
    if constexpr (IS_MXFP8) {
#pragma unroll
        for (int i = 0; i < 4; i++) bytes |= e4m3_code(rounded_e4m3(values[i], inverse)) << 8 * i;
    } else {
        bytes = rounded_bytes(values[0], values[1], values[2], values[3], inverse);
    }
    if (k >= PADDED) return;
    u8 *const place = codes + (long long)row * PADDED + block * BLOCK_K;
    *(u32 *)(place + part % 2 * 16 + part / 2 * 4) = bytes;
    if (part == 0) scales[(long long)block * ROWS + row] = scale;
}

}  // namespace pyc
