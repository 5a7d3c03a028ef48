/* Launches that begin before those that they wait for have ended (programmatic dependent launch, sm_90 and later).
 *
 * A launch may begin once every block of the one before has called `let_later_launches_begin`, or ended. Nothing that
 * another launch of the graph writes may be read, and nothing at all written, before `wait_for_earlier_launches`, which
 * returns when the launch before has ended and what it wrote can be seen. Weights are never written. Every thread calls
 * it, whatever it does then: a launch that ended without would end before those that it follows.
 *
 * Blocks of a launch that has begun take the place of others, and where the launch before is a long one they would wait
 * there: kernels that fill the GPU let later ones begin when most of their work is done; short ones at once, and so those whose
 * blocks all have a place from the start.
 *
 * On older GPUs, and where nothing was launched so, both do nothing.
 */
#pragma once

/* `__restrict__` where launches run in turn. Where they overlap, a parameter whose array other launches write has none: a
 * compiler that sees that this kernel does not write an array takes it for one that stays as it is, and may read it before
 * the wait, or by ld.global.nc, which caches need not keep coherent. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define IN_TURN __restrict__
#else
#define IN_TURN
#endif

namespace pyc {

__device__ __forceinline__ void let_later_launches_begin() {
#ifndef __CUDA_ARCH__
    emulated_let_dependents_begin();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_earlier_launches() {
#ifndef __CUDA_ARCH__
    emulated_wait_for_dependencies();
#elif __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace pyc
