/* Rows q | k | v of a matmul: queries and keys are normalized by head where there is a gain, and rotated; queries go to
 * the result, keys and values to the cache.
 *
 *   head = head / sqrt(mean(head^2) + epsilon) * gain
 *   (x, y) = (x cos - y sin, y cos + x sin)           pairs (i, i + rotary / 2) of the first `rotary` features
 */
#pragma once
#include "kv_cache.cuh"
#include "reduce.cuh"

namespace pyc {

/* A head, which `lanes` neighbours have, `width` features at once. */
template <int head_dim, int rotary, int width, int lanes> struct Head {
    enum { half = rotary / 2, each = (head_dim + width * lanes - 1) / (width * lanes) };
    Floats<width> x[each];
    float largest; /* magnitude of the lane's */

    static __device__ __forceinline__ int at(int i) { return (i * lanes + (int)threadIdx.x % lanes) * width; }

    /* Read one of a row, normalize it where it has a `gain`, and rotate it where there are `angles`, those of the row. Its
     * partner in a rotation is read again: it is in L1. All lanes of the warp take part where any head `is_normed`. */
    __device__ __forceinline__ void make(const float *IN_TURN head, const float *IN_TURN gain, const float *IN_TURN angles,
                                         bool is_normed, const float epsilon) {
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < each; i++) {
            x[i] = at(i) < head_dim ? Floats<width>::load(head + at(i)) : Floats<width>::of(0.0f);
#pragma unroll
            for (int k = 0; k < width; k++) squares += x[i].at[k] * x[i].at[k];
        }
        float inverse = 1.0f;
        if (is_normed) {
            squares = reduce_warp<Sum, lanes>(squares);
            if (gain) inverse = 1.0f / sqrtf(squares / (float)head_dim + epsilon);
        }
        largest = 0.0f;
#pragma unroll
        for (int i = 0; i < each; i++) {
            if (at(i) >= head_dim) continue;
            if (gain) {
                const Floats<width> by = Floats<width>::load(gain + at(i));
#pragma unroll
                for (int k = 0; k < width; k++) x[i].at[k] *= inverse * by.at[k];
            }
            if (angles && at(i) < rotary) {
                const bool is_first = at(i) < half;
                const int other = is_first ? at(i) + half : at(i) - half, pair = is_first ? at(i) : other;
                Floats<width> y = Floats<width>::load(head + other);
                if (gain) {
                    const Floats<width> by = Floats<width>::load(gain + other);
#pragma unroll
                    for (int k = 0; k < width; k++) y.at[k] *= inverse * by.at[k];
                }
                const Floats<width> cosines = Floats<width>::load(angles + pair);
                const Floats<width> sines = Floats<width>::load(angles + half + pair);
#pragma unroll
                for (int k = 0; k < width; k++)
                    x[i].at[k] = x[i].at[k] * cosines.at[k] + (is_first ? -y.at[k] : y.at[k]) * sines.at[k];
            }
#pragma unroll
            for (int k = 0; k < width; k++) largest = fmaxf(largest, fabsf(x[i].at[k]));
        }
    }

    __device__ __forceinline__ void store(float *IN_TURN to) const {
#pragma unroll
        for (int i = 0; i < each; i++)
            if (at(i) < head_dim) x[i].store(to + at(i));
    }

    /* The scale of a position, of which `reciprocal` gets the reciprocal; all lanes of the warp take part. */
    template <class Kind> __device__ __forceinline__ float scale(float &reciprocal) const {
        reciprocal = 1.0f;
        if constexpr (Kind::has_scales) {
            const float all = reduce_warp<Maximum, lanes>(largest);
            reciprocal = all > 0.0f ? (float)Kind::most / all : 0.0f;
            return all / (float)Kind::most;
        }
        return 1.0f;
    }

    /* Its numbers as a cache has them. */
    template <class Kind> __device__ __forceinline__ void store_numbers(u8 *IN_TURN to, float reciprocal) const {
#pragma unroll
        for (int i = 0; i < each; i++)
            if (at(i) < head_dim) words_of<Kind>(x[i].at, reciprocal).store(to + at(i) * Kind::bytes);
    }
};

/* `counters` of attention become zeros on the way. */
template <class Kind, int rows, int heads, int kv_heads, int head_dim, int rotary, int block_tokens, int table_blocks,
          int counters_used, int width, int lanes, int threads>
__device__ __forceinline__ void qkv_append(const float *IN_TURN qkv, const float *IN_TURN angles,
                                           const int *IN_TURN positions, const int *IN_TURN sequences,
                                           const int *IN_TURN block_table, const float *IN_TURN q_gain,
                                           const float *IN_TURN k_gain, u8 *IN_TURN cache,
                                           float *IN_TURN result, u32 *IN_TURN counters,
                                           const float epsilon) {
    typedef Cache<Kind, kv_heads, head_dim, block_tokens> Place;
    constexpr int all = heads + 2 * kv_heads;
    const int item = (blockIdx.x * threads + (int)threadIdx.x) / lanes;
    const int row = min(item / all, rows - 1), h = item % all; /* those behind the end do the last row's, and write nothing */
    const int thread = blockIdx.x * threads + (int)threadIdx.x;
    if (thread < counters_used) counters[thread] = 0;
    const bool is_query = h < heads, is_value = h >= heads + kv_heads;
    Head<head_dim, rotary, width, lanes> head;
    head.make(qkv + ((long long)row * all + h) * head_dim, is_query ? q_gain : is_value ? nullptr : k_gain,
              is_value ? nullptr : angles + (long long)row * rotary, q_gain || k_gain, epsilon);
    float reciprocal;
    const float scale = head.template scale<Kind>(reciprocal);
    if (item >= rows * all) return;
    if (is_query) {
        head.store(result + ((long long)row * heads + h) * head_dim);
        return;
    }
    const int position = positions[row];
    if (position < 0) return;
    const int block = block_table[(long long)sequences[row] * table_blocks + position / block_tokens];
    const int slot = position % block_tokens, kv_head = is_value ? h - heads - kv_heads : h - heads;
    u8 *const to = cache + Place::keys_at(block, kv_head) + (is_value ? Place::values_after : 0);
    head.template store_numbers<Kind>(to + (long long)slot * head_dim * Kind::bytes, reciprocal);
    if (Kind::has_scales && threadIdx.x % lanes == 0) *reinterpret_cast<float *>(to + Place::scales_at + 4 * slot) = scale;
}

}  // namespace pyc
