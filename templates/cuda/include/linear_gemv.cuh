/* Linear layers of up to eight rows (GEMV): y[r, n] = sum over k of x[r, k] w[n, k], + bias[n], and what follows them
 * (gemv_epilogue.cuh).
 *
 * Bound by the bytes of w, of which each is read once; x comes from the caches. A block has 16 MT WM outputs; its warps
 * are WM x WK: WM have outputs of their own, WK divide K, a tile at a time in turn. A warp copies its own tiles, of
 * which STAGES - 1 are on their way while it multiplies one, so that warps wait for nobody; it loads activations a tile
 * ahead. Matrix instructions multiply 16 outputs by 8 rows: in memory-bound work the rows that are not there cost nothing.
 * x is two bf16 for F32, which errs by 2^-18 |x w| for a product; what is rounded to MXFP8 is one, exactly. In the end the
 * sums of WK warps are added in order.
 *
 * The first tiles are on their way before the launch that makes x has ended: weights are there from the start.
 */
#pragma once
#include "block_scales.cuh"
#include "byte_fragments.cuh"
#include "dependent_launch.cuh"
#include "gemv_epilogue.cuh"
#include "quantize_rows.cuh"

namespace pyc {

enum class Activations { F32, BF16, INT8, MXFP8 };

template <bool HAS_BLOCK_SCALES, class M, int INPUTS, int OUTPUTS, int OF_WARP, int TILE_K, int OF_BLOCK> struct GemvTile {
    typedef MatrixTile<M, INPUTS, OUTPUTS, OF_WARP, TILE_K, OF_BLOCK> Tile;
    enum : int { BLOCK_BYTES = 0 };
};
template <class M, int INPUTS, int OUTPUTS, int OF_WARP, int TILE_K, int OF_BLOCK>
struct GemvTile<true, M, INPUTS, OUTPUTS, OF_WARP, TILE_K, OF_BLOCK> {
    typedef TileOfBlockScales<M, INPUTS, OUTPUTS, OF_WARP, TILE_K, OF_BLOCK> Tile;
    enum : int { BLOCK_BYTES = Tile::BLOCK_BYTES };
};

template <class M, int OUTPUTS, int INPUTS, int TILE_K, int MT, int WM, int WK, bool HAS_BLOCK_SCALES> struct Gemv {
    enum : int {
        OF_WARP = 16 * MT,
        OF_BLOCK = OF_WARP * WM,
        THREADS = 32 * WM * WK,
        TILES = ceil_div(INPUTS, TILE_K),
        OF_SQUARES = OF_BLOCK < 32 ? (int)OF_BLOCK : 32, /* outputs whose squares are added up */
    };
    typedef GemvTile<HAS_BLOCK_SCALES, M, INPUTS, OUTPUTS, OF_WARP, TILE_K, OF_BLOCK> Scales;
    typedef typename Scales::Tile Tile;
};

/* A thread's activations of the block from input `k` of a row on, as pairs; zeros behind the row's end. */
template <class M, int INPUTS, int TILE_K>
__device__ __forceinline__ void load_activations(float (&values)[4][2], const float *row, int k, int t) {
    if constexpr (INPUTS % BLOCK_K == 0) {
        if (INPUTS % TILE_K == 0 || k < INPUTS) {
            if constexpr (M::DISTANCE == 0) {
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    const float2 loaded = *(const float2 *)(row + k + 8 * p + 2 * t);
                    values[p][0] = loaded.x, values[p][1] = loaded.y;
                }
            } else {
                const float4 low = *(const float4 *)(row + k + 8 * t), high = *(const float4 *)(row + k + 8 * t + 4);
                const float loaded[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
                for (int i = 0; i < 8; i++) values[i / 2][i % 2] = loaded[input_of(M::DISTANCE, 0, i / 2, i % 2)];
            }
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int input = k + input_of(M::DISTANCE, t, i / 2, i % 2);
        values[i / 2][i % 2] = input < INPUTS ? row[input] : 0;
    }
}

/* A thread's activations of a tile as matrix instructions take them, made of f32 that it has loaded. */
template <Activations X, int BLOCKS> struct TileActivations {
    u32 pairs[BLOCKS][1][4], rest[BLOCKS][1][4]; /* `rest` of F32 */

    __device__ __forceinline__ void make(float (&values)[BLOCKS][4][2]) {
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            if constexpr (X == Activations::MXFP8) round_to_mxfp8(values[block]);
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const float low = values[block][p][0], high = values[block][p][1];
                pairs[block][0][p] = pack_bf16(low, high);
                if constexpr (X == Activations::F32) rest[block][0][p] = remainder_pair(low, high, pairs[block][0][p]);
            }
        }
    }

    /* sums += weights x, of a tile. Scales multiply what a group adds up to, or as many blocks of it as the tile has. */
    template <class Tile, bool FOLD, class M, int MT>
    __device__ __forceinline__ void multiply(float (&sums)[MT][1][4], const Decoder<M> &decoder, const u8 *shared, int first,
                                             int tile) const {
        constexpr bool IS_SCALED = M::GROUP != 0 && !FOLD;
        constexpr int GROUP_BLOCKS = M::GROUP / BLOCK_K;
        constexpr int AT_ONCE = !IS_SCALED || GROUP_BLOCKS == 0 ? 1
                                : GROUP_BLOCKS % BLOCKS == 0    ? BLOCKS
                                : BLOCKS % GROUP_BLOCKS == 0    ? GROUP_BLOCKS
                                                                : 1;
        float of_group[MT][1][4];
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            Fragments<M> fragments[MT];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                fragments[mt].template load<Tile, FOLD, IS_SCALED && (int)M::KIND == (int)INT4>(decoder, shared, first, 16 * mt,
                                                                                               tile, block);
            if constexpr (IS_SCALED) {
                multiply_block<X == Activations::F32>(of_group, fragments, pairs[block], rest[block], block % AT_ONCE == 0);
                if (block % AT_ONCE == AT_ONCE - 1) add_group(sums, fragments, of_group);
            } else {
                multiply_block<X == Activations::F32>(sums, fragments, pairs[block], rest[block], false);
            }
        }
    }
};

/* Rounded to int8, by blocks, of which each of the four threads of a row makes the scale of one. */
template <int BLOCKS> struct TileActivations<Activations::INT8, BLOCKS> {
    static_assert(BLOCKS == 4, "a block for each of four threads");
    u32 bytes[BLOCKS][2];
    float scale; /* of block t of row g */

    __device__ __forceinline__ void make(float (&values)[BLOCKS][4][2]) {
        const int t = threadIdx.x % 4;
        u32 largest[BLOCKS];
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) largest[block] = largest_of_thread(values[block]);
        /* A thread gives two of four to that two further, and one of two to its neighbour. */
#pragma unroll
        for (int by = 2; by > 0; by /= 2)
#pragma unroll
            for (int i = 0; i < by; i++) {
                const u32 given = t & by ? largest[i] : largest[i + by], kept = t & by ? largest[i + by] : largest[i];
                largest[i] = max(kept, __shfl_xor_sync(0xffffffffu, given, by));
            }
        float own_inverse;
        scale = scale_of_block(largest[0], own_inverse);
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            const float(&x)[4][2] = values[block];
            const float inverse = __shfl_sync(0xffffffffu, own_inverse, block, 4);
            /* The first four and the last four inputs, of which `input_of` pairs each with that after the next. */
            bytes[block][0] = rounded_bytes<true>(x[0][0], x[1][0], x[0][1], x[1][1], inverse);
            bytes[block][1] = rounded_bytes<true>(x[2][0], x[3][0], x[2][1], x[3][1], inverse);
        }
    }

    template <class Tile, bool FOLD, class M, int MT>
    __device__ __forceinline__ void multiply(float (&sums)[MT][1][4], const Decoder<M> &, const u8 *shared, int first,
                                             int tile) const {
        const int t = threadIdx.x % 4;
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            /* A thread has sums of rows 2 t and 2 t + 1, whose scales are those of threads of these rows. */
            const float scale0 = __shfl_sync(0xffffffffu, scale, 8 * t + block);
            const float scale1 = __shfl_sync(0xffffffffu, scale, 8 * t + 4 + block);
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                ByteFragments<M> weights;
                weights.template load<Tile>(shared, first, 16 * mt, tile, block);
                weights.multiply(sums[mt][0], bytes[block][0], bytes[block][1], scale0, scale1);
            }
        }
    }
};

template <class M, int ROWS, int OUTPUTS, int INPUTS, int TILE_K, int MT, int WM, int WK, int STAGES, Activations X,
          bool FOLD, bool HAS_BLOCK_SCALES, class Epilogue>
__device__ __forceinline__ void gemv(const float *x, const u8 *codes, const u8 *scales, const u8 *zeros,
                                     const Epilogue &epilogue) {
    typedef Gemv<M, OUTPUTS, INPUTS, TILE_K, MT, WM, WK, HAS_BLOCK_SCALES> G;
    typedef typename G::Tile Tile;
    constexpr int BLOCKS = TILE_K / BLOCK_K;
    /* Whether activations are loaded a tile ahead: a table and what two bf16 take leave no registers for them. */
    constexpr bool IS_AHEAD = !(X == Activations::F32 && M::IS_LOOKUP);
    SHARED_MEMORY(memory);
    __shared__ float kept[ROWS][G::THREADS / 32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int wm = warp % WM, wk = warp / WM;
    const int first = blockIdx.x * G::OF_BLOCK + wm * G::OF_WARP;
    u8 *const stages = memory + G::Scales::BLOCK_BYTES + warp * STAGES * Tile::BYTES;
    const Decoder<M> decoder;
    float sums[MT][1][4] = {};
    float values[BLOCKS][4][2] = {}; /* zeros in lanes of rows that are not there */

    const auto copy = [&](int tile, int stage) {
        if (tile < G::TILES) Tile::template load<32>(stages + stage, codes, scales, zeros, first, tile, lane);
        commit_copies();
    };
    const auto load = [&](int tile) {
        if (g >= ROWS || tile >= G::TILES) return;
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
            load_activations<M, INPUTS, TILE_K>(values[block], x + (long long)g * INPUTS, tile * TILE_K + block * BLOCK_K, t);
    };
    if constexpr (HAS_BLOCK_SCALES) {
        Tile::template load_scales<G::THREADS>(scales, zeros);
        commit_copies();
    }
#pragma unroll
    for (int number = 0; number < STAGES - 1; number++) copy(wk + number * WK, number * Tile::BYTES);
    wait_for_earlier_launches();
    if constexpr (IS_AHEAD) load(wk);
    epilogue.add_squares(kept);
    if constexpr (HAS_BLOCK_SCALES) {
        wait_for_copies<STAGES - 1>();
        __syncthreads(); /* scales of all rows are there */
    }
    /* Where the tile at hand begins, and the one before, in whose place is the next to copy. */
    int stage = 0, stage_before = (STAGES - 1) * Tile::BYTES;
#pragma unroll 1
    for (int tile = wk; tile < G::TILES; tile += WK) {
        TileActivations<X, BLOCKS> activations;
        if constexpr (!IS_AHEAD) load(tile);
        activations.make(values);
        if constexpr (IS_AHEAD) load(tile + WK); /* they come while this tile is multiplied */
        if (tile + 2 * WK >= G::TILES) let_later_launches_begin(); /* what they copy comes behind the last tiles */
        wait_for_copies<STAGES - 2>();
        __syncwarp();
        copy(tile + (STAGES - 1) * WK, stage_before);
        activations.template multiply<Tile, FOLD>(sums, decoder, stages + stage, first, tile);
        stage_before = stage;
        stage = stage == (STAGES - 1) * Tile::BYTES ? 0 : stage + Tile::BYTES;
    }
    wait_for_copies<0>();
    __syncthreads();

    /* [WK, 8 rows, outputs of the block] */
    float *const shared_sums = (float *)memory;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 2 * t + i % 2, output = wm * G::OF_WARP + 16 * mt + g + i / 2 * 8;
            shared_sums[(wk * 8 + row) * G::OF_BLOCK + output] = sums[mt][0][i];
        }
    __syncthreads();
#pragma unroll 1
    for (int first_index = 0; first_index < ROWS * G::OF_BLOCK; first_index += G::THREADS) {
        const int index = first_index + (int)threadIdx.x;
        const int row = index / G::OF_BLOCK, output = blockIdx.x * G::OF_BLOCK + index % G::OF_BLOCK;
        const bool is_there = index < ROWS * G::OF_BLOCK && output < OUTPUTS;
        float sum = 0;
        if (is_there) {
            sum = shared_sums[index];
#pragma unroll
            for (int other = 1; other < WK; other++) sum += shared_sums[other * 8 * G::OF_BLOCK + index];
        }
        epilogue.template finish<8, G::OF_SQUARES>(sum, row, output, is_there, kept);
    }
}

}  // namespace pyc
