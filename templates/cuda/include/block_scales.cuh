/* Tiles of codes whose scales and zero points lie in shared memory for all inputs of a block's rows, copied once: a tile's
 * share of them is a few bytes of each row, which take as many requests to memory as its codes.
 *
 * They begin where dynamic shared memory does: rows of scales, then rows of zero points, with space between rows so that
 * eight of them are in other banks.
 */
#pragma once
#include "matrix_tiles.cuh"

namespace pyc {

template <class M> struct CodesAlone : M {
    enum : int { SCALE_BYTES = 0, HAS_ZEROS = 0 };
};

template <class M, int inputs, int outputs, int rows, int tile_k, int of_block>
struct TileOfBlockScales : MatrixTile<CodesAlone<M>, inputs, outputs, rows, tile_k, of_block> {
    typedef MatrixTile<CodesAlone<M>, inputs, outputs, rows, tile_k, of_block> Codes;
    enum : int {
        SCALE_ROW_BYTES = M::groups(inputs) * M::SCALE_BYTES,
        ZERO_ROW_BYTES = M::HAS_ZEROS ? (int)M::zero_bytes(inputs) : 0,
        SCALE_STRIDE = round_up(SCALE_ROW_BYTES, 16) + 16,
        ZERO_STRIDE = ZERO_ROW_BYTES ? round_up(ZERO_ROW_BYTES, 16) + 16 : 0,
        ZEROS_FROM = of_block * SCALE_STRIDE,
        BLOCK_BYTES = ZEROS_FROM + of_block * ZERO_STRIDE,
    };
    static_assert(SCALE_ROW_BYTES % 4 == 0 && ZERO_ROW_BYTES % 4 == 0, "rows of words");

    /* Start to copy those of the block's rows; all of its `threads` threads do it. */
    template <int threads> static __device__ __forceinline__ void load_scales(const u8 *scales, const u8 *zeros) {
        SHARED_MEMORY(memory);
        copy_rows<SCALE_ROW_BYTES, SCALE_STRIDE, threads>(memory, scales);
        if constexpr (M::HAS_ZEROS) copy_rows<ZERO_ROW_BYTES, ZERO_STRIDE, threads>(memory + ZEROS_FROM, zeros);
    }

    template <int bytes, int stride, int threads>
    static __device__ __forceinline__ void copy_rows(u8 *shared, const u8 *source) {
        constexpr int size = bytes % 16 == 0 ? 16 : bytes % 8 == 0 ? 8 : 4;
        const int first = blockIdx.x * of_block;
        for_each_of<of_block, bytes / size, threads>(threadIdx.x, [&](int row, int chunk) {
            const bool is_inside = Codes::HAS_ALL_ROWS || first + row < outputs;
            const u8 *const place = source + (long long)M::row_at(first + row) * bytes + chunk * size;
            copy_async<size>(shared + row * stride + chunk * size, is_inside ? place : source, is_inside ? size : 0);
        });
    }

    /* Behind the last input, where activations are zeros, the last. */
    static __device__ __forceinline__ int group_of_row(int tile, int group) {
        const int of_row = tile * tile_k / (M::GROUP ? M::GROUP : 1) + group;
        return inputs % tile_k == 0 ? of_row : min(of_row, M::groups(inputs) - 1);
    }

    /* What tiles of another kind read of their own (MatrixTile). */
    static __device__ __forceinline__ u32 scale_bits(const u8 *, int first, int row, int tile, int group) {
        SHARED_MEMORY(memory);
        const int of_row = group_of_row(tile, group);
        const u8 *const place = memory + (first - (int)blockIdx.x * of_block + row) * SCALE_STRIDE + of_row * M::SCALE_BYTES;
        if constexpr (M::SCALE == SCALE_F32) return *(const u32 *)place;
        return *(const u16 *)place;
    }

    static __device__ __forceinline__ u32 zero_of(const u8 *, int first, int row, int tile, int group) {
        if constexpr (!M::HAS_ZEROS) return 0;
        SHARED_MEMORY(memory);
        const int of_row = group_of_row(tile, group);
        const u8 *const zeros = memory + ZEROS_FROM + (first - (int)blockIdx.x * of_block + row) * ZERO_STRIDE;
        return zeros[of_row / 2] >> 4 * (of_row % 2) & 15;
    }
};

}  // namespace pyc
