/* Codes of eight bits as matrix instructions multiply them by activations of eight bits: signed integers by such, floating
 * point by e4m3. Both go by blocks of 32 inputs, of which thread t of four has the first four and the last four of eight.
 * Activations take the same order (quantize_rows.cuh).
 */
#pragma once
#include "matrix_tiles.cuh"

namespace pyc {

/* What a thread has of 16 rows of a tile: words of rows g and g + 8, and the scales of these where groups have some. */
template <class M> struct ByteFragments {
    enum : int { IS_INTEGER = (int)M::KIND == (int)INT8, IS_E4M3 = (int)M::KIND == (int)E4M3 };
    static_assert(M::BITS == 8, "codes of eight bits");
    u32 words[4];
    float scales[2];

    template <class Tile>
    __device__ __forceinline__ void load(const u8 *shared, int first_row, int row, int tile, int block) {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = row + g + 8 * half;
            const uint2 codes = *(const uint2 *)(shared + at * Tile::STRIDE + block * BLOCK_K + 8 * t);
            const u32 bias = IS_INTEGER ? 0x80808080u : 0; /* 128 more than the integer, which is a byte with a sign */
            words[half] = codes.x ^ bias, words[half + 2] = codes.y ^ bias;
            if constexpr (M::GROUP != 0)
                scales[half] = scale_of<M>(Tile::scale_bits(shared, first_row, at, tile, block * BLOCK_K / M::GROUP));
        }
    }

    /* sums += scales x, which is what `x0` and `x1` are times the scales of the two rows that the thread has sums of. */
    __device__ __forceinline__ void multiply(float (&sums)[4], u32 x0, u32 x1, float scale0, float scale1) const {
        float of_block[4];
        multiply_block(of_block, x0, x1);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float scale = i % 2 ? scale1 : scale0;
            if constexpr (M::GROUP != 0) scale *= scales[i / 2];
            sums[i] += scale * of_block[i];
        }
    }

  private:
    __device__ __forceinline__ void multiply_block(float (&sums)[4], u32 x0, u32 x1) const {
        if constexpr (IS_INTEGER) {
            int products[4];
            mma_integer(products, words, x0, x1);
#pragma unroll
            for (int i = 0; i < 4; i++) sums[i] = mma_integer_sum(products[i]);
        } else {
#ifndef PYC_FLOAT8_BY_BF16
            mma_float8<IS_E4M3>(sums, words, x0, x1);
#else       /* bytes 0 and 2, 1 and 3 of each word */
            u32 pairs[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                pairs[i / 2][i % 2] = float8_pair<IS_E4M3>(words[i]),
                pairs[i / 2][i % 2 + 2] = float8_pair<IS_E4M3, true>(words[i]);
            mma_bf16_first(sums, pairs[0], float8_pair<true>(x0), float8_pair<true, true>(x0));
            mma_bf16(sums, pairs[1], float8_pair<true>(x1), float8_pair<true, true>(x1));
#endif
        }
    }
};

}  // namespace pyc
