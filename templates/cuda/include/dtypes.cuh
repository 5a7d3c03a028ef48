/* Numbers of 16 bits, vectors that a thread reads at once, dynamic shared memory. */
#pragma once

#ifdef __CUDA_ARCH__
#define SHARED_MEMORY(name) extern __shared__ __align__(1024) unsigned char name[]
#endif

namespace pyc {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

__device__ __forceinline__ float bf16_to_f32(u16 bits) { return __uint_as_float((u32)bits << 16); }

__device__ __forceinline__ float f16_to_f32(u16 bits) {
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    return emulated_f16_to_f32(bits);
#endif
}

/* To the nearest, ties to even. */
__device__ __forceinline__ u16 f32_to_bf16(float value) {
#ifdef __CUDA_ARCH__
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    return emulated_f32_to_bf16(value);
#endif
}

__device__ __forceinline__ u16 f32_to_f16(float value) {
#ifdef __CUDA_ARCH__
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    return emulated_f32_to_f16(value);
#endif
}

/* Two in a register, the first in the low half. */
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
#ifdef __CUDA_ARCH__
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#else
    return (u32)emulated_f32_to_bf16(low) | (u32)emulated_f32_to_bf16(high) << 16;
#endif
}

__device__ __forceinline__ u32 pack_f16(float low, float high) {
#ifdef __CUDA_ARCH__
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
#else
    return (u32)emulated_f32_to_f16(low) | (u32)emulated_f32_to_f16(high) << 16;
#endif
}

}  // namespace pyc
