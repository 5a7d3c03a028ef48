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

/* Words of four bytes that `bytes` of a row lie in, which begin at any multiple of `unit`. */
__device__ constexpr int words_of(int bytes, int row_bytes, int unit) {
    return !bytes                                       ? 0
           : row_bytes % 4 == 0 && bytes % 4 == 0       ? bytes / 4
           : row_bytes % 4 == 0 && bytes == unit        ? 1
                                                        : bytes / 4 + 2;
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
        /* Of rows of whole words; others begin anywhere in a word. */
        SCALE_ROW_BYTES = M::groups(inputs) * M::SCALE_BYTES,
        ZERO_ROW_BYTES = (int)M::zero_bytes(inputs),
        SCALES_ARE_WORDS = SCALE_ROW_BYTES % 4 == 0 && SCALE_BYTES % 4 == 0,
        ZEROS_ARE_WORDS = ZERO_ROW_BYTES % 4 == 0 && ZERO_BYTES % 4 == 0,
        SCALE_WORDS = words_of(SCALE_BYTES, SCALE_ROW_BYTES, M::SCALE_BYTES),
        ZERO_WORDS = words_of(ZERO_BYTES, ZERO_ROW_BYTES, 1),
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
        return (long long)row * SCALE_ROW_BYTES + first_group(tile) * M::SCALE_BYTES;
    }
    static __device__ __forceinline__ long long zeros_from(int row, int tile) {
        return (long long)row * ZERO_ROW_BYTES + first_group(tile) / 2;
    }
    /* Where they begin in the words that are in shared memory. */
    static __device__ __forceinline__ int scales_in_word(int row, int tile) {
        if (SCALES_ARE_WORDS) return 0;
        return SCALE_ROW_BYTES % 4 == 0 ? first_group(tile) * M::SCALE_BYTES & 3 : (int)(scales_from(row, tile) & 3);
    }
    static __device__ __forceinline__ int zeros_in_word(int row, int tile) {
        if (ZEROS_ARE_WORDS) return 0;
        return ZERO_ROW_BYTES % 4 == 0 ? first_group(tile) / 2 & 3 : (int)(zeros_from(row, tile) & 3);
    }

    /* Start to copy tile number `tile` of the rows from `first` on; `threads` threads do it, of which this is `thread`.
     * What is outside of the matrix becomes zeros. */
    template <int threads>
    static __device__ __forceinline__ void load(u8 *shared, const u8 *codes, const u8 *scales, const u8 *zeros, int first,
                                                int tile, int thread) {
        constexpr bool is_whole = ROW_BYTES % CODE_BYTES == 0;
        constexpr int of_row = COPY_BYTES ? CODE_BYTES / (COPY_BYTES ? (int)COPY_BYTES : 1) : threads + 1;
        constexpr int at_once = of_row <= threads ? threads / of_row : 1; /* rows */
        if constexpr (HAS_ALL_ROWS && is_whole && threads % of_row == 0 && rows % at_once == 0) {
            /* All addresses are one and a constant: rows at once are a power of two, and `first` a multiple of 16. */
            const u8 *const source = codes + (long long)M::row_at(first + thread / of_row) * ROW_BYTES +
                                     (long long)tile * CODE_BYTES + thread % of_row * COPY_BYTES;
            u8 *const place = shared + thread / of_row * STRIDE + thread % of_row * COPY_BYTES;
#pragma unroll
            for (int row = 0; row < rows; row += at_once)
                copy_async<COPY_BYTES>(place + row * STRIDE, source + M::row_at(row) * ROW_BYTES, COPY_BYTES);
        } else if constexpr (COPY_BYTES > 0) {
            for_each<CODE_BYTES / COPY_BYTES, threads>(thread, [&](int row, int chunk) {
                const int from = tile * CODE_BYTES + chunk * COPY_BYTES;
                const bool is_inside = (HAS_ALL_ROWS || first + row < outputs) && (is_whole || from < ROW_BYTES);
                const u8 *const source = codes + (long long)M::row_at(first + row) * ROW_BYTES + from;
                u8 *const place = shared + row * STRIDE + chunk * COPY_BYTES;
                copy_async<COPY_BYTES>(place, is_inside ? source : codes, is_inside ? COPY_BYTES : 0);
            });
        } else { /* rows of no whole number of 16 bytes: element by element */
            constexpr int bytes = M::BITS / 8;
            for_each<CODE_BYTES / bytes, threads>(thread, [&](int row, int element) {
                const int from = tile * CODE_BYTES + element * bytes;
                const bool is_inside = first + row < outputs && from < ROW_BYTES;
                const u8 *const source = codes + (long long)M::row_at(first + row) * ROW_BYTES + from;
                u8 *const place = shared + row * STRIDE + element * bytes;
                if constexpr (bytes == 4) *(u32 *)place = is_inside ? *(const u32 *)source : 0;
                if constexpr (bytes == 2) *(u16 *)place = is_inside ? *(const u16 *)source : 0;
                if constexpr (bytes == 1) *place = is_inside ? *source : 0;
            });
        }
        if constexpr (SCALE_WORDS > 0) {
            constexpr long long all = (long long)outputs * M::groups(inputs) * M::SCALE_BYTES;
            load_words<SCALE_WORDS, SCALE_BYTES, SCALE_ROW_BYTES, all, threads>(shared + SCALES_AT, scales, first, thread,
                                                                               first_group(tile) * M::SCALE_BYTES);
        }
        if constexpr (ZERO_WORDS > 0) {
            constexpr long long all = outputs * M::zero_bytes(inputs);
            load_words<ZERO_WORDS, ZERO_BYTES, ZERO_ROW_BYTES, all, threads>(shared + ZEROS_AT, zeros, first, thread,
                                                                            first_group(tile) / 2);
        }
    }

    /* The words of each row that `bytes` of it lie in, from byte `from` on; an array has `all` bytes. */
    template <int words, int bytes, int row_bytes, long long all, int threads>
    static __device__ __forceinline__ void load_words(u8 *shared, const u8 *source, int first, int thread, int from) {
        for_each<words, threads>(thread, [&](int row, int word) {
            const long long row_start = (long long)M::row_at(first + row) * row_bytes;
            const long long start = (row_bytes % 4 == 0 ? row_start + (from & ~3) : (row_start + from) & ~3ll) + word * 4;
            const bool is_inside = HAS_ALL_ROWS || first + row < outputs;
            int there = 4; /* bytes: words at the end may be cut, or be behind it */
            if constexpr (row_bytes % 4 != 0 || words * 4 > round_up(bytes, 4) || inputs % tile_k != 0)
                there = all - start < 4 ? (int)(all - start) : 4;
            const bool has_bytes = is_inside && there > 0;
            copy_4(shared + (row * words + word) * 4, has_bytes ? source + start : source, has_bytes ? there : 0);
        });
    }

    /* Call `copy` with rows of the tile and numbers below `of_row`, those of this thread. */
    template <int of_row, int threads, class Copy> static __device__ __forceinline__ void for_each(int thread, Copy copy) {
        for_each_of<rows, of_row, threads>(thread, copy);
    }

    /* The bits of the scale of group `group` of the tile, for row `row` of it. */
    static __device__ __forceinline__ u32 scale_bits(const u8 *shared, int first, int row, int tile, int group) {
        const u8 *const words = shared + SCALES_AT + row * SCALE_WORDS * 4;
        const int at = scales_in_word(M::row_at(first + row), tile) + group * M::SCALE_BYTES;
        if constexpr (M::SCALE == SCALE_F32) return *(const u32 *)(words + at);
        return *(const u16 *)(words + at);
    }

    static __device__ __forceinline__ u32 zero_of(const u8 *shared, int first, int row, int tile, int group) {
        if constexpr (!M::HAS_ZEROS) return 0;
        const u8 *const words = shared + ZEROS_AT + row * ZERO_WORDS * 4;
        const int nibble = (GROUPS % 2 ? first_group(tile) % 2 : 0) + group;
        const int at = zeros_in_word(M::row_at(first + row), tile) + nibble / 2;
        return words[at] >> 4 * (nibble % 2) & 15;
    }
};

/* A block's fragments of 16 rows of a tile: what lies in shared memory of rows g and g + 8 from `row` on, with what is
 * the same for all of a group: scales, where sums are multiplied by them (`scales`), else they are in the fragments. */
template <class M> struct Fragments {
    u32 first[4], second[4];           /* of the two matrix instructions */
    u32 first_rest[4], second_rest[4]; /* of wide kinds */
    float scales[2];

    /* With `is_small` weights are 2^-6 of what they are, and scales 2^6 times as large (`load_small_pairs`). */
    template <class Tile, bool is_folded, bool is_small = false>
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
            u32 bits = 0, zero = 0, added = adjustment<M>(0, 0);
            if constexpr (M::GROUP != 0) {
                const int group = M::GROUP < BLOCK_K ? (block * BLOCK_K + 8 * t) / M::GROUP : block * BLOCK_K / M::GROUP;
                bits = Tile::scale_bits(shared, first_row, at, tile, group);
                if constexpr (M::HAS_ADJUSTMENT_OF_GROUP) {
                    zero = Tile::zero_of(shared, first_row, at, tile, group);
                    added = adjustment<M>(bits, zero);
                }
                scales[half] = scale_of<M>(bits) * (is_small ? 64.0f : 1.0f);
            }
            const u8 *const codes = shared + at * Tile::STRIDE + block * (BLOCK_K * M::BITS / 8);
            if constexpr (is_small) load_small_pairs<M>(codes, t, zero, pairs[half]);
            else load_pairs<M>(decoder, codes, t, added, pairs[half], rest[half]);
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

/* added[mt][r] += weights x, or = where it `is_first`: `x` are four pairs of a block's activations for each of eight rows,
 * `x_rest` what these leave. Instructions that follow each other add to different sums. */
template <bool is_split, class M, int MT, int R>
__device__ __forceinline__ void multiply_block(float (&added)[MT][R][4], const Fragments<M> (&weights)[MT],
                                               const u32 (&x)[R][4], const u32 (&x_rest)[R][4], const bool is_first) {
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < R; r++) {
                const u32(&w)[4] = step ? weights[mt].second : weights[mt].first;
                if (is_first && step == 0) mma_bf16_first(added[mt][r], w, x[r][0], x[r][1]);
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
}

/* sums += what was added for a group, times its scales. */
template <class M, int MT, int R>
__device__ __forceinline__ void add_group(float (&sums)[MT][R][4], const Fragments<M> (&weights)[MT],
                                          const float (&of_group)[MT][R][4]) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[mt][r][i] += weights[mt].scales[i / 2] * of_group[mt][r][i];
}

/* sums += weights x for a block, times scales with `is_scaled`. */
template <bool is_split, bool is_scaled, class M, int MT, int R>
__device__ __forceinline__ void multiply(float (&sums)[MT][R][4], const Fragments<M> (&weights)[MT], const u32 (&x)[R][4],
                                         const u32 (&x_rest)[R][4]) {
    if constexpr (is_scaled) {
        float of_group[MT][R][4];
        multiply_block<is_split>(of_group, weights, x, x_rest, true);
        add_group(sums, weights, of_group);
    } else {
        multiply_block<is_split>(sums, weights, x, x_rest, false);
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
