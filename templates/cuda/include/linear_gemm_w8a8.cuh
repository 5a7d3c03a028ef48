/* Linear layers of many rows over codes of eight bits, with activations of eight bits: y[r, n] = sum over blocks b of 32
 * inputs of xs[b, r] ws[n, b] (sum over k of q[r, k] c[n, k]), + bias[n]. Both q and c are integers, or floating point.
 *
 * As linear_gemm.cuh, but a block of inputs is one matrix instruction, whose sums are exact of integers. Bound by the
 * instructions that multiply the sums of a block by its scales.
 */
#pragma once
#include "byte_fragments.cuh"
#include "linear_sums.cuh"
#include "staged_tiles.cuh"

namespace pyc {

template <class M, int ROWS, int OUTPUTS, int INPUTS, int TILE_K, int MT, int RT, int WN, int WR, int WK> struct GemmW8A8 {
    enum : int {
        TILE_N = 16 * MT * WN,
        TILE_R = 8 * RT * WR,
        THREADS = 32 * WN * WR * WK,
        TILES = ceil_div(INPUTS, TILE_K),
        PADDED = TILES * TILE_K,
        BLOCKS = TILE_K / BLOCK_K,
        X_STRIDE = TILE_K + 16,
        X_BYTES = TILE_R * X_STRIDE,
    };
    typedef MatrixTile<M, INPUTS, OUTPUTS, TILE_N, TILE_K> Tile;
    enum : int { STAGE_BYTES = Tile::BYTES + X_BYTES + BLOCKS * TILE_R * 4 };

    static __device__ __forceinline__ void load_rows(u8 *shared, const u8 *x, const float *x_scales, int first, int tile) {
        for_each_of<TILE_R, TILE_K / 16, THREADS>(threadIdx.x, [&](int row, int chunk) {
            const bool is_inside = ROWS % TILE_R == 0 || first + row < ROWS;
            const u8 *const place = x + (long long)(first + row) * PADDED + tile * TILE_K + chunk * 16;
            copy_16(shared + row * X_STRIDE + chunk * 16, is_inside ? place : x, is_inside ? 16 : 0);
        });
        for_each_of<BLOCKS, TILE_R, THREADS>(threadIdx.x, [&](int block, int row) {
            const bool is_inside = ROWS % TILE_R == 0 || first + row < ROWS;
            const float *const place = x_scales + (long long)(tile * BLOCKS + block) * ROWS + first + row;
            copy_4(shared + X_BYTES + (block * TILE_R + row) * 4, is_inside ? place : x_scales, is_inside ? 4 : 0);
        });
    }
};

template <class M, class E, int ROWS, int OUTPUTS, int INPUTS, int TILE_K, int MT, int RT, int WN, int WR, int WK, int STAGES>
__device__ __forceinline__ void gemm_w8a8(const u8 *x, const float *x_scales, const u8 *codes, const u8 *scales,
                                          const u8 *zeros, const float *factors, const float *bias, float *result) {
    typedef GemmW8A8<M, ROWS, OUTPUTS, INPUTS, TILE_K, MT, RT, WN, WR, WK> G;
    typedef typename G::Tile Tile;
    SHARED_MEMORY(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4;
    const int wn = warp % WN, wr = warp / WN % WR, wk = warp / (WN * WR);
    const int first_row = blockIdx.x * G::TILE_R, first_output = blockIdx.y * G::TILE_N;
    float sums[1][MT][RT][4] = {};

    const auto load = [&](u8 *stage, int tile) {
        Tile::template load<G::THREADS>(stage, codes, scales, zeros, first_output, tile, threadIdx.x);
        G::load_rows(stage + Tile::BYTES, x, x_scales, first_row, tile);
    };
    for_each_tile<STAGES, G::TILES, G::STAGE_BYTES>(memory, load, [&](const u8 *stage, int tile) {
        const u8 *const rows = stage + Tile::BYTES;
        /* The row that this lane hands to ldmatrix: matrices are the halves of a block of eight rows, and of eight more. */
        const u8 *const row = rows + (8 * RT * wr + lane / 16 * 8 + lane % 8) * G::X_STRIDE + lane / 8 % 2 * 16;
#pragma unroll 1
        for (int block = wk; block < G::BLOCKS; block += WK) {
            ByteFragments<M> weights[MT];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                weights[mt].template load<Tile>(stage, first_output, 16 * (wn * MT + mt), tile, block);
#pragma unroll
            for (int rt = 0; rt < RT; rt += 2) {
                u32 pair[4];
                ldmatrix_x4(pair, row + 8 * rt * G::X_STRIDE + block * BLOCK_K);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float2 of_rows = *(const float2 *)(rows + G::X_BYTES +
                                                             (block * G::TILE_R + 8 * (RT * wr + rt + r) + 2 * t) * 4);
#pragma unroll
                    for (int mt = 0; mt < MT; mt++)
                        weights[mt].multiply(sums[0][mt][rt + r], pair[2 * r], pair[2 * r + 1], of_rows.x, of_rows.y);
                }
            }
        }
    });
    store_sums<E, M, ROWS, OUTPUTS, WN, WR, WK>(sums, memory, first_row, first_output, scales, factors, bias, result);
}

}  // namespace pyc
