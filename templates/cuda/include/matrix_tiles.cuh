/* Tiles of a matrix in shared memory: rows of codes of `tile_k` inputs, and the scales and zero points of these.
 *
 * A row takes `STRIDE` bytes, so that the eight rows a warp reads from at once lie in different banks. Scales and zero
 * points, of which a row has few, come as the words of four bytes that they lie in; `*_from` tells where in these.
 */
#pragma once
#include "matrix.cuh"

namespace pyc {

/* Call `work` with each (row, column) of an array [rows, of_row] that falls to this of `threads` threads. */
template <int rows, int of_row, int threads, class Work> __device__ __forceinline__ void for_each_of(int thread, Work work) {
    constexpr int all = rows * of_row, rounds = ceil_div(all, threads);
#pragma unroll
    for (int round = 0; round < rounds; round++) {
        if (all % threads != 0 && round == rounds - 1 && round * threads + thread >= all) break;
        if constexpr (threads % of_row == 0) work(thread / of_row + round * (threads / of_row), thread % of_row);
        else work((round * threads + thread) / of_row, (round * threads + thread) % of_row);
    }
}

/* `rows` at once, of `of_block` that a block has: its last tiles may be behind all outputs. */
template <class M, int inputs, int outputs, int rows, int tile_k, int of_block = rows> struct MatrixTile {
    enum : long long { ROW_BYTES = M::row_bytes(inputs) };
    enum : int {
        HAS_ALL_ROWS = outputs % of_block == 0, /* in every tile */
        CODE_BYTES = tile_k * M::BITS / 8,
        HAS_PLANES = M::BITS < 4 || M::BITS == 5,
        /* Of a copy. Rows of whole bytes for a code may be of any number of bytes: then a copy is a code. */
        COPY_BYTES = ROW_BYTES % 16 == 0 && CODE_BYTES % 16 == 0 ? 16
                     : M::BITS >= 8                              ? 0
                     : ROW_BYTES % 8 == 0 && CODE_BYTES % 8 == 0 ? 8
                                                                 : 4,
        IS_PADDED = (int)M::KIND == (int)F32 || (int)M::KIND == (int)BF16 || (HAS_PLANES && CODE_BYTES % 32 == 0),
        STRIDE = IS_PADDED                            ? CODE_BYTES + 16
                 : HAS_PLANES || tile_k / 32 % 2 ? CODE_BYTES
                                                      : (tile_k + 32) * M::BITS / 8,
        GROUPS = M::GROUP ? ceil_div(tile_k, M::GROUP ? M::GROUP : 1) : 0,
        SCALE_BYTES = GROUPS * M::SCALE_BYTES,
        ZERO_BYTES = M::HAS_ZEROS ? ceil_div(GROUPS, 2) : 0,
        /* Words that so many bytes lie in, wherever they begin. */
        SCALES_ARE_WORDS = M::groups(inputs) * M::SCALE_BYTES % 4 == 0 && SCALE_BYTES % 4 == 0,
        ZEROS_ARE_WORDS = M::zero_bytes(inputs) % 4 == 0 && ZERO_BYTES % 4 == 0,
        SCALE_WORDS = SCALES_ARE_WORDS ? SCALE_BYTES / 4 : SCALE_BYTES ? SCALE_BYTES / 4 + 2 : 0,
        ZERO_WORDS = ZEROS_ARE_WORDS ? ZERO_BYTES / 4 : ZERO_BYTES ? ZERO_BYTES / 4 + 2 : 0,
        SCALES_AT = rows * STRIDE,
        ZEROS_AT = SCALES_AT + round_up(rows * SCALE_WORDS * 4, 16),
        BYTES = ZEROS_AT + round_up(rows * ZERO_WORDS * 4, 16),
    };
    static_assert(tile_k % BLOCK_K == 0 && STRIDE % (COPY_BYTES ? (int)COPY_BYTES : 16) == 0, "whole blocks");
    static_assert(M::BITS >= 8 || (inputs % BLOCK_K == 0 && ROW_BYTES % 4 == 0), "whole blocks");

    /* The group that a tile begins in: of tiles smaller than a group, several begin in one. */
    static __device__ __forceinline__ int first_group(int tile) {
        return M::GROUP ? tile * tile_k / (M::GROUP ? M::GROUP : 1) : 0;
    }

    /* Where the scales or zero points of a row's tile begin, in bytes. */
    static __device__ __forceinline__ long long scales_from(int row, int tile) {
        return ((long long)row * M::groups(inputs) + first_group(tile)) * M::SCALE_BYTES;
    }
    static __device__ __forceinline__ long long zeros_from(int row, int tile) {
        return (long long)row * M::zero_bytes(inputs) + first_group(tile) / 2;
    }

    /* Start to copy tile number `tile` of the rows from `first` on; `threads` threads do it, of which this is `thread`.
     * What is outside of the matrix becomes zeros. */
    template <int threads>
    static __device__ __forceinline__ void load(u8 *shared, const u8 *codes, const u8 *scales, const u8 *zeros, int first,
                                                int tile, int thread) {
        if constexpr (COPY_BYTES > 0) {
            constexpr bool is_whole = ROW_BYTES % CODE_BYTES == 0;
            for_each<CODE_BYTES / COPY_BYTES, threads>(thread, [&](int row, int chunk) {
                const int from = tile * CODE_BYTES + chunk * COPY_BYTES;
                const bool is_inside = (HAS_ALL_ROWS || first + row < outputs) && (is_whole || from < ROW_BYTES);
                const u8 *const source = codes + (long long)(first + row) * ROW_BYTES + from;
                u8 *const place = shared + row * STRIDE + chunk * COPY_BYTES;
                copy_async<COPY_BYTES>(place, is_inside ? source : codes, is_inside ? COPY_BYTES : 0);
            });
        } else { /* rows of no whole number of 16 bytes: element by element */
            constexpr int bytes = M::BITS / 8;
            for_each<CODE_BYTES / bytes, threads>(thread, [&](int row, int element) {
                const int from = tile * CODE_BYTES + element * bytes;
                const bool is_inside = first + row < outputs && from < ROW_BYTES;
                const u8 *const source = codes + (long long)(first + row) * ROW_BYTES + from;
                u8 *const place = shared + row * STRIDE + element * bytes;
                if constexpr (bytes == 4) *(u32 *)place = is_inside ? *(const u32 *)source : 0;
                if constexpr (bytes == 2) *(u16 *)place = is_inside ? *(const u16 *)source : 0;
                if constexpr (bytes == 1) *place = is_inside ? *source : 0;
            });
        }
        if constexpr (SCALE_WORDS > 0) {
            constexpr long long all = (long long)outputs * M::groups(inputs) * M::SCALE_BYTES;
            load_words<SCALE_WORDS, SCALES_ARE_WORDS, all, threads>(
                shared + SCALES_AT, scales, first, thread, [&](int row) { return scales_from(row, tile); });
        }
        if constexpr (ZERO_WORDS > 0) {
            constexpr long long all = outputs * M::zero_bytes(inputs);
            load_words<ZERO_WORDS, ZEROS_ARE_WORDS, all, threads>(
                shared + ZEROS_AT, zeros, first, thread, [&](int row) { return zeros_from(row, tile); });
        }
    }

    template <int words, bool are_words, long long all, int threads, class From>
    static __device__ __forceinline__ void load_words(u8 *shared, const u8 *source, int first, int thread, From from) {
        for_each<words, threads>(thread, [&](int row, int word) {
            const long long start = (are_words ? from(first + row) : from(first + row) & ~3ll) + word * 4;
            const bool is_inside = HAS_ALL_ROWS || first + row < outputs;
            int bytes = 4; /* that there are: words at the end may be cut, or be behind it */
            if constexpr (!are_words || inputs % tile_k != 0) bytes = all - start < 4 ? (int)(all - start) : 4;
            const bool has_bytes = is_inside && bytes > 0;
            copy_4(shared + (row * words + word) * 4, has_bytes ? source + start : source, has_bytes ? bytes : 0);
        });
    }

    /* Call `copy` with rows of the tile and numbers below `of_row`, those of this thread. */
    template <int of_row, int threads, class Copy> static __device__ __forceinline__ void for_each(int thread, Copy copy) {
        for_each_of<rows, of_row, threads>(thread, copy);
    }

    /* The bits of the scale of group `group` of the tile, for row `row` of it. */
    static __device__ __forceinline__ u32 scale_bits(const u8 *shared, int first, int row, int tile, int group) {
        const u8 *const words = shared + SCALES_AT + row * SCALE_WORDS * 4;
        const int at = (SCALES_ARE_WORDS ? 0 : (int)(scales_from(first + row, tile) & 3)) + group * M::SCALE_BYTES;
        if constexpr (M::SCALE == SCALE_F32) return *(const u32 *)(words + at);
        return *(const u16 *)(words + at);
    }

    static __device__ __forceinline__ u32 zero_of(const u8 *shared, int first, int row, int tile, int group) {
        if constexpr (!M::HAS_ZEROS) return 0;
        const u8 *const words = shared + ZEROS_AT + row * ZERO_WORDS * 4;
        const int nibble = (GROUPS % 2 ? first_group(tile) % 2 : 0) + group;
        const int at = (ZEROS_ARE_WORDS ? 0 : (int)(zeros_from(first + row, tile) & 3)) + nibble / 2;
        return words[at] >> 4 * (nibble % 2) & 15;
    }
};

/* A block's fragments of 16 rows of a tile: what lies in shared memory of rows g and g + 8 from `row` on, with what is
 * the same for all of a group: scales, where sums are multiplied by them (`scales`), else they are in the fragments. */
template <class M> struct Fragments {
    u32 first[4], second[4];           /* of the two matrix instructions */
    u32 first_rest[4], second_rest[4]; /* of wide kinds */
    float scales[2];

    template <class Tile, bool is_folded>
    __device__ __forceinline__ void load(const Decoder<M> &decoder, const u8 *shared, int first_row, int row, int tile, int block) {
        const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        if constexpr (M::KIND == BF16) { /* four matrices of 8 x 8: rows, rows + 8, and the same of the next inputs */
            const u8 *const place = shared + (row + lane % 16) * Tile::STRIDE + (block * BLOCK_K + lane / 16 * 8) * 2;
            ldmatrix_x4(first, place);
            ldmatrix_x4(second, place + 32);
            return;
        }
        u32 pairs[2][4], rest[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = row + g + 8 * half;
            u32 bits = 0, added = adjustment<M>(0, 0);
            if constexpr (M::GROUP != 0) {
                const int group = M::GROUP < BLOCK_K ? (block * BLOCK_K + 8 * t) / M::GROUP : block * BLOCK_K / M::GROUP;
                bits = Tile::scale_bits(shared, first_row, at, tile, group);
                if constexpr (M::HAS_ADJUSTMENT_OF_GROUP)
                    added = adjustment<M>(bits, Tile::zero_of(shared, first_row, at, tile, group));
                scales[half] = scale_of<M>(bits);
            }
            load_pairs<M>(decoder, shared + at * Tile::STRIDE + block * (BLOCK_K * M::BITS / 8), t, added, pairs[half], rest[half]);
            if constexpr (is_folded) {
                static_assert(M::SCALE == SCALE_BF16 && M::SHIFT == 0, "scales of bf16 as they are");
#pragma unroll
                for (int p = 0; p < 4; p++) pairs[half][p] = multiply_pair(pairs[half][p], bits | bits << 16);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int p = 0; p < 2; p++) {
                first[half + 2 * p] = pairs[half][p], second[half + 2 * p] = pairs[half][2 + p];
                if constexpr (M::IS_WIDE) first_rest[half + 2 * p] = rest[half][p], second_rest[half + 2 * p] = rest[half][2 + p];
            }
    }
};

/* sums[mt][r] += weights x: `x` are four pairs of a block's activations for each of eight rows, `x_rest` what these leave.
 * Instructions that follow each other add to different sums. With `is_scaled` scales multiply what is added. */
template <bool is_split, bool is_scaled, class M, int MT, int R>
__device__ __forceinline__ void multiply(float (&sums)[MT][R][4], const Fragments<M> (&weights)[MT], const u32 (&x)[R][4],
                                         const u32 (&x_rest)[R][4]) {
    float of_group[MT][R][4];
    auto &added = is_scaled ? of_group : sums;
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < R; r++) {
                const u32(&w)[4] = step ? weights[mt].second : weights[mt].first;
                if (is_scaled && step == 0) mma_bf16_first(added[mt][r], w, x[r][0], x[r][1]);
                else mma_bf16(added[mt][r], w, x[r][2 * step], x[r][2 * step + 1]);
            }
    if constexpr (is_split) {
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int r = 0; r < R; r++)
                    mma_bf16(added[mt][r], step ? weights[mt].second : weights[mt].first, x_rest[r][2 * step],
                             x_rest[r][2 * step + 1]);
    }
    if constexpr (M::IS_WIDE) {
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int r = 0; r < R; r++)
                    mma_bf16(added[mt][r], step ? weights[mt].second_rest : weights[mt].first_rest, x[r][2 * step],
                             x[r][2 * step + 1]);
    }
    if constexpr (is_scaled) {
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[mt][r][i] += weights[mt].scales[i / 2] * of_group[mt][r][i];
    }
}

/* What multiplies the sums of a row in the end. */
template <class M> __device__ __forceinline__ float row_scale(const u8 *scales, const float *factors, int row) {
    float scale = 1;
    if constexpr (M::HAS_ROW_SCALE) scale = ((const float *)scales)[row];
    if constexpr (M::HAS_FACTORS) scale *= factors[row];
    return scale;
}

}  // namespace pyc
