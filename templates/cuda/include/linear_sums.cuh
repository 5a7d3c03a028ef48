/* How the sums of a GEMM's warps become results. */
#pragma once
#include "elementwise.cuh"
#include "matrix_tiles.cuh"
#include "rounded_rows.cuh"

namespace pyc {

/* Add the sums of WK warps that share outputs and rows, in order: to those of the first, of `sharing` threads. */
template <int sharing, int WK, int A, int MT, int R>
__device__ __forceinline__ void add_warps(float (&sums)[A][MT][R][4], u8 *memory) {
    if constexpr (WK > 1) { /* [WK - 1, A, MT, R, 4, threads of one wk] */
        constexpr int count = A * MT * R * 4;
        float *const shared = (float *)memory, *const all = &sums[0][0][0][0];
        const int of_wk = threadIdx.x % sharing, wk = threadIdx.x / sharing;
        __syncthreads();
        if (wk > 0)
#pragma unroll
            for (int index = 0; index < count; index++) shared[((wk - 1) * count + index) * sharing + of_wk] = all[index];
        __syncthreads();
        if (wk > 0) return;
#pragma unroll
        for (int other = 0; other < WK - 1; other++)
#pragma unroll
            for (int index = 0; index < count; index++) all[index] += shared[(other * count + index) * sharing + of_wk];
    }
}

/* Add the sums of SPLITS blocks, gridDim.z, that share outputs and rows, in order: true for the last of them to come, which
 * has all then. `partial` is f32 [tiles, SPLITS, count, THREADS], `arrivals` u32 [tiles] of zeros, and zeros again behind
 * it. The first THREADS threads of the block take part. */
template <int SPLITS, int THREADS, int count>
__device__ __forceinline__ bool add_splits(float (&sums)[count], u8 *memory, float *partial, u32 *arrivals) {
    u32 *const before = (u32 *)memory;
    const long long tile = (long long)blockIdx.y * gridDim.x + blockIdx.x;
    float *const of_tile = partial + tile * SPLITS * count * THREADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < count; i++) of_tile[((int)blockIdx.z * count + i) * THREADS] = sums[i];
    __syncthreads(); /* the block has written its sums */
    if (threadIdx.x == 0) {
        __threadfence();
        *before = atomicAdd(arrivals + tile, 1u);
        __threadfence();
    }
    __syncthreads(); /* all know which block this is */
    if (*before != SPLITS - 1) return false;
#pragma unroll
    for (int i = 0; i < count; i++) {
        float sum = __ldcg(of_tile + i * THREADS);
#pragma unroll
        for (int split = 1; split < SPLITS; split++) sum += __ldcg(of_tile + (split * count + i) * THREADS);
        sums[i] = sum;
    }
    if (threadIdx.x == 0) arrivals[tile] = 0;
    return true;
}

/* What becomes of the sums of a GEMM: results f32 [ROWS, OUTPUTS], or with a gate, whose rows of the matrix are `Paired`,
 * [ROWS, OUTPUTS / 2], of f32 or as DISTANCE and PARTS say (rounded_rows.cuh). */
template <class Of, int distance, int parts> struct GemmEpilogue {
    typedef Of Gate;
    enum : int { HAS_GATE = HasGate<Gate>::VALUE, DISTANCE = distance, PARTS = parts };
};
typedef GemmEpilogue<NoGate, PLAIN_ROWS, 1> PlainSums;

/* Add the sums of WK warps that share outputs and rows, in order, and write them times scales of rows, plus the bias. A
 * warp has 16 MT outputs and 8 A R rows, sums[a][mt][r] being those of its eight rows R a + r. */
template <class E, class M, int ROWS, int OUTPUTS, int WN, int WR, int WK, int A, int MT, int R>
__device__ __forceinline__ void store_sums(float (&sums)[A][MT][R][4], u8 *memory, int first_row, int first_output,
                                           const u8 *scales, const float *factors, const float *bias, float *result) {
    constexpr int RESULTS = E::HAS_GATE ? OUTPUTS / 2 : OUTPUTS;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int wn = warp % WN, wr = warp / WN % WR, wk = warp / (WN * WR);
    add_warps<32 * WN * WR, WK>(sums, memory);
    if (wk > 0) return;
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        const int first = first_output + 16 * (wn * MT + mt) + g; /* and eight behind it, which it gates */
        float scale[2], added[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int output = M::row_at(min(first + 8 * half, OUTPUTS - 1));
            scale[half] = row_scale<M>(scales, factors, output), added[half] = bias ? bias[output] : 0;
        }
#pragma unroll
        for (int half = 0; half < (E::HAS_GATE ? 1 : 2); half++) {
            if (first + 8 * half >= OUTPUTS) continue;
            const int at = E::HAS_GATE ? M::row_at(first) : first + 8 * half;
#pragma unroll
            for (int index = 0; index < A * R * 2; index++) {
                const int rt = index / 2, e = index % 2, row = first_row + 8 * (wr * A * R + rt) + 2 * t + e;
                const float(&of_row)[4] = sums[rt / R][mt][rt % R];
                float value = of_row[2 * half + e] * scale[half] + added[half];
                if constexpr (E::HAS_GATE) value = E::Gate::of(value) * (of_row[2 + e] * scale[1] + added[1]);
                if (row < ROWS) store_number<E::DISTANCE, E::PARTS, ROWS, RESULTS>(result, row, at, value);
            }
        }
    }
}

}  // namespace pyc
