/* Matrix instructions and pairs of bf16; d [16, 8] += a [16, 16] b [16, 8] in f32.
 *
 * Fragments of lane i, with g = i / 4 and t = i % 4 (PTX manual, "mma"), two elements in a register, the first of them
 * in its lower half:
 *   a[0], a[1]  rows g and g + 8, columns 2 t, 2 t + 1        a[2], a[3]  the same rows, columns 2 t + 8, 2 t + 9
 *   b[0], b[1]  rows 2 t, 2 t + 1 and 2 t + 8, 2 t + 9, column g
 *   d[0], d[1]  row g, columns 2 t, 2 t + 1                   d[2], d[3]  row g + 8, the same columns
 */
#pragma once
#include "dtypes.cuh"

namespace pyc {

__device__ __forceinline__ void mma_bf16(float (&d)[4], const u32 (&a)[4], const u32 b0, const u32 b1) {
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    const u32 b[2] = {b0, b1};
    emulated_mma_bf16_m16n8k16(d, a, b);
#endif
}

/* The same, but d = a b. */
__device__ __forceinline__ void mma_bf16_first(float (&d)[4], const u32 (&a)[4], const u32 b0, const u32 b1) {
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
#else
    d[0] = d[1] = d[2] = d[3] = 0;
    mma_bf16(d, a, b0, b1);
#endif
}

/* d [16, 8] = a [16, 32] b [32, 8] + MMA_INTEGER_ZERO of bytes with signs; fragments hold four inputs in a register: a[0]
 * and a[1] columns 4 t to 4 t + 3 of rows g and g + 8, a[2] and a[3] those 16 further, b0 and b1 the same rows.
 *
 * The bits of the sums, below 2^22, are those of an f32: the sum and 1.5 * 2^23. */
constexpr int MMA_INTEGER_ZERO = 0x4b400000;

__device__ __forceinline__ void mma_integer(int (&d)[4], const u32 (&a)[4], const u32 b0, const u32 b1) {
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(MMA_INTEGER_ZERO));
#else
    const u32 b[2] = {b0, b1};
    d[0] = d[1] = d[2] = d[3] = MMA_INTEGER_ZERO;
    emulated_mma_s8_m16n8k32(d, a, b);
#endif
}

__device__ __forceinline__ float mma_integer_sum(int bits) { return __int_as_float(bits) - __int_as_float(MMA_INTEGER_ZERO); }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define PYC_FLOAT8_BY_BF16 /* there is no such instruction */
#endif

#ifndef PYC_FLOAT8_BY_BF16
/* d [16, 8] = a [16, 32] b [32, 8], a of e4m3 or e5m2, b of e4m3; fragments as those of `mma_integer`. Sums have 13 bits of
 * fraction (measured on sm_89: arXiv:2411.10958), so no more than 32 products are left to them. For sm_90a and sm_100a, whose
 * tensor cores multiply floating point of 8 bits by other instructions alone, ptxas makes two products of f16 of it. */
template <bool is_e4m3>
__device__ __forceinline__ void mma_float8(float (&d)[4], const u32 (&a)[4], const u32 b0, const u32 b1) {
#ifdef __CUDA_ARCH__
#define PYC_MMA_FLOAT8(kind) \
    asm("mma.sync.aligned.m16n8k32.row.col.f32." kind ".e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
        "{%10, %10, %10, %10};" \
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f))
    if constexpr (is_e4m3) PYC_MMA_FLOAT8("e4m3");
    else PYC_MMA_FLOAT8("e5m2");
#undef PYC_MMA_FLOAT8
#else
    const u32 b[2] = {b0, b1};
    d[0] = d[1] = d[2] = d[3] = 0;
    if constexpr (is_e4m3) emulated_mma_e4m3_m16n8k32(d, a, b);
    else emulated_mma_e5m2_m16n8k32(d, a, b);
#endif
}
#endif

/* (bits & mask) | others in one instruction, which takes but one constant. */
__device__ __forceinline__ u32 masked_or(u32 bits, u32 mask, u32 others) {
#ifdef __CUDA_ARCH__
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(bits), "r"(mask), "r"(others));
    return result;
#else
    return (bits & mask) | others;
#endif
}

__device__ __forceinline__ u32 masked_xor(u32 bits, u32 mask, u32 others) {
#ifdef __CUDA_ARCH__
    u32 result;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(bits), "r"(mask), "r"(others));
    return result;
#else
    return (bits & mask) ^ others;
#endif
}

/* A number that the compiler does not know: constants that depend on it stay in registers, where instructions that take
 * one constant at most would have each of several moved to a register every time. */
__device__ __forceinline__ u32 unknown_zero() { return blockDim.z - 1; }

/* Four matrices of 8 rows of 16 bytes in shared memory: lane i has the address of row i % 8 of matrix i / 8, and gets
 * of each matrix the elements 2 t and 2 t + 1 of row g. */
__device__ __forceinline__ void ldmatrix_x4(u32 (&fragments)[4], const void *row) {
#ifdef __CUDA_ARCH__
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
                 : "r"((u32)(__cvta_generic_to_shared(row))));
#else
    emulated_ldmatrix_x4(fragments, row);
#endif
}

__device__ __forceinline__ float low_of(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

/* Pairs x y + z, rounded once; subnormal numbers count. */
__device__ __forceinline__ u32 fma_pair(u32 x, u32 y, u32 z) {
#ifdef __CUDA_ARCH__
    u32 result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(x), "r"(y), "r"(z));
    return result;
#else
    return pack_bf16(fmaf(low_of(x), low_of(y), low_of(z)), fmaf(high_of(x), high_of(y), high_of(z)));
#endif
}

constexpr u32 ONE_PAIR = 0x3f803f80u;
constexpr u32 ZERO_PAIR = 0x80008000u; /* -0, which changes no sum */

__device__ __forceinline__ u32 add_pair(u32 x, u32 y) { return fma_pair(x, ONE_PAIR, y); }
__device__ __forceinline__ u32 multiply_pair(u32 x, u32 y) { return fma_pair(x, y, ZERO_PAIR); }

/* What bf16 leaves of two numbers, itself as bf16: x - rounded - remainder is at most 2^-18 |x|. */
__device__ __forceinline__ u32 remainder_pair(float low, float high, u32 rounded) {
    return pack_bf16(low - low_of(rounded), high - high_of(rounded));
}

}  // namespace pyc
