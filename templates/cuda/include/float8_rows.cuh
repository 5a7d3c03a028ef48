/* Rows as GEMMs of floating point of 8 bits read them: e4m3 [rows, features], and behind all of them the power of two that
 * multiplies each row, f32 [rows] (compiler/mxfp8.py: `float8_rows_rounded`).
 *
 * A block has a row, of which each thread has `each` vectors: vector i of a thread begins at (i * threads + thread) * 4.
 */
#pragma once
#include "dependent_launch.cuh"
#include "mxfp8.cuh"
#include "reduce.cuh"
#include "vectors.cuh"

namespace pyc {

struct LargestBits { /* of magnitudes, which order as their bits do, with infinity and NaN on top */
    static __device__ __forceinline__ u32 empty() { return 0; }
    static __device__ __forceinline__ u32 of(u32 a, u32 b) { return max(a, b); }
};

/* Rounds and stores the row of the block. `kept` is shared memory for a number of each warp, which nobody reads. */
template <int rows, int features, int threads, int each>
__device__ __forceinline__ void store_float8_row(u8 *result, int row, const Floats<4> (&values)[each], u32 *kept) {
    static_assert(features % 16 == 0, "rows of whole chunks");
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < each; i++) {
        if ((i * threads + (int)threadIdx.x) * 4 >= features) continue;
#pragma unroll
        for (int k = 0; k < 4; k++) largest = max(largest, __float_as_uint(values[i].at[k]) & 0x7fffffffu);
    }
    float inverse;
    const float scale = mxfp8_scale(reduce_block<LargestBits, threads / 32>(largest, kept), inverse);
#pragma unroll
    for (int i = 0; i < each; i++) {
        const int at = (i * threads + (int)threadIdx.x) * 4;
        if (at >= features) continue;
        u32 bytes = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) bytes |= e4m3_code(rounded_e4m3(values[i].at[k], inverse)) << 8 * k;
        *(u32 *)(result + (long long)row * features + at) = bytes;
    }
    if (threadIdx.x == 0) ((float *)(result + (long long)rows * features))[row] = scale;
}

/* x f32 [rows, features]. */
template <int rows, int features, int threads>
__device__ __forceinline__ void round_to_float8(const float *IN_TURN x, u8 *IN_TURN result) {
    constexpr int each = (features / 4 + threads - 1) / threads;
    __shared__ u32 kept[32];
    Floats<4> values[each];
#pragma unroll
    for (int i = 0; i < each; i++) {
        const int at = (i * threads + (int)threadIdx.x) * 4;
        if (at < features) values[i] = Floats<4>::load(x + (long long)blockIdx.x * features + at);
    }
    store_float8_row<rows, features, threads, each>(result, blockIdx.x, values, kept);
}

}  // namespace pyc
