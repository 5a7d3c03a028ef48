/* Matrix instructions of a warpgroup, four warps of which the first is a multiple of four (wgmma, on sm_90a alone):
 * d [64, N] += a [64, 16] b [16, N] of bf16, or of 32 inputs in 8 bits, in f32, beside whatever the threads do meanwhile.
 *
 * Sums and `a` in registers are those of mma.sync (mma.cuh): warp w has rows 16 w to 16 w + 15, and d[4 j] to d[4 j + 3]
 * are its columns 8 j to 8 j + 7. `b`, and `a` where it is not in registers, are columns, or rows, in shared memory, 32
 * bytes of each: 128 bytes of one after another, of which chunk c of 16 bytes of row r lies at c ^ (r % 8) (`swizzled`),
 * so that no two rows of eight are in the same banks. They begin at a multiple of 1024 bytes.
 *
 * Instructions up to `commit_products` are a group; after `wait_for_products<n>` all but the last n groups are done.
 * Until then their registers and what they read of shared memory must stay. (PTX manual, "wgmma".)
 */
#pragma once
#include "matrix_tiles.cuh"

namespace pyc {

typedef unsigned long long u64;

constexpr int SWIZZLED_BYTES = 128;       /* of a row */
constexpr int WARPGROUP = 128, WARPGROUP_ROWS = 64;

/* Where chunk `chunk` of 16 bytes of a row lies. */
__device__ __forceinline__ int swizzled(int row, int chunk) { return row * SWIZZLED_BYTES + (chunk ^ row % 8) * 16; }

/* What instructions are told of rows in shared memory: where they begin, that eight of them are 1024 bytes, and how they
 * are swizzled. Two more are the next 32 bytes of each. */
__device__ __forceinline__ u64 rows_at(const u8 *shared) {
#ifdef __CUDA_ARCH__
    const u64 start = (u64)(__cvta_generic_to_shared(shared)) >> 4;
#else
    const u64 start = (u64)(shared - emulated_shared_memory()) >> 4;
#endif
    return start | 1ull << 16 | (u64)(8 * SWIZZLED_BYTES >> 4) << 32 | 1ull << 62;
}
constexpr u64 NEXT_INPUTS = 2;

struct InOrder {
    static __device__ constexpr int row_at(int row) { return row; }
};

/* Start to copy tile `tile` of `count` rows of `row_bytes` from `first` on, of which there are `all`: 128 bytes of each.
 * What is not there becomes zeros; rows end with a tile where all are whole. `Rows` tells which they are (`Matrix::row_at`). */
template <int count, int all, int row_bytes, int threads, bool are_whole = row_bytes % SWIZZLED_BYTES == 0, class Rows = InOrder>
__device__ __forceinline__ void load_swizzled(u8 *shared, const u8 *source, int first, int tile) {
    static_assert(row_bytes % 16 == 0, "whole chunks");
    for_each_of<count, SWIZZLED_BYTES / 16, threads>(threadIdx.x, [&](int row, int chunk) {
        const int at = tile * SWIZZLED_BYTES + chunk * 16;
        const bool is_inside = (all % count == 0 || first + row < all) && (are_whole || at < row_bytes);
        const u8 *const place = source + (long long)Rows::row_at(first + row) * row_bytes + at;
        copy_16(shared + swizzled(row, chunk), is_inside ? place : source, is_inside ? 16 : 0);
    });
}

/* Before a first instruction, and wherever registers that instructions take were written by others. */
__device__ __forceinline__ void begin_products() {
#ifdef __CUDA_ARCH__
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
    emulated_wgmma_fence();
#endif
}

__device__ __forceinline__ void commit_products() {
#ifdef __CUDA_ARCH__
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    emulated_wgmma_commit();
#endif
}

template <int pending> __device__ __forceinline__ void wait_for_products() {
#ifdef __CUDA_ARCH__
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
#else
    emulated_wgmma_wait(pending);
#endif
}

/* So that the compiler leaves sums where they are until a wait before it. */
template <int count> __device__ __forceinline__ void keep_in_place(float (&sums)[count]) {
#ifdef __CUDA_ARCH__
#pragma unroll
    for (int i = 0; i < count; i++) asm volatile("" : "+f"(sums[i])::"memory");
#endif
}

/* By each thread, behind its own copies and before the barrier after which instructions read them. */
__device__ __forceinline__ void show_copies_to_products() {
#ifdef __CUDA_ARCH__
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
    emulated_proxy_fence();
#endif
}

#ifdef __CUDA_ARCH__
/* Registers by sixteens, and their numbers in an instruction. */
#define PYC_SUMS(d, i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]), "+f"(d[i + 12]), \
        "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define PYC_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define PYC_NAMES_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define PYC_NAMES_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define PYC_NAMES_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PYC_NAMES_4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define PYC_NAMES_5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define PYC_NAMES_6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define PYC_NAMES_7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define PYC_SUMS_32(d) PYC_SUMS(d, 0)
#define PYC_SUMS_64(d) PYC_SUMS_32(d), PYC_SUMS(d, 16)
#define PYC_SUMS_128(d) PYC_SUMS_64(d), PYC_SUMS(d, 32), PYC_SUMS(d, 48)
#define PYC_SUMS_256(d) PYC_SUMS_128(d), PYC_SUMS(d, 64), PYC_SUMS(d, 80), PYC_SUMS(d, 96), PYC_SUMS(d, 112)
#define PYC_NAMES_32 PYC_NAMES_0
#define PYC_NAMES_64 PYC_NAMES_32 ", " PYC_NAMES_1
#define PYC_NAMES_128 PYC_NAMES_64 ", " PYC_NAMES_2 ", " PYC_NAMES_3
#define PYC_NAMES_256 PYC_NAMES_128 ", " PYC_NAMES_4 ", " PYC_NAMES_5 ", " PYC_NAMES_6 ", " PYC_NAMES_7

/* Of `n` columns; the operands behind the sums have the numbers p to t. */
#define PYC_WGMMA_SHARED(n, p, q, r) \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #r ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" PYC_NAMES_##n "}, %" #p ", %" #q \
                 ", adds, 1, 1, 0, 0;\n}" \
                 : PYC_SUMS_##n(d) \
                 : "l"(a), "l"(b), "r"((int)adds))
/* Of 8 bits: a of `kind`, b of e4m3. */
#define PYC_WGMMA_FLOAT8(kind, n, p, q, r) \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #r ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32." kind ".e4m3 {" PYC_NAMES_##n "}, %" #p ", %" #q \
                 ", adds, 1, 1;\n}" \
                 : PYC_SUMS_##n(d) \
                 : "l"(a), "l"(b), "r"((int)adds))
#define PYC_WGMMA_REGISTERS(n, p, q, r, s, t, u) \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, %" #u ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" PYC_NAMES_##n "}, {%" #p ", %" #q ", %" #r \
                 ", %" #s "}, %" #t ", adds, 1, 1, 0;\n}" \
                 : PYC_SUMS_##n(d) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds))
#endif

/* d = a b, and d as it was where it `adds`. */
template <int N> __device__ __forceinline__ void multiply_shared(float (&d)[N / 2], u64 a, u64 b, bool adds = true) {
#ifdef __CUDA_ARCH__
    if constexpr (N == 32) PYC_WGMMA_SHARED(32, 16, 17, 18);
    else if constexpr (N == 64) PYC_WGMMA_SHARED(64, 32, 33, 34);
    else if constexpr (N == 128) PYC_WGMMA_SHARED(128, 64, 65, 66);
    else PYC_WGMMA_SHARED(256, 128, 129, 130);
#else
    emulated_wgmma_bf16(N, d, nullptr, a, b, adds);
#endif
}

/* The same of 32 inputs in 8 bits, a of e4m3 or e5m2, b of e4m3. Sums have fewer bits than f32 within the instruction, and
 * from one to the next (arXiv:2412.19437, section 3.3.2): not many may follow each other into the same. */
template <int N, bool is_e4m3>
__device__ __forceinline__ void multiply_float8(float (&d)[N / 2], u64 a, u64 b, bool adds = true) {
#ifdef __CUDA_ARCH__
    if constexpr (N == 32 && is_e4m3) PYC_WGMMA_FLOAT8("e4m3", 32, 16, 17, 18);
    else if constexpr (N == 32) PYC_WGMMA_FLOAT8("e5m2", 32, 16, 17, 18);
    else if constexpr (N == 64 && is_e4m3) PYC_WGMMA_FLOAT8("e4m3", 64, 32, 33, 34);
    else if constexpr (N == 64) PYC_WGMMA_FLOAT8("e5m2", 64, 32, 33, 34);
    else if constexpr (is_e4m3) PYC_WGMMA_FLOAT8("e4m3", 128, 64, 65, 66);
    else PYC_WGMMA_FLOAT8("e5m2", 128, 64, 65, 66);
#else
    emulated_wgmma_float8(N, is_e4m3, d, a, b, adds);
#endif
}

/* The same, a in registers. */
template <int N>
__device__ __forceinline__ void multiply_registers(float (&d)[N / 2], const u32 (&a)[4], u64 b, bool adds = true) {
#ifdef __CUDA_ARCH__
    if constexpr (N == 32) PYC_WGMMA_REGISTERS(32, 16, 17, 18, 19, 20, 21);
    else if constexpr (N == 64) PYC_WGMMA_REGISTERS(64, 32, 33, 34, 35, 36, 37);
    else if constexpr (N == 128) PYC_WGMMA_REGISTERS(128, 64, 65, 66, 67, 68, 69);
    else PYC_WGMMA_REGISTERS(256, 128, 129, 130, 131, 132, 133);
#else
    emulated_wgmma_bf16(N, d, a, 0, b, adds);
#endif
}

}  // namespace pyc
