/* Operations of which each number of the result depends on few: a thread makes `width` neighbours of a row. */
#pragma once
#include "float8_rows.cuh"
#include "rounded_rows.cuh"

namespace pyc {

struct Silu { static __device__ __forceinline__ float of(float x) { return x / (1.0f + expf(-x)); } };
struct Gelu {
    static __device__ __forceinline__ float of(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }
};
struct GeluTanh {
    static __device__ __forceinline__ float of(float x) {
        return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    }
};
struct Relu { static __device__ __forceinline__ float of(float x) { return fmaxf(x, 0.0f); } };
struct Relu2 {
    static __device__ __forceinline__ float of(float x) {
        x = fmaxf(x, 0.0f);
        return x * x;
    }
};

struct NoGate {}; /* in the place of these */
template <class Gate> struct HasGate { enum : int { VALUE = 1 }; };
template <> struct HasGate<NoGate> { enum : int { VALUE = 0 }; };

/* Where the vector of a thread begins in a result of `count` numbers; behind the end for threads too many. */
template <int threads, int width> __device__ __forceinline__ long long vector_at() {
    return ((long long)blockIdx.x * threads + threadIdx.x) * width;
}

template <long long count, int threads, int width>
__device__ __forceinline__ void add(const float *IN_TURN x, const float *IN_TURN addend,
                                    float *IN_TURN result) {
    const long long at = vector_at<threads, width>();
    if (at >= count) return;
    Floats<width> sum = Floats<width>::load(x + at);
    const Floats<width> more = Floats<width>::load(addend + at);
#pragma unroll
    for (int k = 0; k < width; k++) sum.at[k] += more.at[k];
    sum.store(result + at);
}

/* result = x + table[index], the same row for all. */
template <long long count, int features, int index, int threads, int width>
__device__ __forceinline__ void add_row(const float *IN_TURN x, const float *IN_TURN table,
                                        float *IN_TURN result) {
    const long long at = vector_at<threads, width>();
    if (at >= count) return;
    Floats<width> sum = Floats<width>::load(x + at);
    const Floats<width> more = Floats<width>::load(table + (long long)index * features + at % features);
#pragma unroll
    for (int k = 0; k < width; k++) sum.at[k] += more.at[k];
    sum.store(result + at);
}

template <class Function, long long count, int threads, int width>
__device__ __forceinline__ void activation(const float *IN_TURN x, float *IN_TURN result) {
    const long long at = vector_at<threads, width>();
    if (at >= count) return;
    Floats<width> values = Floats<width>::load(x + at);
#pragma unroll
    for (int k = 0; k < width; k++) values.at[k] = Function::of(values.at[k]);
    values.store(result + at);
}

template <class Function, int width>
__device__ __forceinline__ Floats<width> gate_vector(const float *IN_TURN gate, const float *IN_TURN up) {
    Floats<width> values = Floats<width>::load(gate);
    const Floats<width> by = Floats<width>::load(up);
#pragma unroll
    for (int k = 0; k < width; k++) values.at[k] = Function::of(values.at[k]) * by.at[k];
    return values;
}

template <class Function, long long count, int threads, int width>
__device__ __forceinline__ void gated(const float *IN_TURN gate, const float *IN_TURN up,
                                      float *IN_TURN result) {
    const long long at = vector_at<threads, width>();
    if (at < count) gate_vector<Function, width>(gate + at, up + at).store(result + at);
}

/* The gate is the first half of a row of x [rows, 2 * features], what it gates the second. */
template <class Function, int rows, int features, int threads, int width, int distance, int parts>
__device__ __forceinline__ void gated_pair(const float *IN_TURN x, void *IN_TURN result) {
    const long long at = vector_at<threads, width>(), row = at / features, gate = row * 2 * features + at % features;
    if (row < rows)
        store_row<distance, parts, rows, features>(result, row, (int)(at % features),
                                                   gate_vector<Function, width>(x + gate, x + gate + features));
}

/* The same to rows of e4m3: a block has a row. */
template <class Function, int rows, int features, int threads>
__device__ __forceinline__ void gated_pair_float8(const float *IN_TURN x, u8 *IN_TURN result) {
    constexpr int each = (features / 4 + threads - 1) / threads, at_once = 4; /* that are on their way */
    __shared__ u32 kept[32];
    const float *const row = x + (long long)blockIdx.x * 2 * features;
    Floats<4> values[each];
#pragma unroll
    for (int first = 0; first < each; first += at_once) {
        Floats<4> gates[at_once], ups[at_once];
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            const int at = ((first + i) * threads + (int)threadIdx.x) * 4;
            if (first + i < each && at < features) gates[i] = Floats<4>::load(row + at), ups[i] = Floats<4>::load(row + features + at);
        }
#pragma unroll
        for (int i = 0; i < at_once; i++) {
            const int at = ((first + i) * threads + (int)threadIdx.x) * 4;
            if (first + i >= each || at >= features) continue;
#pragma unroll
            for (int k = 0; k < 4; k++) values[first + i].at[k] = Function::of(gates[i].at[k]) * ups[i].at[k];
        }
    }
    store_float8_row<rows, features, threads, each>(result, blockIdx.x, values, kept);
}

template <long long count, int left_features, int right_features, int threads, int width>
__device__ __forceinline__ void concat(const float *IN_TURN left, const float *IN_TURN right,
                                       float *IN_TURN result) {
    constexpr int features = left_features + right_features;
    const long long at = vector_at<threads, width>();
    if (at >= count) return;
    const long long row = at / features;
    const int column = (int)(at % features);
    const float *const from =
        column < left_features ? left + row * left_features + column : right + row * right_features + column - left_features;
    Floats<width>::load(from).store(result + at);
}

/* result [rows, features] = columns of x [rows, stride] from `start` on. */
template <long long count, int features, int stride, int start, int threads, int width>
__device__ __forceinline__ void slice(const float *IN_TURN x, float *IN_TURN result) {
    const long long at = vector_at<threads, width>();
    if (at >= count) return;
    Floats<width>::load(x + at / features * stride + start + at % features).store(result + at);
}

/* result [features] = x[row], or the nearest row there is; numbers of 4 bytes. */
template <int rows, int features, int threads, int width>
__device__ __forceinline__ void select_row(const float *IN_TURN x, const int *IN_TURN row,
                                           float *IN_TURN result) {
    const long long at = vector_at<threads, width>();
    if (at >= features) return;
    const long long chosen = max(0, min(*row, rows - 1));
    Floats<width>::load(x + chosen * features + at).store(result + at);
}

/* result [rows, 2 * half]: cosines, then sines, of positions * frequencies, times `scale`. From position `original` on
 * the base grows where `is_dynamic`: frequencies are (base * (factor (p + 1) / original - (factor - 1))^(d / (d - 2)))
 * ^(-2 i / d), with d = 2 * half. */
template <int rows, int half, bool is_dynamic, int threads>
__device__ __forceinline__ void rope_angles(const int *IN_TURN positions, const float *IN_TURN frequencies,
                                            float *IN_TURN result, const float scale, const double base,
                                            const double factor, const double original) {
    const int at = blockIdx.x * threads + threadIdx.x;
    if (at >= rows * half) return;
    const int row = at / half, i = at % half;
    const int position = max(positions[row], 0);
    float frequency = frequencies[i];
    if (is_dynamic && position >= original) {
        const double growth = factor * (position + 1) / original - (factor - 1);
        frequency = (float)pow(base * pow(growth, half > 1 ? 2.0 * half / (2.0 * half - 2) : 1.0), -(double)i / half);
    }
    const float angle = (float)position * frequency;
    result[(long long)row * 2 * half + i] = cosf(angle) * scale;
    result[(long long)row * 2 * half + half + i] = sinf(angle) * scale;
}

}  // namespace pyc
