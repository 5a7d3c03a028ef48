/* Linear layers of many rows (GEMM) by the matrix instructions of warpgroups, which read activations, and weights of bf16,
 * in shared memory by themselves: y[r, n] = sum over k of x[r, k] w[n, k], + bias[n].
 *
 * A block has 64 WARPGROUPS outputs and TILE_R rows; a warpgroup multiplies 64 outputs by all of these rows. STAGES tiles
 * of 64 inputs, of weights and of rounded activations (round_rows.cuh), are in shared memory: two are being multiplied,
 * the others are on their way. Codes become bf16 in registers, once for all rows, while instructions before them run.
 * Where scales multiply sums of a group, a group has sums of its own, which are added when all of it has been multiplied.
 * First weights are on their way before the launches before have ended.
 */
#pragma once
#include "dependent_launch.cuh"
#include "linear_sums.cuh"
#include "warpgroup_mma.cuh"

namespace pyc {

template <class M, int ROWS, int OUTPUTS, int INPUTS, int PARTS, int TILE_R, int WARPGROUPS> struct WarpgroupGemm {
    enum : int {
        TILE_K = 64,
        TILE_N = WARPGROUP_ROWS * WARPGROUPS,
        THREADS = WARPGROUP * WARPGROUPS,
        TILES = ceil_div(INPUTS, TILE_K),
        PADDED = TILES * TILE_K,
        PART_BYTES = TILE_R * SWIZZLED_BYTES,
        WEIGHTS_AT = PARTS * PART_BYTES,
        IS_DENSE = (int)M::KIND == (int)BF16,
    };
    typedef MatrixTile<M, INPUTS, OUTPUTS, TILE_N, TILE_K> Tile;
    enum : int {
        STAGE_BYTES = WEIGHTS_AT + (IS_DENSE ? TILE_N * SWIZZLED_BYTES : round_up(Tile::BYTES, 8 * SWIZZLED_BYTES)),
    };
};

template <class M, int ROWS, int OUTPUTS, int INPUTS, int PARTS, int TILE_R, int WARPGROUPS, int STAGES, bool FOLD>
__device__ __forceinline__ void gemm_warpgroup(const u8 *x, const u8 *codes, const u8 *scales, const u8 *zeros,
                                               const float *factors, const float *bias, float *result) {
    typedef WarpgroupGemm<M, ROWS, OUTPUTS, INPUTS, PARTS, TILE_R, WARPGROUPS> G;
    typedef typename G::Tile Tile;
    constexpr int AHEAD = STAGES - 2, BLOCKS = G::TILE_K / BLOCK_K, SUMS = TILE_R / 2;
    constexpr bool HAS_SUMS_OF_GROUPS = M::GROUP != 0 && !FOLD;
    static_assert(STAGES >= (G::IS_DENSE ? 3 : 4), "some are being multiplied, others on their way");
    static_assert(!HAS_SUMS_OF_GROUPS || M::GROUP % BLOCK_K == 0, "a group is of whole blocks");
    SHARED_MEMORY(memory);
    const int warp = threadIdx.x / 32, warpgroup = warp / 4;
    const int first_row = blockIdx.x * TILE_R, first_output = blockIdx.y * G::TILE_N;
    const Decoder<M> decoder;
    float sums[TILE_R / 8][1][1][4] = {};
    float(&all)[SUMS] = (float(&)[SUMS])sums;
    float of_group[HAS_SUMS_OF_GROUPS ? SUMS : 1] = {};

    const auto stage_of = [&](int tile) { return memory + tile % STAGES * G::STAGE_BYTES; };
    const auto copy_weights = [&](int tile) {
        if (tile >= G::TILES) return;
        u8 *const to = stage_of(tile) + G::WEIGHTS_AT;
        if constexpr (G::IS_DENSE) load_swizzled<G::TILE_N, OUTPUTS, 2 * INPUTS, G::THREADS>(to, codes, first_output, tile);
        else Tile::template load<G::THREADS>(to, codes, scales, zeros, first_output, tile, threadIdx.x);
    };
    const auto copy_rows = [&](int tile) {
        if (tile < G::TILES)
#pragma unroll
            for (int part = 0; part < PARTS; part++)
                load_swizzled<TILE_R, ROWS, 2 * G::PADDED, G::THREADS>(
                    stage_of(tile) + part * G::PART_BYTES, x + (long long)part * ROWS * G::PADDED * 2, first_row, tile);
        commit_copies();
    };
    const auto copy = [&](int tile) { copy_weights(tile), copy_rows(tile); };
#pragma unroll 1
    for (int tile = 0; tile < AHEAD; tile++) copy_weights(tile);
    wait_for_earlier_launches();
#pragma unroll 1
    for (int tile = 0; tile < AHEAD; tile++) copy_rows(tile);
    if constexpr (G::IS_DENSE) {
#pragma unroll 1
        for (int tile = 0; tile < G::TILES; tile++) {
            wait_for_copies<AHEAD - 1>();
            show_copies_to_products();
            __syncthreads(); /* the tile is there, and all have multiplied the tile before the last */
            const u8 *const stage = stage_of(tile);
            const u64 rows = rows_at(stage), rest = rows_at(stage + (PARTS - 1) * G::PART_BYTES);
            const u64 outputs = rows_at(stage + G::WEIGHTS_AT + warpgroup * WARPGROUP_ROWS * SWIZZLED_BYTES);
            begin_products();
#pragma unroll
            for (int k = 0; k < G::TILE_K / 16; k++) {
                multiply_shared<TILE_R>(all, outputs + k * NEXT_INPUTS, rows + k * NEXT_INPUTS);
                if constexpr (PARTS == 2) multiply_shared<TILE_R>(all, outputs + k * NEXT_INPUTS, rest + k * NEXT_INPUTS);
            }
            commit_products();
            copy(tile + AHEAD);
            wait_for_products<1>();
        }
    } else {
        Fragments<M> fragments[BLOCKS]; /* of which one is multiplied while the next becomes bf16 */
        const auto decode = [&](int tile, int block) {
            fragments[block].template load<Tile, FOLD>(decoder, stage_of(tile) + G::WEIGHTS_AT, first_output, 16 * warp, tile, block);
        };
        wait_for_copies<AHEAD - 1>();
        show_copies_to_products();
        __syncthreads(); /* the first tile is there */
        decode(0, 0);
#pragma unroll 1
        for (int tile = 0; tile < G::TILES; tile++) {
            wait_for_copies<AHEAD - 2>();
            show_copies_to_products();
            __syncthreads(); /* the next tile is there, and all have multiplied the tile before the last */
            const u8 *const stage = stage_of(tile);
            const u64 rows = rows_at(stage), rest = rows_at(stage + (PARTS - 1) * G::PART_BYTES);
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                float(&added)[SUMS] = HAS_SUMS_OF_GROUPS ? (float(&)[SUMS])of_group : all;
                const bool adds = !HAS_SUMS_OF_GROUPS || (tile * BLOCKS + block) * BLOCK_K % (M::GROUP ? M::GROUP : 1) > 0;
                begin_products();
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    const u64 place = (part ? rest : rows) + 2 * block * NEXT_INPUTS;
                    multiply_registers<TILE_R>(added, fragments[block].first, place, adds || part > 0);
                    multiply_registers<TILE_R>(added, fragments[block].second, place + NEXT_INPUTS);
                }
                commit_products();
                wait_for_products<1>(); /* the registers of the block before are free */
                if (block == 0) copy(tile + AHEAD);
                if (block + 1 < BLOCKS) decode(tile, block + 1);
                else if (tile + 1 < G::TILES) decode(tile + 1, 0);
                if constexpr (HAS_SUMS_OF_GROUPS) {
                    const int behind = (tile * BLOCKS + block + 1) * BLOCK_K;
                    if (behind % M::GROUP == 0 || behind == G::PADDED) {
                        wait_for_products<0>();
                        keep_in_place(of_group);
#pragma unroll
                        for (int i = 0; i < SUMS; i++) all[i] += fragments[block].scales[i % 4 / 2] * of_group[i];
                    }
                }
            }
        }
    }
    let_later_launches_begin();
    wait_for_products<0>();
    keep_in_place(all);
    wait_for_copies<0>();
    store_sums<M, ROWS, OUTPUTS, 4 * WARPGROUPS, 1, 1>(sums, memory, first_row, first_output, scales, factors, bias, result);
}

}  // namespace pyc
