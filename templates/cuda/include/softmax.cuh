/* An online softmax in f32 of queries that share keys and values.
 *
 * A group of `lanes` neighbours takes `count` positions at a time, `wide` features a lane, and has a softmax of its own:
 * m the largest score so far, l the sum of exp2(score - m), sums that of exp2(score - m) * value. `merge` makes one of
 * all groups of the block, in a fixed order. Scores are in units of log 2: queries are scaled by `scale` / ln 2.
 *
 *   m' = max(m, m2), l' = l exp2(m - m') + l2 exp2(m2 - m'), sums' likewise (arXiv:2205.14135)
 *
 * Scores of all queries and positions are added up together: in each step a lane gives away half of what it has and adds
 * up the other half (`spread_sums`), so that in the end a lane has few scores, or one, and weighs these alone.
 */
#pragma once
#include "kv_cache.cuh"
#include "reduce.cuh"
#include "vectors.cuh"

namespace pyc {

constexpr float NOTHING_SEEN = -1e30f; /* the m of no position; finite, so that differences are */

constexpr __host__ __device__ int lanes_for(int count) {
    int lanes = 1;
    while (lanes < count && lanes < 32) lanes *= 2;
    return lanes;
}
constexpr __host__ __device__ int power_of_two_for(int count) { return count <= 1 ? 1 : 2 * power_of_two_for((count + 1) / 2); }

/* Sums of each of the first `m` values over 2 `by` lanes: a lane gets those of max(1, m / (2 by)) consecutive values, where
 * lanes with higher numbers have values with higher numbers, and neighbours the same where there are more lanes. */
template <int by, int m, int values> __device__ __forceinline__ void spread_sums(float (&v)[values]) {
    if constexpr (by > 0) {
        if constexpr (m > 1) {
            const bool is_upper = threadIdx.x & by;
#pragma unroll
            for (int i = 0; i < m / 2; i++) {
                const float given = is_upper ? v[i] : v[i + m / 2], kept = is_upper ? v[i + m / 2] : v[i];
                v[i] = kept + __shfl_xor_sync(0xffffffffu, given, by);
            }
        } else {
            v[0] += __shfl_xor_sync(0xffffffffu, v[0], by);
        }
        spread_sums<by / 2, (m > 1 ? m / 2 : 1)>(v);
    }
}

/* `count`, a power of two: positions that a group takes at a time. */
template <int queries, int head_dim, int wide, int threads, int count> struct Softmax {
    enum {
        lanes = lanes_for((head_dim + wide - 1) / wide),
        chunks = (head_dim + wide * lanes - 1) / (wide * lanes),
        features = chunks * wide,
        groups = threads / lanes, /* of the block */
        warps = threads / 32,
        values = power_of_two_for(queries) * count,   /* scores, as (query, position) */
        own = values > lanes ? values / lanes : 1,    /* scores that a lane gets */
        spread = lanes > values ? lanes / values : 1, /* lanes that get the same */
        own_queries = own > count ? own / count : 1,
        own_positions = own / own_queries,
        lanes_of_query = count / own_positions * spread,
        width = vector_of(head_dim),
        merged = groups * queries * head_dim + 2 * queries * warps /* f32 of shared memory that merging takes */
    };

    float q[queries][features], sums[queries][features];
    float m[own_queries], l[own_queries]; /* of the lane's queries; l of its positions */

    static __device__ __forceinline__ int lane() { return threadIdx.x % lanes; }
    static __device__ __forceinline__ int group() { return threadIdx.x / lanes; }
    /* Where the features of a chunk begin; behind head_dim there are none. */
    static __device__ __forceinline__ int at(int chunk) { return (chunk * lanes + lane()) * wide; }

    /* Of the lane's scores. */
    static __device__ __forceinline__ int first_query() { return lane() / spread * own / count; }
    static __device__ __forceinline__ int first_position() { return lane() / spread * own % count; }
    /* The lane of this group that has the score of a query and position, the first of these. */
    static constexpr __device__ int owner(int query, int position) { return (query * count + position) / own * spread; }

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int i = 0; i < own_queries; i++) m[i] = NOTHING_SEEN, l[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < queries; i++)
#pragma unroll
            for (int f = 0; f < features; f++) q[i][f] = sums[i][f] = 0.0f;
    }

    __device__ __forceinline__ void load_query(int i, const float *IN_TURN from, const float scale) {
        constexpr int width = wide % 4 == 0 ? 4 : 1;
#pragma unroll
        for (int c = 0; c < chunks; c++)
            if (at(c) < head_dim)
#pragma unroll
                for (int k = 0; k < wide; k += width) {
                    const Floats<width> loaded = Floats<width>::load(from + at(c) + k);
#pragma unroll
                    for (int e = 0; e < width; e++) q[i][c * wide + k + e] = loaded.at[e] * scale;
                }
    }

    /* Takes in positions of the group: keys and values by chunks, scores times key_scales, values times value_scales;
     * position p counts for query i where is_seen[p] >> i & 1. All lanes of the warp take part. */
    template <class Keys, class Values>
    __device__ __forceinline__ void take(const Keys &keys, const Values &values_of, const u32 (&is_seen)[count],
                                         const float (&key_scales)[count], const float (&value_scales)[count]) {
        float scores[values];
#pragma unroll
        for (int i = 0; i < values / count; i++)
#pragma unroll
            for (int p = 0; p < count; p++) {
                float dot = 0.0f;
                if (i < queries)
#pragma unroll
                    for (int f = 0; f < features; f++) dot = fmaf(q[i < queries ? i : 0][f], keys(p, f), dot);
                scores[i * count + p] = dot;
            }
        spread_sums<lanes / 2, values>(scores);
        float kept[own_queries], weights[own];
#pragma unroll
        for (int i = 0; i < own_queries; i++) {
            float largest = m[i];
#pragma unroll
            for (int j = 0; j < own_positions; j++) {
                const int p = first_position() + j;
                float &score = scores[i * own_positions + j];
                score = of_position(is_seen, p) >> (first_query() + i) & 1 ? score * of_position(key_scales, p)
                                                                           : -__int_as_float(0x7f800000);
                largest = fmaxf(largest, score);
            }
#pragma unroll
            for (int by = lanes_of_query / 2; by >= spread; by /= 2)
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, by));
            kept[i] = exp2f(m[i] - largest);
            m[i] = largest;
            l[i] *= kept[i];
#pragma unroll
            for (int j = 0; j < own_positions; j++) {
                const float power = exp2f(scores[i * own_positions + j] - largest);
                l[i] += power;
                weights[i * own_positions + j] = power * of_position(value_scales, first_position() + j);
            }
        }
#pragma unroll
        for (int i = 0; i < queries; i++) {
            const float scale = from_lane(kept[i % own_queries], owner(i, 0));
#pragma unroll
            for (int f = 0; f < features; f++) sums[i][f] *= scale;
#pragma unroll
            for (int p = 0; p < count; p++) {
                const float weight = from_lane(weights[(i * count + p) % own], owner(i, p));
#pragma unroll
                for (int f = 0; f < features; f++) sums[i][f] = fmaf(weight, values_of(p, f), sums[i][f]);
            }
        }
    }

    /* The softmax of all groups: `made(i, feature, m, l, sums)` for each query and `width` features, by one thread each.
     * `shared` has room for `merged` f32, aligned to 16 bytes. */
    template <class Made> __device__ __forceinline__ void merge(float *shared, const Made &made) {
        float *const largests = shared + groups * queries * head_dim, *const totals = largests + queries * warps;
        const int warp = threadIdx.x / 32;
#pragma unroll
        for (int i = 0; i < own_queries; i++) {
            const float largest = over_groups<Maximum>(m[i]);
            if (threadIdx.x % 32 == owner_lane() && first_query() + i < queries)
                largests[(first_query() + i) * warps + warp] = largest;
        }
        __syncthreads(); /* all warps have written theirs */
#pragma unroll
        for (int i = 0; i < own_queries; i++) {
            const int query = first_query() + i;
            float total = l[i] * exp2f(m[i] - (query < queries ? largest_of(largests, query) : 0.0f));
#pragma unroll
            for (int by = lanes_of_query / 2; by >= spread; by /= 2) total += __shfl_xor_sync(0xffffffffu, total, by);
            total = over_groups<Sum>(total);
            if (threadIdx.x % 32 == owner_lane() && query < queries) totals[query * warps + warp] = total;
        }
#pragma unroll
        for (int i = 0; i < queries; i++) {
            const float kept = exp2f(from_lane(m[i % own_queries], owner(i, 0)) - largest_of(largests, i));
#pragma unroll
            for (int c = 0; c < chunks; c++)
                if (at(c) < head_dim) {
                    constexpr int width = wide % 4 == 0 ? 4 : 1;
#pragma unroll
                    for (int k = 0; k < wide; k += width) {
                        Floats<width> scaled;
#pragma unroll
                        for (int e = 0; e < width; e++) scaled.at[e] = sums[i][c * wide + k + e] * kept;
                        scaled.store(shared + (group() * queries + i) * head_dim + at(c) + k);
                    }
                }
        }
        __syncthreads(); /* all groups have written theirs */
        for (int item = threadIdx.x; item < queries * head_dim / width; item += threads) {
            const int i = item * width / head_dim, feature = item * width % head_dim;
            Floats<width> sum = Floats<width>::of(0.0f);
#pragma unroll
            for (int g = 0; g < groups; g++) {
                const Floats<width> more = Floats<width>::load(shared + (g * queries + i) * head_dim + feature);
#pragma unroll
                for (int k = 0; k < width; k++) sum.at[k] += more.at[k];
            }
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < warps; w++) total += totals[i * warps + w];
            made(i, feature, largest_of(largests, i), total, sum);
        }
    }

  private:
    /* What an array has for position `p`, which the compiler does not know. */
    template <class T> static __device__ __forceinline__ T of_position(const T (&array)[count], int p) {
        T found = array[0];
#pragma unroll
        for (int other = 1; other < count; other++) found = p == other ? array[other] : found;
        return found;
    }
    static __device__ __forceinline__ float from_lane(float value, int of_group) {
        return lanes == 1 ? value : __shfl_sync(0xffffffffu, value, of_group, lanes);
    }
    /* The lane of the warp that writes for the queries of this one. */
    static __device__ __forceinline__ int owner_lane() { return lane() / lanes_of_query * lanes_of_query; }
    template <class Operation> static __device__ __forceinline__ float over_groups(float value) {
#pragma unroll
        for (int by = 16; by >= lanes; by /= 2) value = Operation::of(value, __shfl_xor_sync(0xffffffffu, value, by));
        return value;
    }
    static __device__ __forceinline__ float largest_of(const float *largests, int query) {
        float largest = NOTHING_SEEN;
#pragma unroll
        for (int w = 0; w < warps; w++) largest = fmaxf(largest, largests[query * warps + w]);
        return largest;
    }
};

}  // namespace pyc
