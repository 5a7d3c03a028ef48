/* Activations f32 [ROWS, INPUTS] as bf16 [PARTS, ROWS, PADDED], once for all outputs of a GEMM: rounded, and in a second
 * part what that leaves. Inputs of a block of 32 lie in the order of matrix instructions (matrix.cuh): pair p of thread t
 * has positions 8 p + 2 t and that + 1. Behind the last input are zeros. */
#pragma once
#include "matrix.cuh"

namespace pyc {

template <int DISTANCE, int ROWS, int INPUTS, int PADDED, int PARTS, int THREADS>
__device__ __forceinline__ void round_rows(const float *x, u8 *result) {
    const int chunk = blockIdx.x * THREADS + threadIdx.x; /* of 8 positions */
    if (chunk >= PADDED / 8) return;
    const int pair = chunk % 4, row = blockIdx.y;
    u32 rounded[4], rest[4];
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int block = chunk / 4 * BLOCK_K;
        const int k = block + input_of(DISTANCE, t, pair, 0), other = block + input_of(DISTANCE, t, pair, 1);
        const float low = k < INPUTS ? x[(long long)row * INPUTS + k] : 0;
        const float high = other < INPUTS ? x[(long long)row * INPUTS + other] : 0;
        rounded[t] = pack_bf16(low, high);
        rest[t] = remainder_pair(low, high, rounded[t]);
    }
    uint4 *const place = (uint4 *)(result + ((long long)row * PADDED + chunk * 8) * 2);
    *place = make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
    if constexpr (PARTS == 2) place[(long long)ROWS * PADDED / 8] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
}

}  // namespace pyc
