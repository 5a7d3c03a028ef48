/* Rows as GEMMs read them: bf16 [PARTS, rows, features], inputs of a block of 32 in the order of matrix instructions
 * (matrix.cuh), in a second part what rounding leaves. What kernels that make rows write in place of f32. */
#pragma once
#include "matrix.cuh"
#include "vectors.cuh"

namespace pyc {

constexpr int PLAIN_ROWS = -1, FLOAT8_ROWS = -2; /* in place of a distance: rows of f32, or of e4m3 (float8_rows.cuh) */

/* Where an input of a block of 32 lies: what `input_of` tells, the other way round. */
__device__ constexpr int position_of(int distance, int input) {
    const int t = input / 8, i = input % 8;
    const int pair = distance == 1 ? i / 2 : distance == 2 ? i / 4 * 2 + i % 2 : i % 4;
    const int half = distance == 1 ? i % 2 : distance == 2 ? i % 4 / 2 : i / 4;
    return distance == 0 ? input : 8 * pair + 2 * t + half;
}

/* Four inputs of a row from `at` on, of which two and two are neighbours where they lie, or none. */
template <int DISTANCE> __device__ __forceinline__ void store_bf16(u16 *row, int at, const float (&values)[4]) {
    u16 *const block = row + at / BLOCK_K * BLOCK_K;
    const int inside = at % BLOCK_K;
    if constexpr (DISTANCE == 0) {
        *(uint2 *)(row + at) = make_uint2(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]));
    } else if constexpr (DISTANCE == 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) block[position_of(4, inside + i)] = f32_to_bf16(values[i]);
    } else {
        constexpr int next = DISTANCE == 1 ? 2 : 1; /* where the second pair begins */
        *(u32 *)(block + position_of(DISTANCE, inside)) = pack_bf16(values[0], values[DISTANCE]);
        *(u32 *)(block + position_of(DISTANCE, inside + next)) = pack_bf16(values[next], values[next + DISTANCE]);
    }
}

/* Number `at` of row `row`, as f32 or rounded. */
template <int DISTANCE, int PARTS, int ROWS, int FEATURES>
__device__ __forceinline__ void store_number(void *result, long long row, int at, float value) {
    if constexpr (DISTANCE == PLAIN_ROWS) {
        ((float *)result)[row * FEATURES + at] = value;
    } else {
        static_assert(FEATURES % BLOCK_K == 0, "whole blocks");
        u16 *const place = (u16 *)result + row * FEATURES + at / BLOCK_K * BLOCK_K + position_of(DISTANCE, at % BLOCK_K);
        const u16 rounded = f32_to_bf16(value);
        *place = rounded;
        if constexpr (PARTS == 2) place[(long long)ROWS * FEATURES] = f32_to_bf16(value - bf16_to_f32(rounded));
    }
}

/* Four numbers of row `row` from `at` on, as f32 or rounded. */
template <int DISTANCE, int PARTS, int ROWS, int FEATURES>
__device__ __forceinline__ void store_row(void *result, long long row, int at, const Floats<vector_of(FEATURES)> &values) {
    if constexpr (DISTANCE == PLAIN_ROWS) {
        values.store((float *)result + row * FEATURES + at);
    } else {
        static_assert(FEATURES % BLOCK_K == 0, "whole blocks");
        u16 *const place = (u16 *)result + row * FEATURES;
        store_bf16<DISTANCE>(place, at, values.at);
        if constexpr (PARTS == 2) {
            float rest[4];
#pragma unroll
            for (int i = 0; i < 4; i++) rest[i] = values.at[i] - bf16_to_f32(f32_to_bf16(values.at[i]));
            store_bf16<DISTANCE>(place + (long long)ROWS * FEATURES, at, rest);
        }
    }
}

}  // namespace pyc
