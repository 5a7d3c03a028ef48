/* Linear layers of many rows over codes of integers, with activations in int8: y[r, n] = sum over blocks b of 32 inputs
 * of xs[b, r] ws[n, b] (sum over k of q[r, k] c[n, k]), + bias[n].
 *
 * As linear_gemm.cuh, but a block of inputs is one matrix instruction, whose sums are exact, and what makes numbers of
 * codes is a few operations for four of them. Bound by the instructions that multiply the sums of a block by its scales.
 */
#pragma once
#include "linear_sums.cuh"
#include "matrix_tiles.cuh"

namespace pyc {

template <class M, int ROWS, int OUTPUTS, int INPUTS, int TILE_K, int MT, int RT, int WN, int WR, int WK> struct GemmInt8 {
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

/* Bytes below 128 less those of `less`, at most 128, as bytes with signs. */
__device__ __forceinline__ u32 signed_bytes(u32 bytes, u32 less) { return ((bytes | 0x80808080u) - less) ^ 0x80808080u; }

/* Eight codes in shared memory as bytes with signs; `less` is what is taken from each. */
template <class M>
__device__ __forceinline__ void load_integers(const Decoder<M> &decoder, const u8 *codes, u32 less, u32 &first,
                                              u32 &second) {
    if constexpr (M::KIND == INT8) {
        const uint2 loaded = *(const uint2 *)codes;
        first = loaded.x ^ 0x80808080u, second = loaded.y ^ 0x80808080u;
    } else if constexpr (M::KIND == INT4) {
        const u32 loaded = *(const u32 *)codes;
        first = signed_bytes(loaded & 0x0f0f0f0fu, less), second = signed_bytes(loaded >> 4 & 0x0f0f0f0fu, less);
    } else {
        decoder.entries_of(*(const u32 *)codes, first, second);
        first = signed_bytes(first, less), second = signed_bytes(second, less);
    }
}

template <class M, int ROWS, int OUTPUTS, int INPUTS, int TILE_K, int MT, int RT, int WN, int WR, int WK, int STAGES>
__device__ __forceinline__ void gemm_int8(const u8 *x, const float *x_scales, const u8 *codes, const u8 *scales,
                                          const u8 *zeros, const float *factors, const float *bias, float *result) {
    typedef GemmInt8<M, ROWS, OUTPUTS, INPUTS, TILE_K, MT, RT, WN, WR, WK> G;
    typedef typename G::Tile Tile;
    SHARED_MEMORY(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int wn = warp % WN, wr = warp / WN % WR, wk = warp / (WN * WR);
    const int first_row = blockIdx.x * G::TILE_R, first_output = blockIdx.y * G::TILE_N;
    const Decoder<M> decoder;
    float sums[1][MT][RT][4] = {};

    const auto load = [&](int tile) {
        if (tile < G::TILES) {
            u8 *const stage = memory + tile % STAGES * G::STAGE_BYTES;
            Tile::template load<G::THREADS>(stage, codes, scales, zeros, first_output, tile, threadIdx.x);
            G::load_rows(stage + Tile::BYTES, x, x_scales, first_row, tile);
        }
        commit_copies();
    };
#pragma unroll 1
    for (int tile = 0; tile < STAGES - 1; tile++) load(tile);
#pragma unroll 1
    for (int tile = 0; tile < G::TILES; tile++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        load(tile + STAGES - 1);
        const u8 *const stage = memory + tile % STAGES * G::STAGE_BYTES, *const rows = stage + Tile::BYTES;
        /* The row that this lane hands to ldmatrix: matrices are the halves of a block of eight rows, and of eight more. */
        const u8 *const row = rows + (8 * RT * wr + lane / 16 * 8 + lane % 8) * G::X_STRIDE + lane / 8 % 2 * 16;
#pragma unroll 1
        for (int block = wk; block < G::BLOCKS; block += WK) {
            u32 weights[MT][4];
            float of_outputs[MT][2];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int at = 16 * (wn * MT + mt) + g + 8 * half;
                    u32 bits = 0, less = M::KIND == INT4 ? 0x08080808u : (u32)-M::LEAST * 0x01010101u;
                    if constexpr (M::GROUP != 0) {
                        const int group = block * BLOCK_K / M::GROUP;
                        bits = Tile::scale_bits(stage, first_output, at, tile, group);
                        of_outputs[mt][half] = scale_of<M>(bits);
                        if constexpr (M::HAS_ZEROS) less = Tile::zero_of(stage, first_output, at, tile, group) * 0x01010101u;
                        if constexpr (M::SHIFT != 0) less -= (bits & 1) * (u32)M::SHIFT * 0x01010101u;
                    }
                    load_integers<M>(decoder, stage + at * Tile::STRIDE + (block * BLOCK_K + 8 * t) * M::BITS / 8, less,
                                     weights[mt][half], weights[mt][half + 2]);
                }
#pragma unroll
            for (int rt = 0; rt < RT; rt += 2) {
                u32 pair[4];
                ldmatrix_x4(pair, row + 8 * rt * G::X_STRIDE + block * BLOCK_K);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float2 of_rows = *(const float2 *)(rows + G::X_BYTES +
                                                             (block * G::TILE_R + 8 * (RT * wr + rt + r) + 2 * t) * 4);
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        int products[4];
                        mma_integer(products, weights[mt], pair[2 * r], pair[2 * r + 1]);
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            float scale = i % 2 ? of_rows.y : of_rows.x;
                            if constexpr (M::GROUP != 0) scale *= of_outputs[mt][i / 2];
                            sums[0][mt][rt + r][i] += scale * mma_integer_sum(products[i]);
                        }
                    }
                }
            }
        }
    }
    wait_for_copies<0>();
    store_sums<M, ROWS, OUTPUTS, WN, WR, WK>(sums, memory, first_row, first_output, scales, factors, bias, result);
}

}  // namespace pyc
