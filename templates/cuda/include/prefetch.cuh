/* Weights that are on their way to the second-level cache while a kernel that reads little runs. */
#pragma once

namespace pyc {

/* Start to fetch the first `bytes` of weights; all threads of a grid of `blocks` blocks share it. Weights are there from the
 * start, so nothing is waited for. GPUs without such an instruction, before sm_90, fetch nothing. */
template <long long bytes, int blocks, int threads> __device__ __forceinline__ void prefetch(const unsigned char *weights) {
    constexpr long long count = (long long)blocks * threads, of_thread = (bytes / 16 + count - 1) / count * 16;
    static_assert(bytes % 16 == 0, "whole 16 bytes");
    const long long block = blockIdx.x + (long long)gridDim.x * (blockIdx.y + (long long)gridDim.y * blockIdx.z);
    const long long from = (block * threads + threadIdx.x) * of_thread, left = bytes - from;
    const unsigned size = (unsigned)(left < of_thread ? left : of_thread);
    if (left <= 0) return;
#ifndef __CUDA_ARCH__
    emulated_prefetch(weights + from, size);
#elif __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(weights + from)), "r"(size) : "memory");
#endif
}

}  // namespace pyc
