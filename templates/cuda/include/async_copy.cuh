/* Copies from global to shared memory that go on while the thread does (cp.async, sm_80 and later).
 *
 * A thread's copies up to `commit_copies` are a group; after `wait_for_copies<n>` all but its last n groups are done,
 * and after a barrier others see them too. Bytes behind the first `bytes` of the source are zeros, and are not read.
 */
#pragma once

namespace pyc {

/* 16 bytes past the first-level cache, for what is read once; the second-level cache gets the 256 around them, which others
 * will read. */
__device__ __forceinline__ void copy_16(void *shared, const void *global, int bytes) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
#else
    emulated_cp_async_16(shared, global, bytes);
#endif
}

__device__ __forceinline__ void copy_8(void *shared, const void *global, int bytes) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
#else
    emulated_cp_async_8(shared, global, bytes);
#endif
}

__device__ __forceinline__ void copy_4(void *shared, const void *global, int bytes) {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
#else
    emulated_cp_async_4(shared, global, bytes);
#endif
}

/* 16, 8 or 4 bytes. */
template <int size> __device__ __forceinline__ void copy_async(void *shared, const void *global, int bytes) {
    if constexpr (size == 16) copy_16(shared, global, bytes);
    else if constexpr (size == 8) copy_8(shared, global, bytes);
    else copy_4(shared, global, bytes);
}

__device__ __forceinline__ void commit_copies() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    emulated_cp_async_commit();
#endif
}

template <int pending> __device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#else
    emulated_cp_async_wait(pending);
#endif
}

}  // namespace pyc
