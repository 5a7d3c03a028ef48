/* Sums and maxima over a warp and over a block, in a fixed order. Every thread gets the result. */
#pragma once
#include "dependent_launch.cuh"
#include "dtypes.cuh"

namespace pyc {

struct Sum {
    static __device__ __forceinline__ float empty() { return 0.0f; }
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
struct Maximum {
    static __device__ __forceinline__ float empty() { return -__int_as_float(0x7f800000); }
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};

/* Over groups of `width` neighbouring lanes. */
template <class Operation, int width = 32, class Number = float>
__device__ __forceinline__ Number reduce_warp(Number value) {
#pragma unroll
    for (int by = width / 2; by > 0; by /= 2) value = Operation::of(value, __shfl_xor_sync(0xffffffffu, value, by));
    return value;
}

/* Over the block's `warps`; `kept` is shared memory of `warps` values, free again for the next call after a barrier. */
template <class Operation, int warps, class Number> __device__ __forceinline__ Number reduce_block(Number value, Number *kept) {
    value = reduce_warp<Operation>(value);
    if (warps == 1) return value;
    const int lane = threadIdx.x % 32;
    if (lane == 0) kept[threadIdx.x / 32] = value;
    __syncthreads();
    return reduce_warp<Operation>(lane < warps ? kept[lane] : Operation::empty());
}

}  // namespace pyc
