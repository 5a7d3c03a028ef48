/* Linear layers of many rows (GEMM) by the matrix instructions of warpgroups, which read activations, and weights of bf16,
 * in shared memory by themselves: y[r, n] = sum over k of x[r, k] w[n, k], + bias[n].
 *
 * A block has 64 WN outputs and TILE_R rows; a warpgroup multiplies 64 of these outputs by all of these rows. WK of them
 * share the inputs of a tile, 64 each, and SPLITS blocks the tiles; their sums are added in order (`add_splits`). STAGES
 * tiles of weights and of rounded activations (round_rows.cuh) are in shared memory: two are being multiplied, the others
 * are on their way, first weights before the launches before have ended. Codes become bf16 in registers, once for all
 * rows, while instructions before them run. Where scales multiply sums of a group, a group has sums of its own, which are
 * added when all of it has been multiplied.
 */
#pragma once
#include "dependent_launch.cuh"
#include "linear_sums.cuh"
#include "warpgroup_mma.cuh"

namespace pyc {

template <class M, int ROWS, int OUTPUTS, int INPUTS, int PARTS, int TILE_R, int WN, int WK> struct WarpgroupGemm {
    enum : int {
        OF_WARPGROUP = 64, /* inputs of a tile */
        TILE_K = OF_WARPGROUP * WK,
        TILE_N = WARPGROUP_ROWS * WN,
        THREADS = WARPGROUP * WN * WK,
        TILES = ceil_div(INPUTS, TILE_K),
        PADDED = round_up(INPUTS, OF_WARPGROUP),
        SLICE_BYTES = TILE_R * SWIZZLED_BYTES, /* of rows: 64 inputs of each */
        PART_BYTES = WK * SLICE_BYTES,
        WEIGHTS_AT = PARTS * PART_BYTES,
        WEIGHT_SLICE_BYTES = TILE_N * SWIZZLED_BYTES,
        IS_DENSE = (int)M::KIND == (int)BF16,
        ARE_WHOLE = INPUTS % TILE_K == 0, /* tiles */
    };
    typedef MatrixTile<M, INPUTS, OUTPUTS, TILE_N, TILE_K> Tile;
    enum : int {
        STAGE_BYTES = WEIGHTS_AT + (IS_DENSE ? WK * WEIGHT_SLICE_BYTES : round_up(Tile::BYTES, 8 * SWIZZLED_BYTES)),
    };
};

template <class M, class E, int ROWS, int OUTPUTS, int INPUTS, int PARTS, int TILE_R, int WN, int WK, int SPLITS, int STAGES, bool FOLD>
__device__ __forceinline__ void gemm_warpgroup(const u8 *x, const u8 *codes, const u8 *scales, const u8 *zeros,
                                               const float *factors, const float *bias, float *result, float *partial,
                                               u32 *arrivals) {
    typedef WarpgroupGemm<M, ROWS, OUTPUTS, INPUTS, PARTS, TILE_R, WN, WK> G;
    typedef typename G::Tile Tile;
    constexpr int AHEAD = STAGES - 2, BLOCKS = G::OF_WARPGROUP / BLOCK_K, SUMS = TILE_R / 2;
    constexpr int OF_SPLIT = ceil_div(G::TILES, SPLITS);
    constexpr bool HAS_SUMS_OF_GROUPS = M::GROUP != 0 && !FOLD;
    static_assert(STAGES >= (G::IS_DENSE ? 3 : 4), "some are being multiplied, others on their way");
    static_assert(!HAS_SUMS_OF_GROUPS || M::GROUP % BLOCK_K == 0, "a group is of whole blocks");
    SHARED_MEMORY(memory);
    const int warp = threadIdx.x / 32, wn = warp / 4 % WN, wk = warp / (4 * WN);
    const int first_row = blockIdx.x * TILE_R, first_output = blockIdx.y * G::TILE_N;
    const int begin = blockIdx.z * OF_SPLIT, end = SPLITS == 1 ? (int)G::TILES : min(begin + OF_SPLIT, (int)G::TILES);
    const Decoder<M> decoder;
    float sums[TILE_R / 8][1][1][4] = {};
    float(&all)[SUMS] = (float(&)[SUMS])sums;
    float of_group[HAS_SUMS_OF_GROUPS ? SUMS : 1] = {};

    const auto stage_of = [&](int tile) { return memory + tile % STAGES * G::STAGE_BYTES; };
    const auto copy_weights = [&](int tile) {
        if (tile >= end) return;
        u8 *const to = stage_of(tile) + G::WEIGHTS_AT;
        if constexpr (G::IS_DENSE)
#pragma unroll
            for (int slice = 0; slice < WK; slice++)
                load_swizzled<G::TILE_N, OUTPUTS, 2 * INPUTS, G::THREADS, G::ARE_WHOLE, M>(
                    to + slice * G::WEIGHT_SLICE_BYTES, codes, first_output, tile * WK + slice);
        else Tile::template load<G::THREADS>(to, codes, scales, zeros, first_output, tile, threadIdx.x);
    };
    const auto copy_rows = [&](int tile) {
        if (tile < end)
#pragma unroll
            for (int slice = 0; slice < PARTS * WK; slice++)
                load_swizzled<TILE_R, ROWS, 2 * G::PADDED, G::THREADS, G::ARE_WHOLE>(
                    stage_of(tile) + slice * G::SLICE_BYTES, x + (long long)(slice / WK) * ROWS * G::PADDED * 2, first_row,
                    tile * WK + slice % WK);
        commit_copies();
    };
    /* Rows of this warpgroup's inputs, and what rounding left of them. */
    const auto rows_of = [&](int tile, int part) { return rows_at(stage_of(tile) + part * G::PART_BYTES + wk * G::SLICE_BYTES); };
#pragma unroll 1
    for (int tile = begin; tile < begin + AHEAD; tile++) copy_weights(tile);
    wait_for_earlier_launches();
#pragma unroll 1
    for (int tile = begin; tile < begin + AHEAD; tile++) copy_rows(tile);
    if constexpr (G::IS_DENSE) {
#pragma unroll 1
        for (int tile = begin; tile < end; tile++) {
            wait_for_copies<AHEAD - 1>();
            show_copies_to_products();
            __syncthreads(); /* the tile is there, and all have multiplied the tile before the last */
            const u64 rows = rows_of(tile, 0), rest = rows_of(tile, PARTS - 1);
            const u64 outputs = rows_at(stage_of(tile) + G::WEIGHTS_AT + wk * G::WEIGHT_SLICE_BYTES +
                                        wn * WARPGROUP_ROWS * SWIZZLED_BYTES);
            begin_products();
#pragma unroll
            for (int k = 0; k < G::OF_WARPGROUP / 16; k++) {
                multiply_shared<TILE_R>(all, outputs + k * NEXT_INPUTS, rows + k * NEXT_INPUTS);
                if constexpr (PARTS == 2) multiply_shared<TILE_R>(all, outputs + k * NEXT_INPUTS, rest + k * NEXT_INPUTS);
            }
            commit_products();
            copy_weights(tile + AHEAD), copy_rows(tile + AHEAD);
            wait_for_products<1>();
        }
    } else {
        Fragments<M> fragments[BLOCKS]; /* of which one is multiplied while the next becomes bf16 */
        const auto decode = [&](int tile, int block) {
            fragments[block].template load<Tile, FOLD>(decoder, stage_of(tile) + G::WEIGHTS_AT, first_output,
                                                       16 * (warp % (4 * WN)), tile, wk * BLOCKS + block);
        };
        wait_for_copies<AHEAD - 1>();
        show_copies_to_products();
        __syncthreads(); /* the first tile is there */
        if (begin < end) decode(begin, 0);
#pragma unroll 1
        for (int tile = begin; tile < end; tile++) {
            wait_for_copies<AHEAD - 2>();
            show_copies_to_products();
            __syncthreads(); /* the next tile is there, and all have multiplied the tile before the last */
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                /* Where the block begins in what this warpgroup multiplies of its group: all of it, or 64 inputs. */
                constexpr int span = WK == 1 && M::GROUP ? (M::GROUP ? M::GROUP : 1) : smaller(G::OF_WARPGROUP, M::GROUP ? M::GROUP : 1);
                const int place = ((WK == 1 ? tile * BLOCKS : 0) + block) * BLOCK_K;
                float(&added)[SUMS] = HAS_SUMS_OF_GROUPS ? (float(&)[SUMS])of_group : all;
                const bool adds = !HAS_SUMS_OF_GROUPS || (place % span > 0 && !(block == 0 && tile == begin));
                begin_products();
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    const u64 rows = rows_of(tile, part) + 2 * block * NEXT_INPUTS;
                    multiply_registers<TILE_R>(added, fragments[block].first, rows, adds || part > 0);
                    multiply_registers<TILE_R>(added, fragments[block].second, rows + NEXT_INPUTS);
                }
                commit_products();
                wait_for_products<1>(); /* the registers of the block before are free */
                if (block == 0) copy_weights(tile + AHEAD), copy_rows(tile + AHEAD);
                if (block + 1 < BLOCKS) decode(tile, block + 1);
                else if (tile + 1 < end) decode(tile + 1, 0);
                if constexpr (HAS_SUMS_OF_GROUPS) {
                    if ((place + BLOCK_K) % span == 0 || (block + 1 == BLOCKS && tile + 1 == end)) {
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
    if constexpr (SPLITS > 1) {
        add_warps<WARPGROUP * WN, WK>(sums, memory);
        if (wk > 0 || !add_splits<SPLITS, WARPGROUP * WN>(all, memory, partial, arrivals)) return;
        store_sums<E, M, ROWS, OUTPUTS, 4 * WN, 1, 1>(sums, memory, first_row, first_output, scales, factors, bias, result);
    } else {
        store_sums<E, M, ROWS, OUTPUTS, 4 * WN, 1, WK>(sums, memory, first_row, first_output, scales, factors, bias, result);
    }
}

}  // namespace pyc
