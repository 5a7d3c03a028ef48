/* Linear layers of up to eight rows (GEMV): y[r, n] = sum over k of x[r, k] w[n, k], + bias[n].
 *
 * Bound by the bytes of w, of which each is read once; x comes from the caches. A block has 16 MT WM outputs; its warps
 * are WM x WK: WM have outputs of their own, WK divide K, a tile at a time in turn. A warp copies its own tiles, of
 * which STAGES - 1 are on their way while it multiplies one, so that warps wait for nobody. Matrix instructions multiply
 * 16 outputs by 8 rows: in memory-bound work the rows that are not there cost nothing. x is two bf16 for F32, which
 * errs by 2^-18 |x w| for a product; what is rounded to MXFP8 is one, exactly. In the end the sums of WK warps are added
 * in order.
 *
 * The first tiles are on their way before the launch that makes x has ended: weights are there from the start.
 */
#pragma once
#include "byte_fragments.cuh"
#include "dependent_launch.cuh"
#include "quantize_rows.cuh"

namespace pyc {

enum class Activations { F32, BF16, INT8, MXFP8 };

template <class M, int OUTPUTS, int INPUTS, int TILE_K, int MT, int WM, int WK> struct Gemv {
    enum : int {
        OF_WARP = 16 * MT,
        OF_BLOCK = OF_WARP * WM,
        THREADS = 32 * WM * WK,
        TILES = ceil_div(INPUTS, TILE_K),
    };
    typedef MatrixTile<M, INPUTS, OUTPUTS, OF_WARP, TILE_K, OF_BLOCK> Tile;
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

/* sums += weights x for a block of 32 inputs, whose activations `x` are rounded to int8 here. */
template <class Tile, class M, int MT>
__device__ __forceinline__ void multiply_integers(float (&sums)[MT][1][4], const float (&x)[4][2], const u8 *shared,
                                                  int first, int tile, int block) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    float inverse;
    const float scale = scale_of_block(largest_of_four_threads(x), inverse);
    /* The first four and the last four inputs, of which `input_of` pairs each with that after the next. */
    const u32 x0 = rounded_bytes(x[0][0], x[1][0], x[0][1], x[1][1], inverse);
    const u32 x1 = rounded_bytes(x[2][0], x[3][0], x[2][1], x[3][1], inverse);
    /* A thread has sums of rows 2 t and 2 t + 1, whose scales are those of threads of these rows. */
    const float scale0 = __shfl_sync(0xffffffffu, scale, 8 * t), scale1 = __shfl_sync(0xffffffffu, scale, 8 * t + 4);
#pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        ByteFragments<M> weights;
        weights.template load<Tile>(shared, first, 16 * mt, tile, block);
        weights.multiply(sums[mt][0], x0, x1, scale0, scale1);
    }
}

template <class M, int ROWS, int OUTPUTS, int INPUTS, int TILE_K, int MT, int WM, int WK, int STAGES, Activations X,
          bool FOLD>
__device__ __forceinline__ void gemv(const float *x, const u8 *codes, const u8 *scales, const u8 *zeros, const float *factors,
                                     const float *bias, float *result) {
    typedef Gemv<M, OUTPUTS, INPUTS, TILE_K, MT, WM, WK> G;
    typedef typename G::Tile Tile;
    constexpr int BLOCKS = TILE_K / BLOCK_K;
    constexpr bool SPLIT = X == Activations::F32;
    SHARED_MEMORY(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int wm = warp % WM, wk = warp / WM;
    const int first = blockIdx.x * G::OF_BLOCK + wm * G::OF_WARP;
    u8 *const stages = memory + warp * STAGES * Tile::BYTES;
    const Decoder<M> decoder;
    float sums[MT][1][4] = {};
    float values[BLOCKS][4][2] = {}; /* zeros in lanes of rows that are not there */

    const auto load = [&](int number) {
        const int tile = wk + number * WK;
        if (tile < G::TILES)
            Tile::template load<32>(stages + number % STAGES * Tile::BYTES, codes, scales, zeros, first, tile, lane);
        commit_copies();
    };
#pragma unroll 1
    for (int number = 0; number < STAGES - 1; number++) load(number);
    wait_for_earlier_launches();
#pragma unroll 1
    for (int number = 0, tile = wk; tile < G::TILES; number++, tile += WK) {
        if (g < ROWS)
#pragma unroll
            for (int block = 0; block < BLOCKS; block++)
                load_activations<M, INPUTS, TILE_K>(values[block], x + (long long)g * INPUTS,
                                                    tile * TILE_K + block * BLOCK_K, t);
        wait_for_copies<STAGES - 2>();
        __syncwarp();
        load(number + STAGES - 1);
        const u8 *const shared = stages + number % STAGES * Tile::BYTES;
#pragma unroll
        for (int block = 0; block < BLOCKS; block++) {
            if constexpr (X == Activations::INT8) {
                multiply_integers<Tile, M>(sums, values[block], shared, first, tile, block);
            } else {
                if constexpr (X == Activations::MXFP8) round_to_mxfp8(values[block]);
                u32 pairs[1][4], rest[1][4];
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    const float low = values[block][p][0], high = values[block][p][1];
                    pairs[0][p] = pack_bf16(low, high);
                    if constexpr (SPLIT) rest[0][p] = remainder_pair(low, high, pairs[0][p]);
                }
                Fragments<M> fragments[MT];
#pragma unroll
                for (int mt = 0; mt < MT; mt++) fragments[mt].template load<Tile, FOLD>(decoder, shared, first, 16 * mt, tile, block);
                multiply<SPLIT, M::GROUP != 0 && !FOLD>(sums, fragments, pairs, rest);
            }
        }
    }
    let_later_launches_begin();
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
    for (int index = threadIdx.x; index < ROWS * G::OF_BLOCK; index += G::THREADS) {
        const int row = index / G::OF_BLOCK, output = blockIdx.x * G::OF_BLOCK + index % G::OF_BLOCK;
        if (output >= OUTPUTS) continue;
        float sum = shared_sums[index];
#pragma unroll
        for (int other = 1; other < WK; other++) sum += shared_sums[other * 8 * G::OF_BLOCK + index];
        sum *= row_scale<M>(scales, factors, output);
        if (bias) sum += bias[output];
        result[(long long)row * OUTPUTS + output] = sum;
    }
}

}  // namespace pyc
