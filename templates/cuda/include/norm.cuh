/* Norms of rows, of a sum where there is an addend. A block has a row, in registers from the only time it is read.
 *
 *   rms     x / sqrt(mean(x^2) + epsilon) * gain
 *   layer   (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * gain + bias
 */
#pragma once
#include "float8_rows.cuh"
#include "rounded_rows.cuh"

namespace pyc {

/* addend, gain, bias and total [features each row] may be null: then there is none. All are read before anything is waited
 * for where registers suffice: of few rows a block takes as long as what it waits for. The result is rows of f32, or as
 * `distance` says (rounded_rows.cuh). */
template <bool is_layer, int rows, int features, int threads, int distance, int parts>
__device__ __forceinline__ void norm(const float *IN_TURN x, const float *IN_TURN addend,
                                     const float *IN_TURN gain, const float *IN_TURN bias,
                                     void *IN_TURN result, float *IN_TURN total, const float epsilon) {
    constexpr int width = vector_of(features), vectors = features / width, each = (vectors + threads - 1) / threads;
    constexpr bool is_ahead = each <= 2; /* of long rows, registers are too few */
    const auto is_behind = [](int at) { return vectors % threads != 0 && at >= features; };
    __shared__ float kept[2][32];
    const long long row = (long long)blockIdx.x * features;
    Floats<width> values[each], addends[each], gains[each], biases[each];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < each; i++) {
        const int at = (i * threads + (int)threadIdx.x) * width;
        if (is_behind(at)) continue;
        values[i] = Floats<width>::load(x + row + at);
        if (addend) addends[i] = Floats<width>::load(addend + row + at);
        if (is_ahead && gain) gains[i] = Floats<width>::load(gain + at);
        if (is_ahead && bias) biases[i] = Floats<width>::load(bias + at);
    }
#pragma unroll
    for (int i = 0; i < each; i++) {
        const int at = (i * threads + (int)threadIdx.x) * width;
        if (is_behind(at)) continue;
        if (addend) {
#pragma unroll
            for (int k = 0; k < width; k++) values[i].at[k] += addends[i].at[k];
            values[i].store(total + row + at);
        }
#pragma unroll
        for (int k = 0; k < width; k++) sum += is_layer ? values[i].at[k] : values[i].at[k] * values[i].at[k];
    }
    sum = reduce_block<Sum, threads / 32>(sum, kept[0]);
    float mean = 0.0f;
    if (is_layer) {
        mean = sum / (float)features;
        sum = 0.0f;
#pragma unroll
        for (int i = 0; i < each; i++) {
            if (is_behind((i * threads + (int)threadIdx.x) * width)) continue;
#pragma unroll
            for (int k = 0; k < width; k++) {
                values[i].at[k] -= mean;
                sum += values[i].at[k] * values[i].at[k];
            }
        }
        sum = reduce_block<Sum, threads / 32>(sum, kept[1]);
    }
    const float inverse = 1.0f / sqrtf(sum / (float)features + epsilon);
#pragma unroll
    for (int i = 0; i < each; i++) {
        const int at = (i * threads + (int)threadIdx.x) * width;
        if (is_behind(at)) continue;
        if (!is_ahead && gain) gains[i] = Floats<width>::load(gain + at);
        if (!is_ahead && bias) biases[i] = Floats<width>::load(bias + at);
#pragma unroll
        for (int k = 0; k < width; k++) {
            values[i].at[k] *= inverse;
            if (gain) values[i].at[k] *= gains[i].at[k];
            if (bias) values[i].at[k] += biases[i].at[k];
        }
        if constexpr (distance != FLOAT8_ROWS) store_row<distance, parts, rows, features>(result, blockIdx.x, at, values[i]);
    }
    if constexpr (distance == FLOAT8_ROWS) {
        __shared__ u32 largest[32];
        store_float8_row<rows, features, threads, each>((u8 *)result, blockIdx.x, values, largest);
    }
}

}  // namespace pyc
