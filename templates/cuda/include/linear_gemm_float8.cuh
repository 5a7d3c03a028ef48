/* Linear layers of many rows (GEMM) of floating point of 8 bits by warpgroups, which read both sides in shared memory by
 * themselves: y[r, n] = scale[r] * sum over k of x[r, k] w[n, k], + bias[n], x of e4m3 (float8_rows.cuh).
 *
 * A block has 64 WARPGROUPS outputs and TILE_R rows. Sums of the instructions have fewer bits than f32: those of 128 inputs
 * are added to others in f32, while other warpgroups multiply. A scale of the matrix for 128 inputs multiplies them then.
 */
#pragma once
#include "dependent_launch.cuh"
#include "linear_sums.cuh"
#include "warpgroup_mma.cuh"

namespace pyc {

template <class M, class E, int ROWS, int OUTPUTS, int INPUTS, int TILE_R, int WARPGROUPS, int STAGES>
__device__ __forceinline__ void gemm_float8(const u8 *x, const u8 *codes, const u8 *scales, const u8 *zeros,
                                            const float *factors, const float *bias, float *result) {
    constexpr int TILE_N = WARPGROUP_ROWS * WARPGROUPS, THREADS = WARPGROUP * WARPGROUPS, TILES = ceil_div(INPUTS, SWIZZLED_BYTES);
    constexpr int WEIGHTS_AT = TILE_R * SWIZZLED_BYTES, STAGE_BYTES = WEIGHTS_AT + TILE_N * SWIZZLED_BYTES;
    constexpr int AHEAD = STAGES - 1, SUMS = TILE_R / 2;
    static_assert(M::GROUP == 0 || M::GROUP == SWIZZLED_BYTES, "a scale for a row, or for a tile");
    SHARED_MEMORY(memory);
    const int warp = threadIdx.x / 32, warpgroup = warp / 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int first_row = blockIdx.x * TILE_R, first_output = blockIdx.y * TILE_N;
    float sums[TILE_R / 8][1][1][4] = {};
    float(&all)[SUMS] = (float(&)[SUMS])sums;
    float of_tile[SUMS];

    const auto stage_of = [&](int tile) { return memory + tile % STAGES * STAGE_BYTES; };
    const auto copy_weights = [&](int tile) {
        if (tile < TILES)
            load_swizzled<TILE_N, OUTPUTS, INPUTS, THREADS, INPUTS % SWIZZLED_BYTES == 0, M>(stage_of(tile) + WEIGHTS_AT, codes,
                                                                                           first_output, tile);
    };
    const auto copy_rows = [&](int tile) {
        if (tile < TILES) load_swizzled<TILE_R, ROWS, INPUTS, THREADS>(stage_of(tile), x, first_row, tile);
        commit_copies();
    };
#pragma unroll 1
    for (int tile = 0; tile < AHEAD; tile++) copy_weights(tile);
    wait_for_earlier_launches();
#pragma unroll 1
    for (int tile = 0; tile < AHEAD; tile++) copy_rows(tile);
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++) {
        wait_for_copies<AHEAD - 1>();
        show_copies_to_products();
        __syncthreads(); /* the tile is there, and all have multiplied the tile before */
        const u8 *const stage = stage_of(tile);
        const u64 rows = rows_at(stage), outputs = rows_at(stage + WEIGHTS_AT + warpgroup * WARPGROUP_ROWS * SWIZZLED_BYTES);
        begin_products();
#pragma unroll
        for (int k = 0; k < SWIZZLED_BYTES / 32; k++)
            multiply_float8<TILE_R, (int)M::KIND == (int)E4M3>(of_tile, outputs + k * NEXT_INPUTS, rows + k * NEXT_INPUTS, k > 0);
        commit_products();
        float by[2] = {1, 1};
        if constexpr (M::GROUP != 0)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int output = M::row_at(min(first_output + 16 * warp + g + 8 * half, OUTPUTS - 1));
                by[half] = ((const float *)scales)[(long long)output * M::groups(INPUTS) + tile];
            }
        copy_weights(tile + AHEAD), copy_rows(tile + AHEAD);
        wait_for_products<0>();
        keep_in_place(of_tile);
#pragma unroll
        for (int i = 0; i < SUMS; i++) all[i] = M::GROUP ? fmaf(by[i % 4 / 2], of_tile[i], all[i]) : all[i] + of_tile[i];
    }
    let_later_launches_begin();
    wait_for_copies<0>();
    const float *const row_scales = (const float *)(x + (long long)ROWS * INPUTS);
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int row = first_row + i / 4 * 8 + 2 * t + i % 2;
        all[i] *= row_scales[min(row, ROWS - 1)];
    }
    store_sums<E, M, ROWS, OUTPUTS, 4 * WARPGROUPS, 1, 1>(sums, memory, first_row, first_output, scales, factors, bias, result);
}

}  // namespace pyc
