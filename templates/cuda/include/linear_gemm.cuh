/* Linear layers of many rows (GEMM): y[r, n] = sum over k of x[r, k] w[n, k], + bias[n].
 *
 * Bound by matrix instructions (mma.sync), or of few rows by the bytes of w. A block has TILE_N outputs and TILE_R rows;
 * its warps are WN x WR, each with 16 MT outputs and 8 RT rows, times WK that share the blocks of 32 inputs of a tile and
 * whose sums are added in order. STAGES tiles of codes and of rounded activations (round_rows.cuh) are in shared memory,
 * all but one on their way. Codes become bf16 in the registers of each warp that multiplies by them: shared memory and
 * its bandwidth are spent on codes, not on what they stand for.
 */
#pragma once
#include "linear_sums.cuh"
#include "matrix_tiles.cuh"
#include "staged_tiles.cuh"

namespace pyc {

template <class M, int ROWS, int OUTPUTS, int INPUTS, int PARTS, int TILE_K, int MT, int RT, int WN, int WR, int WK>
struct Gemm {
    enum : int {
        TILE_N = 16 * MT * WN,
        TILE_R = 8 * RT * WR,
        THREADS = 32 * WN * WR * WK,
        TILES = ceil_div(INPUTS, TILE_K),
        PADDED = TILES * TILE_K,
        X_STRIDE = 2 * TILE_K + 16,
        PART_BYTES = TILE_R * X_STRIDE,
    };
    typedef MatrixTile<M, INPUTS, OUTPUTS, TILE_N, TILE_K> Tile;
    enum : int { STAGE_BYTES = Tile::BYTES + PARTS * PART_BYTES };

    static __device__ __forceinline__ void load_rows(u8 *shared, const u8 *x, int first, int tile) {
        const u8 *const source = x + (long long)first * PADDED * 2 + tile * TILE_K * 2;
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            for_each_of<TILE_R, TILE_K / 8, THREADS>(threadIdx.x, [&](int row, int chunk) {
                const bool is_inside = ROWS % TILE_R == 0 || first + row < ROWS;
                const u8 *const place = source + ((long long)part * ROWS + row) * PADDED * 2 + chunk * 16;
                copy_16(shared + part * PART_BYTES + row * X_STRIDE + chunk * 16, is_inside ? place : x, is_inside ? 16 : 0);
            });
    }
};

template <class M, class E, int ROWS, int OUTPUTS, int INPUTS, int PARTS, int TILE_K, int MT, int RT, int WN, int WR, int WK,
          int STAGES, bool FOLD>
__device__ __forceinline__ void gemm(const u8 *x, const u8 *codes, const u8 *scales, const u8 *zeros, const float *factors,
                                     const float *bias, float *result) {
    typedef Gemm<M, ROWS, OUTPUTS, INPUTS, PARTS, TILE_K, MT, RT, WN, WR, WK> G;
    typedef typename G::Tile Tile;
    constexpr int AT_ONCE = MT >= 4 ? 1 : 2; /* of RT: so that four instructions in a row add to different sums */
    SHARED_MEMORY(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int wn = warp % WN, wr = warp / WN % WR, wk = warp / (WN * WR);
    const int first_row = blockIdx.x * G::TILE_R, first_output = blockIdx.y * G::TILE_N;
    const Decoder<M> decoder;
    float sums[RT / AT_ONCE][MT][AT_ONCE][4] = {};

    const auto load = [&](u8 *stage, int tile) {
        Tile::template load<G::THREADS>(stage, codes, scales, zeros, first_output, tile, threadIdx.x);
        G::load_rows(stage + Tile::BYTES, x, first_row, tile);
    };
    for_each_tile<STAGES, G::TILES, G::STAGE_BYTES>(memory, load, [&](const u8 *stage, int tile) {
        /* The row that this lane hands to ldmatrix: of matrix lane / 8, eight inputs of a block. */
        const u8 *const rows = stage + Tile::BYTES + (8 * RT * wr + lane % 8) * G::X_STRIDE + lane / 8 * 16;
#pragma unroll 1
        for (int block = wk; block < TILE_K / BLOCK_K; block += WK) {
            Fragments<M> fragments[MT];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                fragments[mt].template load<Tile, FOLD>(decoder, stage, first_output, 16 * (wn * MT + mt), tile, block);
#pragma unroll
            for (int rt = 0; rt < RT; rt += AT_ONCE) {
                u32 pairs[AT_ONCE][4], rest[AT_ONCE][4];
#pragma unroll
                for (int r = 0; r < AT_ONCE; r++) {
                    const u8 *const place = rows + 8 * (rt + r) * G::X_STRIDE + block * BLOCK_K * 2;
                    ldmatrix_x4(pairs[r], place);
                    if constexpr (PARTS == 2) ldmatrix_x4(rest[r], place + G::PART_BYTES);
                }
                multiply<PARTS == 2, M::GROUP != 0 && !FOLD>(sums[rt / AT_ONCE], fragments, pairs, rest);
            }
        }
    });
    store_sums<E, M, ROWS, OUTPUTS, WN, WR, WK>(sums, memory, first_row, first_output, scales, factors, bias, result);
}

}  // namespace pyc
