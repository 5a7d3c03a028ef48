/* How the sums of a GEMM's warps become results. */
#pragma once
#include "matrix_tiles.cuh"

namespace pyc {

/* Add the sums of WK warps that share outputs and rows, in order, and write them times scales of rows, plus the bias. A
 * warp has 16 MT outputs and 8 A R rows, sums[a][mt][r] being those of its eight rows R a + r. */
template <class M, int ROWS, int OUTPUTS, int WN, int WR, int WK, int A, int MT, int R>
__device__ __forceinline__ void store_sums(float (&sums)[A][MT][R][4], u8 *memory, int first_row, int first_output,
                                           const u8 *scales, const float *factors, const float *bias, float *result) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int wn = warp % WN, wr = warp / WN % WR, wk = warp / (WN * WR);
    if constexpr (WK > 1) { /* [WK - 1, A, MT, R, 4, threads of one wk] */
        constexpr int sharing = 32 * WN * WR, count = A * MT * R * 4;
        float *const shared = (float *)memory, *const all = &sums[0][0][0][0];
        const int of_wk = threadIdx.x % sharing;
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
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int output = first_output + 16 * (wn * MT + mt) + g + 8 * half;
            if (output >= OUTPUTS) continue;
            const float scale = row_scale<M>(scales, factors, output), added = bias ? bias[output] : 0;
#pragma unroll
            for (int index = 0; index < A * R * 2; index++) {
                const int rt = index / 2, e = index % 2, row = first_row + 8 * (wr * A * R + rt) + 2 * t + e;
                if (row < ROWS)
                    result[(long long)row * OUTPUTS + output] = sums[rt / R][mt][rt % R][2 * half + e] * scale + added;
            }
        }
}

}  // namespace pyc
