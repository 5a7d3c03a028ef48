/* Matrix instructions over bf16 or f16 by the kind of number, and matrices that are transposed on their way; fragments
 * are those of mma.cuh. Numbers of f32 become a sum of two: what rounding leaves is rounded too.
 */
#pragma once
#include "dtypes.cuh"

namespace pyc {

struct PairBf16 {
    static __device__ __forceinline__ u32 pack(float low, float high) { return pack_bf16(low, high); }
    static __device__ __forceinline__ float number(u16 bits) { return bf16_to_f32(bits); }
};
struct PairF16 {
    static __device__ __forceinline__ u32 pack(float low, float high) { return pack_f16(low, high); }
    static __device__ __forceinline__ float number(u16 bits) { return f16_to_f32(bits); }
};

/* Two numbers as pairs whose sum they are, up to 2^-16 (bf16) or 2^-22 (f16) of them. */
template <class Number> __device__ __forceinline__ void split_pair(float low, float high, u32 &rounded, u32 &rest) {
    rounded = Number::pack(low, high);
    rest = Number::pack(low - Number::number((u16)rounded), high - Number::number((u16)(rounded >> 16)));
}

__device__ __forceinline__ void mma(PairBf16, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    emulated_mma_bf16_m16n8k16(d, a, b);
#endif
}

__device__ __forceinline__ void mma(PairF16, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    emulated_mma_f16_m16n8k16(d, a, b);
#endif
}

/* Four matrices of 8 rows of 16 bytes: lane i has the address of row i % 8 of matrix i / 8 in shared memory. */
template <bool is_transposed> __device__ __forceinline__ void load_fragments(u32 (&fragments)[4], const void *row) {
#ifdef __CUDA_ARCH__
    const u32 address = (u32)__cvta_generic_to_shared(row);
    if (is_transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
                     : "r"(address));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
                     : "r"(address));
#else
    if (is_transposed) emulated_ldmatrix_x4_trans(fragments, row);
    else emulated_ldmatrix_x4(fragments, row);
#endif
}

}  // namespace pyc
