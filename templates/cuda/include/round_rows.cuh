/* Activations f32 [ROWS, INPUTS] as bf16 [PARTS, ROWS, PADDED], once for all outputs of a GEMM: rounded, and in a second
 * part what that leaves; or rounded to MXFP8, whose numbers are some of bf16 (mxfp8.cuh). Inputs of a block of 32 lie in the order of matrix instructions (matrix.cuh): pair p of thread t
 * has positions 8 p + 2 t and that + 1. Behind the last input are zeros. */
#pragma once
#include "matrix.cuh"
#include "mxfp8.cuh"

namespace pyc {

template <bool IS_MXFP8, int DISTANCE, int ROWS, int INPUTS, int PADDED, int PARTS, int THREADS>
__device__ __forceinline__ void round_rows(const float *x, u8 *result) {
    const int chunk = blockIdx.x * THREADS + threadIdx.x; /* of 8 positions */
    const int pair = chunk % 4, row = blockIdx.y;
    float values[4][2];
#pragma unroll
    for (int t = 0; t < 4; t++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int k = chunk / 4 * BLOCK_K + input_of(DISTANCE, t, pair, half);
            values[t][half] = k < INPUTS ? x[(long long)row * INPUTS + k] : 0;
        }
    if constexpr (IS_MXFP8) round_to_mxfp8(values);
    if (chunk >= PADDED / 8) return;
    u32 rounded[4], rest[4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        rounded[t] = pack_bf16(values[t][0], values[t][1]);
        rest[t] = remainder_pair(values[t][0], values[t][1], rounded[t]);
    }
    uint4 *const place = (uint4 *)(result + ((long long)row * PADDED + chunk * 8) * 2);
    *place = make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
    if constexpr (PARTS == 2) place[(long long)ROWS * PADDED / 8] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
}

}  // namespace pyc
