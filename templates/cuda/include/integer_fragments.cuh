/* Codes of eight bits as matrix instructions multiply them: bytes with signs, in blocks of 32 inputs, of which thread t of
 * four has the first four and the last four of eight. Activations take the same order (quantize_rows.cuh).
 */
#pragma once
#include "matrix_tiles.cuh"

namespace pyc {

/* What a thread has of 16 rows of a tile: words of rows g and g + 8, and the scales of these where groups have some. */
template <class M> struct IntegerFragments {
    u32 words[4];
    float scales[2];

    template <class Tile>
    __device__ __forceinline__ void load(const u8 *shared, int first_row, int row, int tile, int block) {
        static_assert((int)M::KIND == (int)INT8, "codes of eight bits");
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = row + g + 8 * half;
            const uint2 codes = *(const uint2 *)(shared + at * Tile::STRIDE + block * BLOCK_K + 8 * t);
            words[half] = codes.x ^ 0x80808080u, words[half + 2] = codes.y ^ 0x80808080u; /* less 128 */
            if constexpr (M::GROUP != 0)
                scales[half] = scale_of<M>(Tile::scale_bits(shared, first_row, at, tile, block * BLOCK_K / M::GROUP));
        }
    }

    /* sums += scales x, which is what `x0` and `x1` are times the scales of the two rows that the thread has sums of. */
    __device__ __forceinline__ void multiply(float (&sums)[4], u32 x0, u32 x1, float scale0, float scale1) const {
        int products[4];
        mma_integer(products, words, x0, x1);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float scale = i % 2 ? scale1 : scale0;
            if constexpr (M::GROUP != 0) scale *= scales[i / 2];
            sums[i] += scale * mma_integer_sum(products[i]);
        }
    }
};

}  // namespace pyc
