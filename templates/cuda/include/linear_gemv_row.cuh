/* Linear layers of one row whose weights have no scales of groups: y[n] = sum over k of x[k] w[n, k], + bias[n], and what follows
 * them (gemv_epilogue.cuh).
 *
 * Bound by the bytes of w, of which each is read once. A block has a multiprocessor. It goes from 16 MT outputs to the next, and its
 * warps divide K, a tile at a time in turn. A warp copies its own tiles, of which STAGES - 1 are on their way while it multiplies
 * one, those of the next outputs behind those of the last: memory never waits for sums. x becomes bf16 once, in shared memory. The
 * sums of all warps are added in order.
 *
 * The first tiles are on their way before the launch that makes x has ended: weights are there from the start.
 */
#pragma once
#include "linear_gemv.cuh"

namespace pyc {

template <class M, int OUTPUTS, int INPUTS, int TILE_K, int MT, int WARPS, int STAGES> struct GemvRow {
    enum : int {
        OF_GROUP = 16 * MT,
        GROUPS = ceil_div(OUTPUTS, OF_GROUP),
        TILES = ceil_div(INPUTS, TILE_K),
        BLOCKS = TILE_K / BLOCK_K,
        OF_SQUARES = OF_GROUP < 32 ? (int)OF_GROUP : 32, /* outputs whose squares are added up */
        SUMS_AT = 2 * TILES * TILE_K,                    /* behind the row; f32 [2, WARPS, OF_GROUP] */
        STAGES_AT = SUMS_AT + 2 * WARPS * OF_GROUP * 4,
    };
    static_assert(WARPS <= TILES, "a tile for each warp");
    typedef MatrixTile<M, INPUTS, OUTPUTS, OF_GROUP, TILE_K, OF_GROUP> Tile;

    /* Round the row, to where a thread t of a block of 32 inputs finds its eight together; all threads do it. */
    static __device__ __forceinline__ void make_row(u8 *memory, const float *x) {
#pragma unroll
        for (int first = 0; first < TILES * TILE_K / 8; first += 32 * WARPS) {
            const int index = first + (int)threadIdx.x;
            if (TILES * TILE_K / 8 % (32 * WARPS) != 0 && index >= TILES * TILE_K / 8) continue;
            float values[4][2] = {};
            load_activations<M, INPUTS, TILE_K>(values, x, index / 4 * BLOCK_K, index % 4);
            uint4 pairs;
            pairs.x = pack_bf16(values[0][0], values[0][1]), pairs.y = pack_bf16(values[1][0], values[1][1]);
            pairs.z = pack_bf16(values[2][0], values[2][1]), pairs.w = pack_bf16(values[3][0], values[3][1]);
            *(uint4 *)(memory + 16 * index) = pairs;
        }
    }

    /* sums += weights x, of a tile. */
    static __device__ __forceinline__ void multiply(float (&sums)[MT][1][4], const Decoder<M> &decoder, const u8 *memory,
                                                    const u8 *shared, int first, int tile) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            uint4 loaded = make_uint4(0, 0, 0, 0); /* in lanes of rows that are not there */
            if (lane < 4) loaded = *(const uint4 *)(memory + ((tile * BLOCKS + block) * 4 + lane) * 16);
            const u32 pairs[1][4] = {{loaded.x, loaded.y, loaded.z, loaded.w}};
            Fragments<M> fragments[MT];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                fragments[mt].template load<Tile, false>(decoder, shared, first, 16 * mt, tile, block);
            multiply_block<false>(sums, fragments, pairs, pairs, false);
        }
    }
};

template <class M, int OUTPUTS, int INPUTS, int TILE_K, int MT, int WARPS, int STAGES, class Epilogue>
__device__ __forceinline__ void gemv_row(const float *x, const u8 *codes, const u8 *scales, const u8 *zeros,
                                         const Epilogue &epilogue) {
    typedef GemvRow<M, OUTPUTS, INPUTS, TILE_K, MT, WARPS, STAGES> G;
    typedef typename G::Tile Tile;
    static_assert(M::GROUP == 0, "scales of rows at most");
    SHARED_MEMORY(memory);
    __shared__ float kept[1][WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u8 *const stages = memory + G::STAGES_AT + warp * STAGES * Tile::BYTES;
    const Decoder<M> decoder;
    int copied_group = blockIdx.x, copied_tile = warp;
    const auto copy_next = [&](int stage) {
        if (copied_group < G::GROUPS)
            Tile::template load<32>(stages + stage, codes, scales, zeros, copied_group * G::OF_GROUP, copied_tile, lane);
        commit_copies();
        copied_tile += WARPS;
        if (copied_tile >= G::TILES) copied_tile = warp, copied_group += gridDim.x;
    };
#pragma unroll
    for (int number = 0; number < STAGES - 1; number++) copy_next(number * Tile::BYTES);
    wait_for_earlier_launches();
    let_later_launches_begin(); /* all blocks have a multiprocessor by now, which others would have to share */
    epilogue.add_squares(kept);
    G::make_row(memory, x);
    __syncthreads(); /* the row is there */
    /* Where the tile at hand begins, and the one before, in whose place is the next to copy. */
    int stage = 0, stage_before = (STAGES - 1) * Tile::BYTES;
    int number = 0;
#pragma unroll 1
    for (int group = blockIdx.x; group < G::GROUPS; group += gridDim.x, number++) {
        float sums[MT][1][4] = {};
        const int first = group * G::OF_GROUP;
#pragma unroll 1
        for (int tile = warp; tile < G::TILES; tile += WARPS) {
            wait_for_copies<STAGES - 2>();
            __syncwarp();
            copy_next(stage_before);
            G::multiply(sums, decoder, memory, stages + stage, first, tile);
            stage_before = stage;
            stage = stage == (STAGES - 1) * Tile::BYTES ? 0 : stage + Tile::BYTES;
        }
        float *const shared_sums = (float *)(memory + G::SUMS_AT) + number % 2 * WARPS * G::OF_GROUP;
        if (lane % 4 == 0) /* row 0 */
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    shared_sums[warp * G::OF_GROUP + 16 * mt + lane / 4 + 8 * half] = sums[mt][0][2 * half];
        __syncthreads(); /* the sums of all warps are there, and nobody needs those before the last */
        if (warp != number % WARPS) continue;
#pragma unroll
        for (int from = 0; from < G::OF_GROUP; from += 32) {
            const int output = first + from + lane;
            const bool is_there = from + lane < G::OF_GROUP && (OUTPUTS % G::OF_GROUP == 0 || output < OUTPUTS);
            float sum = 0;
            if (is_there) {
#pragma unroll
                for (int other = 0; other < WARPS; other++) sum += shared_sums[other * G::OF_GROUP + from + lane];
            }
            epilogue.template finish<8, G::OF_SQUARES>(sum, 0, output, is_there, kept);
        }
    }
    wait_for_copies<0>();
}

}  // namespace pyc
