/* Attention with an online softmax, in f32: what queries that share keys and values see of them.
 *
 * A group of `lanes` neighbours takes a position at a time, `wide` features a lane, and has a softmax of its own:
 * m the largest score so far, l the sum of exp2(score - m), sums that of exp2(score - m) * value. `merge` makes one of
 * all groups of the block, in a fixed order. Scores are in units of log 2: queries are scaled by `scale` / ln 2.
 *
 *   m' = max(m, m2), l' = l exp2(m - m') + l2 exp2(m2 - m'), sums' likewise (arXiv:2205.14135)
 */
#pragma once
#include "kv_cache.cuh"
#include "reduce.cuh"

namespace pyc {

constexpr float NOTHING_SEEN = -1e30f; /* the m of no position; finite, so that differences are */

constexpr __host__ __device__ int lanes_for(int count) {
    int lanes = 1;
    while (lanes < count && lanes < 32) lanes *= 2;
    return lanes;
}

template <int queries, int head_dim, int wide, int threads> struct Softmax {
    enum {
        lanes = lanes_for((head_dim + wide - 1) / wide),
        chunks = (head_dim + wide * lanes - 1) / (wide * lanes),
        features = chunks * wide,
        groups = threads / lanes,                   /* of the block */
        merged = groups * queries * (head_dim + 2)  /* f32 of shared memory that merging takes */
    };

    float q[queries][features], sums[queries][features], m[queries], l[queries];

    static __device__ __forceinline__ int lane() { return threadIdx.x % lanes; }
    static __device__ __forceinline__ int group() { return threadIdx.x / lanes; }
    /* Where the features of a chunk begin; behind head_dim there are none. */
    static __device__ __forceinline__ int at(int chunk) { return (chunk * lanes + lane()) * wide; }

    __device__ __forceinline__ void begin() {
#pragma unroll
        for (int i = 0; i < queries; i++) {
            m[i] = NOTHING_SEEN;
            l[i] = 0.0f;
#pragma unroll
            for (int f = 0; f < features; f++) q[i][f] = sums[i][f] = 0.0f;
        }
    }

    __device__ __forceinline__ void load_query(int i, const float *IN_TURN from, const float scale) {
#pragma unroll
        for (int c = 0; c < chunks; c++)
            if (at(c) < head_dim)
#pragma unroll
                for (int k = 0; k < wide; k++) q[i][c * wide + k] = from[at(c) + k] * scale;
    }

    /* Takes in `count` positions of the group: keys and values by chunks, scores times key_scales, values times
     * value_scales; position p counts for query i where is_seen[p] >> i & 1. All lanes of the warp take part. */
    template <int count, class Keys, class Values>
    __device__ __forceinline__ void take(const Keys &keys, const Values &values, const u32 (&is_seen)[count],
                                         const float (&key_scales)[count], const float (&value_scales)[count]) {
        float scores[queries][count];
#pragma unroll
        for (int p = 0; p < count; p++)
#pragma unroll
            for (int i = 0; i < queries; i++) {
                float dot = 0.0f;
#pragma unroll
                for (int f = 0; f < features; f++) dot = fmaf(q[i][f], keys(p, f), dot);
                dot = reduce_warp<Sum, lanes>(dot);
                scores[i][p] = is_seen[p] >> i & 1 ? dot * key_scales[p] : -__int_as_float(0x7f800000);
            }
#pragma unroll
        for (int i = 0; i < queries; i++) {
            float largest = m[i];
#pragma unroll
            for (int p = 0; p < count; p++) largest = fmaxf(largest, scores[i][p]);
            const float kept = exp2f(m[i] - largest);
            m[i] = largest;
            l[i] *= kept;
#pragma unroll
            for (int f = 0; f < features; f++) sums[i][f] *= kept;
#pragma unroll
            for (int p = 0; p < count; p++) {
                const float power = exp2f(scores[i][p] - largest), weight = power * value_scales[p];
                l[i] += power;
#pragma unroll
                for (int f = 0; f < features; f++) sums[i][f] = fmaf(weight, values(p, f), sums[i][f]);
            }
        }
    }

    /* The softmax of all groups: `made(i, feature, m, l, sum)` for each query and feature, by one thread each.
     * `shared` has room for `merged` f32. */
    template <class Made> __device__ __forceinline__ void merge(float *shared, const Made &made) {
        float *const stats = shared + groups * queries * head_dim; /* [queries, groups, 2] */
#pragma unroll
        for (int i = 0; i < queries; i++) {
#pragma unroll
            for (int c = 0; c < chunks; c++)
                if (at(c) < head_dim)
#pragma unroll
                    for (int k = 0; k < wide; k++)
                        shared[(group() * queries + i) * head_dim + at(c) + k] = sums[i][c * wide + k];
            if (lane() == 0) {
                stats[(i * groups + group()) * 2] = m[i];
                stats[(i * groups + group()) * 2 + 1] = l[i];
            }
        }
        __syncthreads(); /* all groups have written theirs */
        for (int item = threadIdx.x; item < queries * head_dim; item += threads) {
            const int i = item / head_dim, feature = item % head_dim;
            float largest = NOTHING_SEEN, total = 0.0f, sum = 0.0f;
            for (int g = 0; g < groups; g++) largest = fmaxf(largest, stats[(i * groups + g) * 2]);
            for (int g = 0; g < groups; g++) {
                const float kept = exp2f(stats[(i * groups + g) * 2] - largest);
                total = fmaf(stats[(i * groups + g) * 2 + 1], kept, total);
                sum = fmaf(shared[(g * queries + i) * head_dim + feature], kept, sum);
            }
            made(i, feature, largest, total, sum);
        }
    }
};

/* The blocks of the cache that a row attends to, of which split `split` of `splits` takes [start, stop). */
struct Blocks {
    int first, position; /* positions that are seen, the last included */
    int start, stop;
};
template <int window, int block_tokens, int splits> __device__ __forceinline__ Blocks blocks_of(int position, int split) {
    const int first = window ? max(0, position - window + 1) : 0;
    const int from = first / block_tokens, count = position / block_tokens - from + 1, each = (count + splits - 1) / splits;
    const int start = from + split * each;
    return {first, position, start, min(start + each, from + count)};
}

/* A feature of a row's head, of those of its splits, the first of them `first`, that have positions. */
template <int head_dim, int splits>
__device__ __forceinline__ float combined(long long first, int feature, const float *partial, const float *stats) {
    float largest = NOTHING_SEEN, total = 0.0f, sum = 0.0f;
    for (long long i = first; i < first + splits; i++)
        if (stats[2 * i + 1] > 0.0f) largest = fmaxf(largest, stats[2 * i]);
    for (long long i = first; i < first + splits; i++) {
        if (!(stats[2 * i + 1] > 0.0f)) continue;
        const float kept = exp2f(stats[2 * i] - largest);
        total = fmaf(stats[2 * i + 1], kept, total);
        sum = fmaf(partial[i * head_dim + feature], kept, sum);
    }
    return total > 0.0f ? sum / total : 0.0f;
}

/* result [rows, heads, head_dim]; a block has a row's head. */
template <int heads, int head_dim, int splits, int threads>
__device__ __forceinline__ void combine_splits(const int *IN_TURN positions, const float *IN_TURN partial,
                                               const float *IN_TURN stats, float *IN_TURN result) {
    const int feature = threadIdx.x;
    if (feature >= head_dim) return;
    const bool is_there = positions[blockIdx.x / heads] >= 0;
    const long long first = (long long)blockIdx.x * splits;
    result[(long long)blockIdx.x * head_dim + feature] =
        is_there ? combined<head_dim, splits>(first, feature, partial, stats) : 0.0f;
}

/* The same by the last of the blocks that count themselves, for `heads` heads of a row. Others' sums are read past L1. */
template <int head_dim, int splits, int threads>
__device__ __forceinline__ void combine_last(u32 *counter, int heads, long long first, const float *partial,
                                             const float *stats, float *result) {
    __shared__ u32 before;
    __syncthreads(); /* the block has written its sums */
    if (threadIdx.x == 0) {
        __threadfence();
        before = atomicAdd(counter, 1u);
        __threadfence();
    }
    __syncthreads(); /* all know which block this is */
    if (before != splits - 1) return;
    for (int item = threadIdx.x; item < heads * head_dim; item += threads)
        result[item] = combined<head_dim, splits>(first + item / head_dim * splits, item % head_dim, partial, stats);
    if (threadIdx.x == 0) *counter = 0;
}

/* A block has a split of the positions that a row sees, and `queries` query heads of one key/value head. Where there
 * are several splits, `partial` [rows, heads, splits, head_dim] and `stats` [rows, heads, splits, 2] get sums, m and l,
 * of which l is 0 where the split has no positions, and then there are no sums. Rows beside one of the same sequence are
 * left to prompt_attention where that `has_prompts`.
 *
 * With `counters` u32 [rows, gridDim.y], zeros before and after, the last block of a row's head combines all splits. */
template <class Kind, int rows, int heads, int kv_heads, int head_dim, int window, int block_tokens, int table_blocks,
          int splits, bool has_prompts, int queries, int wide, int threads>
__device__ __forceinline__ void decode_attention(const float *IN_TURN q, const int *IN_TURN positions,
                                                 const int *IN_TURN sequences, const int *IN_TURN block_table,
                                                 const u8 *IN_TURN cache, float *IN_TURN result,
                                                 float *IN_TURN partial, float *IN_TURN stats,
                                                 u32 *IN_TURN counters, const float scale) {
    typedef Cache<Kind, kv_heads, head_dim, block_tokens> Place;
    typedef Softmax<queries, head_dim, wide, threads> State;
    constexpr int group = heads / kv_heads, parts = (group + queries - 1) / queries;
    constexpr int warps = threads / 32, slots = block_tokens / warps, at_once = 32 / State::lanes;
    constexpr int count = at_once >= slots ? 1 : slots / at_once < 4 ? slots / at_once : 4;
    __shared__ float shared[State::merged];
    const int split = blockIdx.x, kv_head = blockIdx.y / parts, part = blockIdx.y % parts, row = blockIdx.z;
    const int head = kv_head * group + part * queries, used = min(queries, group - part * queries);
    const int position = positions[row];
    float *const to = result + ((long long)row * heads + head) * head_dim;
    if (position < 0) {
        if (splits == 1 || (counters && split == 0))
            for (int item = threadIdx.x; item < used * head_dim; item += threads) to[item] = 0.0f;
        return;
    }
    if (has_prompts) {
        const int sequence = sequences[row];
        if (row > 0 && positions[row - 1] >= 0 && sequences[row - 1] == sequence) return;
        if (row + 1 < rows && positions[row + 1] >= 0 && sequences[row + 1] == sequence) return;
    }
    const Blocks blocks = blocks_of<window, block_tokens, splits>(position, split);
    if (blocks.start >= blocks.stop) {
        if ((int)threadIdx.x < used) stats[(((long long)row * heads + head + threadIdx.x) * splits + split) * 2 + 1] = 0.0f;
        if (counters)
            combine_last<head_dim, splits, threads>(counters + row * gridDim.y + blockIdx.y, used,
                                                    ((long long)row * heads + head) * splits, partial, stats, to);
        return;
    }
    State state;
    state.begin();
#pragma unroll
    for (int i = 0; i < queries; i++)
        if (i < used) state.load_query(i, q + ((long long)row * heads + head + i) * head_dim, scale);
    const int *const table = block_table + (long long)sequences[row] * table_blocks;
    const int warp = threadIdx.x / 32, own = State::group() % at_once;
    for (int block = blocks.start; block < blocks.stop; block++) {
        const u8 *const keys = cache + Place::keys_at(table[block], kv_head), *const values = keys + Place::values_after;
#pragma unroll
        for (int i = 0; i < slots; i += at_once * count) {
            Words<wide * Kind::bytes> key_words[count][State::chunks], value_words[count][State::chunks];
            float key_scales[count], value_scales[count];
            u32 is_seen[count];
#pragma unroll
            for (int p = 0; p < count; p++) {
                const int inside = i + p * at_once + own, slot = warp * slots + inside;
                const int here = block * block_tokens + slot;
                is_seen[p] = inside < slots && here >= blocks.first && here <= position ? ~0u : 0u;
                key_scales[p] = is_seen[p] ? Place::scale(keys, slot) : 0.0f;
                value_scales[p] = is_seen[p] ? Place::scale(values, slot) : 0.0f;
#pragma unroll
                for (int c = 0; c < State::chunks; c++) {
                    key_words[p][c] = value_words[p][c] = {};
                    if (!is_seen[p] || State::at(c) >= head_dim) continue;
                    const long long offset = ((long long)slot * head_dim + State::at(c)) * Kind::bytes;
                    key_words[p][c] = Words<wide * Kind::bytes>::load(keys + offset);
                    value_words[p][c] = Words<wide * Kind::bytes>::load(values + offset);
                }
            }
            state.take([&](int p, int f) { return number_of<Kind>(key_words[p][f / wide], f % wide); },
                       [&](int p, int f) { return number_of<Kind>(value_words[p][f / wide], f % wide); }, is_seen,
                       key_scales, value_scales);
        }
    }
    state.merge(shared, [&](int i, int feature, float m, float l, float sum) {
        if (i >= used) return;
        if (splits == 1) {
            to[i * head_dim + feature] = sum / l;
            return;
        }
        const long long place = ((long long)row * heads + head + i) * splits + split;
        partial[place * head_dim + feature] = sum;
        if (feature == 0) {
            stats[2 * place] = m;
            stats[2 * place + 1] = l;
        }
    });
    if (splits > 1 && counters)
        combine_last<head_dim, splits, threads>(counters + row * gridDim.y + blockIdx.y, used,
                                                ((long long)row * heads + head) * splits, partial, stats, to);
}

/* Rows q | k | v; each row attends to rows [start, end), padding (start >= end) to none. A block has `queries` rows and a
 * head, and goes through all rows that any of them sees. */
template <int rows, int heads, int head_dim, int queries, int wide, int threads>
__device__ __forceinline__ void span_attention(const float *IN_TURN qkv, const int *IN_TURN starts,
                                               const int *IN_TURN ends, float *IN_TURN result,
                                               const float scale) {
    typedef Softmax<queries, head_dim, wide, threads> State;
    constexpr int stride = 3 * heads * head_dim, count = 2;
    __shared__ float shared[State::merged];
    const int head = blockIdx.x, first_row = blockIdx.y * queries;
    State state;
    state.begin();
    int from[queries], to[queries], least = rows, most = 0;
#pragma unroll
    for (int i = 0; i < queries; i++) {
        const int row = min(first_row + i, rows - 1);
        from[i] = starts[row], to[i] = ends[row];
        if (from[i] < to[i]) least = min(least, from[i]), most = max(most, to[i]);
        state.load_query(i, qkv + (long long)row * stride + head * head_dim, scale);
    }
    const float *const keys = qkv + (heads + head) * head_dim, *const values = keys + heads * head_dim;
    for (int base = least; base < most; base += State::groups * count) {
        Floats<wide> k[count][State::chunks], v[count][State::chunks];
        u32 is_seen[count];
        float ones[count];
#pragma unroll
        for (int p = 0; p < count; p++) {
            const int other = base + p * State::groups + State::group();
            is_seen[p] = 0;
            ones[p] = 1.0f;
#pragma unroll
            for (int i = 0; i < queries; i++) is_seen[p] |= (u32)(other >= from[i] && other < to[i]) << i;
#pragma unroll
            for (int c = 0; c < State::chunks; c++) {
                k[p][c] = v[p][c] = Floats<wide>::of(0.0f);
                if (!is_seen[p] || State::at(c) >= head_dim) continue;
                k[p][c] = Floats<wide>::load(keys + (long long)other * stride + State::at(c));
                v[p][c] = Floats<wide>::load(values + (long long)other * stride + State::at(c));
            }
        }
        state.take([&](int p, int f) { return k[p][f / wide].at[f % wide]; },
                   [&](int p, int f) { return v[p][f / wide].at[f % wide]; }, is_seen, ones, ones);
    }
    state.merge(shared, [&](int i, int feature, float, float l, float sum) {
        if (first_row + i < rows)
            result[((long long)(first_row + i) * heads + head) * head_dim + feature] = l > 0.0f ? sum / l : 0.0f;
    });
}

}  // namespace pyc
