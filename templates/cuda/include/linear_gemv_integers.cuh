/* Linear layers of one row by products of integers: y[n] = sum over k of x[k] w[n, k], + bias[n], of codes that are integers or
 * entries of tables.
 *
 * Bound by the bytes of w, of which each is read once. The row becomes integers by blocks of 32 inputs, once for each block of
 * threads, which is one a multiprocessor and goes on to other outputs: of two bytes, a largest magnitude of 32512, which err
 * by less than bf16 does; or of one, as CPUs round. A warp has R outputs at a time, of which each thread loads U pieces of 32
 * codes (16 of eight bits), and the next of each when it has multiplied it. Four products of bytes are one instruction (dp4a).
 * Codes are taken as they are, and what they stand for more or less is a multiple of the sum of the row's piece.
 *
 * The first pieces are on their way before the launch that makes x has ended: weights are there from the start.
 */
#pragma once
#include "dependent_launch.cuh"
#include "gemv_epilogue.cuh"
#include "matrix_tiles.cuh"
#include "quantize_rows.cuh"
#include "reduce.cuh"

namespace pyc {

/* 16 bytes that no other thread reads, and none again. */
__device__ __forceinline__ uint4 load_once(const u8 *place) {
#ifdef __CUDA_ARCH__
    uint4 loaded;
    asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
        : "l"(place));
    return loaded;
#else
    return *(const uint4 *)place;
#endif
}

/* A row in shared memory: for each 16 inputs of a piece, in each of `PLANES` bytes of an integer, 16 bytes of all pieces; then
 * the scales f32 of blocks of 32 inputs, and the sums i32 of pieces. Lanes read pieces that lie one after another. */
template <class M, int INPUTS, int PLANES> struct IntegerRow {
    enum : int {
        PIECE = M::BITS == 8 ? 16 : BLOCK_K,
        PIECES = INPUTS / PIECE,
        QUADS = PIECE / 16,
        WORDS = PIECE / 4,
        SCALES_AT = PLANES * INPUTS,
        SUMS_AT = SCALES_AT + INPUTS / BLOCK_K * 4,
        BYTES = SUMS_AT + PIECES * 4,
    };
    static_assert(INPUTS % BLOCK_K == 0, "whole blocks");

    /* Where word `word` of a plane of a piece is. */
    static __device__ __forceinline__ int place_of(int plane, int piece, int word) {
        return ((plane * QUADS + word / 4) * PIECES + piece) * 16 + word % 4 * 4;
    }

    /* Round the row; all of the block's threads do it. */
    template <int THREADS> static __device__ __forceinline__ void make(u8 *shared, const float *x) {
        constexpr int COUNT = INPUTS / 8, ROUNDS = ceil_div(COUNT, THREADS); /* a thread has eight inputs of a round */
        float values[ROUNDS][8] = {};
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            const int index = round * THREADS + threadIdx.x;
            if (COUNT % THREADS != 0 && index >= COUNT) continue;
            const float4 low = *(const float4 *)(x + 8 * index), high = *(const float4 *)(x + 8 * index + 4);
            const float loaded[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int i = 0; i < 8; i++) values[round][i] = loaded[i];
        }
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) store_eight(shared, values[round], round * THREADS + threadIdx.x);
    }

    static __device__ __forceinline__ void store_eight(u8 *shared, const float (&values)[8], int index) {
        u32 largest = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) largest = max(largest, __float_as_uint(values[i]) & 0x7fffffffu);
#pragma unroll
        for (int lanes = 1; lanes < 4; lanes *= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
        float inverse;
        float scale = scale_of_block(largest, inverse);
        if constexpr (PLANES == 2) {
            inverse = inverse == 0.0f ? 0.0f : 32512.0f / __uint_as_float(largest);
            scale = scale == 0.0f ? 0.0f : __uint_as_float(largest) / 32512.0f;
        }
        int integers[8], sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) { /* 1.5 * 2^23 rounds to nearest even: what the sum is above it is the integer */
            const float scaled = inverse == 0.0f ? 0.0f : __fmul_rn(values[i], inverse);
            integers[i] = (int)__float_as_uint(__fadd_rn(scaled, 12582912.0f)) - 0x4b400000;
            sum += integers[i];
        }
#pragma unroll
        for (int lanes = 1; lanes < PIECE / 8; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        if (INPUTS / 8 <= index) return;
        const int piece = index / (PIECE / 8), part = index % (PIECE / 8);
        if (largest >= 0x7f800000u) scale = __uint_as_float(0x7fc00000u); /* a fault shows as NaN */
        if (index % 4 == 0) *(float *)(shared + SCALES_AT + index) = scale;
        if (part == 0) *(int *)(shared + SUMS_AT + piece * 4) = sum;
#pragma unroll
        for (int plane = 0; plane < PLANES; plane++) {
            u32 words[2] = {};
#pragma unroll
            for (int i = 0; i < 8; i++) { /* INT4: even inputs, then odd ones, as masks find codes */
                const int word = M::KIND == INT4 ? i % 2 : i / 4, byte = M::KIND == INT4 ? i / 2 : i % 4;
                const int bits = plane == 1 ? (integers[i] + 128) >> 8 : integers[i];
                words[word] |= (u32)(bits & 255) << 8 * byte;
            }
            *(uint2 *)(shared + place_of(plane, piece, 2 * part)) = make_uint2(words[0], words[1]);
        }
    }
};

/* A piece of a row of codes, as it is loaded. */
template <class M, int INPUTS> struct CodePiece {
    typedef IntegerRow<M, INPUTS, 1> Row;
    u32 words[M::BITS == 8 ? 4 : M::BITS];
    u32 scale, zero;

    __device__ __forceinline__ void load(const u8 *codes, const u8 *scales, const u8 *zeros, long long row, int piece) {
        const u8 *const place = codes + row * M::row_bytes(INPUTS) + piece * (Row::PIECE * M::BITS / 8);
        if constexpr (M::BITS == 4 || M::BITS == 8) {
            const uint4 loaded = load_once(place);
            words[0] = loaded.x, words[1] = loaded.y, words[2] = loaded.z, words[3] = loaded.w;
        } else if constexpr (M::BITS == 2) {
            const uint2 loaded = *(const uint2 *)place;
            words[0] = loaded.x, words[1] = loaded.y;
        } else {
#pragma unroll
            for (int i = 0; i < M::BITS; i++) words[i] = ((const u32 *)place)[i];
        }
        if constexpr (M::GROUP != 0) {
            static_assert(M::GROUP % Row::PIECE == 0, "a scale for a piece");
            const int of_row = piece * Row::PIECE / M::GROUP;
            const long long group = row * M::groups(INPUTS) + of_row;
            scale = M::SCALE == SCALE_F32 ? ((const u32 *)scales)[group] : ((const u16 *)scales)[group];
            if constexpr (M::HAS_ZEROS) zero = zeros[row * M::zero_bytes(INPUTS) + of_row / 2] >> 4 * (of_row % 2) & 15;
        }
    }

    /* Codes as bytes with signs, of which a number less or more is what `more_than_codes` tells. */
    __device__ __forceinline__ void unpack(const Decoder<M> &decoder, u32 (&bytes)[Row::WORDS]) const {
#pragma unroll
        for (int i = 0; i < Row::WORDS / (M::BITS == 8 ? 1 : 2); i++) {
            if constexpr (M::KIND == INT8) bytes[i] = words[i] ^ 0x80808080u;
            else if constexpr (M::KIND == INT4)
                bytes[2 * i] = words[i] & 0x0f0f0f0fu, bytes[2 * i + 1] = words[i] >> 4 & 0x0f0f0f0fu;
            else decoder.entries_of((const u8 *)words, i, bytes[2 * i], bytes[2 * i + 1]);
        }
    }

    __device__ __forceinline__ int more_than_codes() const {
        if constexpr (M::KIND == INT8) return 0;
        if constexpr (M::HAS_ZEROS) return -(int)zero;
        if constexpr (M::KIND == INT4) return -8;
        return M::LEAST + (M::SHIFT && scale & 1 ? M::SHIFT : 0);
    }
};

template <class M, int OUTPUTS, int INPUTS, int R, int U, int WARPS, int PLANES, class Epilogue>
__device__ __forceinline__ void gemv_integers(const float *x, const u8 *codes, const u8 *scales, const u8 *zeros,
                                              const Epilogue &epilogue) {
    typedef IntegerRow<M, INPUTS, PLANES> Row;
    constexpr int CHUNKS = ceil_div(Row::PIECES, 32 * U), GROUPS = ceil_div(OUTPUTS, R);
    static_assert(!Epilogue::HAS_GATE || (R % 2 == 0 && OUTPUTS % R == 0), "a warp has a gate and what it gates");
    SHARED_MEMORY(memory);
    __shared__ float kept[1][WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Decoder<M> decoder;
    CodePiece<M, INPUTS> pieces[U][R];

    const auto has_piece = [&](int piece) { return Row::PIECES % (32 * U) == 0 || piece < Row::PIECES; };
    const auto load = [&](int u, int group, int chunk) {
        const int piece = (chunk * U + u) * 32 + lane;
        if (group >= GROUPS || !has_piece(piece)) return;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int output = group * R + r;
            const int row = M::row_at(OUTPUTS % R == 0 ? output : min(output, OUTPUTS - 1));
            pieces[u][r].load(codes, scales, zeros, row, piece);
        }
    };
    int group = blockIdx.x + warp * (int)gridDim.x;
#pragma unroll
    for (int u = 0; u < U; u++) load(u, group, 0);
    wait_for_earlier_launches();
    epilogue.add_squares(kept);
    Row::template make<32 * WARPS>(memory, x);
    __syncthreads();

#pragma unroll 1
    for (; group < GROUPS; group += WARPS * (int)gridDim.x) {
        float sums[R] = {};
        if (group + WARPS * (int)gridDim.x >= GROUPS) let_later_launches_begin(); /* in the warp's last turn */
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            const bool is_last = chunk == CHUNKS - 1;
            const int next_group = is_last ? group + WARPS * (int)gridDim.x : group, next_chunk = is_last ? 0 : chunk + 1;
#pragma unroll
            for (int u = 0; u < U; u++) {
                const int piece = (chunk * U + u) * 32 + lane;
                if (has_piece(piece)) {
                    const float scale = *(const float *)(memory + Row::SCALES_AT + piece * Row::PIECE / BLOCK_K * 4);
                    const int sum = *(const int *)(memory + Row::SUMS_AT + piece * 4);
                    int products[R][PLANES] = {};
                    u32 bytes[R][Row::WORDS];
#pragma unroll
                    for (int r = 0; r < R; r++) pieces[u][r].unpack(decoder, bytes[r]);
#pragma unroll
                    for (int plane = 0; plane < PLANES; plane++)
#pragma unroll
                        for (int quad = 0; quad < Row::QUADS; quad++) {
                            const uint4 loaded = *(const uint4 *)(memory + Row::place_of(plane, piece, 4 * quad));
                            const u32 row[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
                            for (int word = 0; word < 4; word++)
#pragma unroll
                                for (int r = 0; r < R; r++) {
                                    int &sum_of = products[r][plane];
                                    sum_of = __dp4a((int)bytes[r][4 * quad + word], (int)row[word], sum_of);
                                }
                        }
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        int product = PLANES == 2 ? products[r][PLANES - 1] * 256 + products[r][0] : products[r][0];
                        product += pieces[u][r].more_than_codes() * sum;
                        float by = scale;
                        if constexpr (M::GROUP != 0) by *= scale_of<M>(pieces[u][r].scale);
                        sums[r] += by * (float)product;
                    }
                }
                load(u, next_group, next_chunk);
            }
        }
        float sum = 0; /* of output `lane` of the group */
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float all = reduce_warp<Sum>(sums[r]);
            if (lane == r) sum = all;
        }
        const int output = group * R + lane;
        const bool is_there = lane < R && (OUTPUTS % R == 0 || output < OUTPUTS);
        epilogue.template finish<1, R>(sum, 0, output, is_there, kept); /* a gate is the row before what it gates */
    }
}

}  // namespace pyc
