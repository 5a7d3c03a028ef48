/* One vector a sequence: its first row, or the mean of its rows; of length 1 where `is_normalized`. */
#pragma once
#include "reduce.cuh"
#include "vectors.cuh"

namespace pyc {

/* A block has a sequence, rows [start, end) of x [rows, features]. Without rows the result is zeros. */
template <bool is_mean, bool is_normalized, int features, int threads>
__device__ __forceinline__ void pool(const float *IN_TURN x, const int *IN_TURN starts,
                                     const int *IN_TURN ends, float *IN_TURN result) {
    constexpr int width = vector_of(features), vectors = features / width, each = (vectors + threads - 1) / threads;
    __shared__ float kept[32];
    const int start = starts[blockIdx.x], end = ends[blockIdx.x];
    Floats<width> sums[each];
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < each; i++) {
        sums[i] = Floats<width>::of(0.0f);
        const int at = (i * threads + (int)threadIdx.x) * width;
        if (at >= features) continue;
        const int stop = is_mean ? end : min(start + 1, end);
#pragma unroll 4
        for (int row = start; row < stop; row++) {
            const Floats<width> more = Floats<width>::load(x + (long long)row * features + at);
#pragma unroll
            for (int k = 0; k < width; k++) sums[i].at[k] += more.at[k];
        }
        const float share = is_mean && end > start ? 1.0f / (float)(end - start) : 1.0f;
#pragma unroll
        for (int k = 0; k < width; k++) {
            sums[i].at[k] *= share;
            squares += sums[i].at[k] * sums[i].at[k];
        }
    }
    const float length = is_normalized ? fmaxf(sqrtf(reduce_block<Sum, threads / 32>(squares, kept)), 1e-12f) : 1.0f;
#pragma unroll
    for (int i = 0; i < each; i++) {
        const int at = (i * threads + (int)threadIdx.x) * width;
        if (at >= features) continue;
#pragma unroll
        for (int k = 0; k < width; k++) sums[i].at[k] /= length;
        sums[i].store(result + (long long)blockIdx.x * features + at);
    }
}

}  // namespace pyc
