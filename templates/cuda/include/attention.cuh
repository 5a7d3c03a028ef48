/* Attention of few rows to a cache, and within spans of a batch, by an online softmax (softmax.cuh). */
#pragma once
#include "async_copy.cuh"
#include "softmax.cuh"

namespace pyc {

/* The positions [first, last] that a row sees, in tiles of which split `split` takes [start, stop). The first `used` of
 * the splits have tiles. */
struct Split {
    int first, last;
    int start, stop;
    int used;
};
template <int window, int tile, int splits> __device__ __forceinline__ Split split_of(int position, int split) {
    const int first = window ? max(0, position - window + 1) : 0;
    const int from = first / tile, count = position / tile - from + 1, each = (count + splits - 1) / splits;
    const int start = from + split * each;
    return {first, position, start, min(start + each, from + count), (count + each - 1) / each};
}

/* What the sums of split number `lane` of a row's head, of `used` from `first` on, count for in the result; 0 where it
 * has no positions. All lanes of the warp take part. */
__device__ __forceinline__ float share_of_split(long long first, int used, const float *stats) {
    const int lane = threadIdx.x % 32;
    float2 own = make_float2(NOTHING_SEEN, 0.0f); /* m and l */
    if (lane < used) own = *reinterpret_cast<const float2 *>(stats + 2 * (first + lane));
    const float largest = reduce_warp<Maximum>(own.y > 0.0f ? own.x : NOTHING_SEEN);
    const float kept = own.y > 0.0f ? exp2f(own.x - largest) : 0.0f, total = reduce_warp<Sum>(own.y * kept);
    return total > 0.0f ? kept / total : 0.0f;
}

/* Several splits' sums of `width` features from `feature` on, those that have a share. */
template <int head_dim, int width, int at_once> struct SplitSums {
    Floats<width> loaded[at_once];

    template <class IsThere>
    __device__ __forceinline__ void load(long long first, int feature, const float *partial, const IsThere &is_there) {
#pragma unroll
        for (int s = 0; s < at_once; s++)
            loaded[s] = is_there(s) ? Floats<width>::load(partial + (first + s) * head_dim + feature)
                                    : Floats<width>::of(0.0f);
    }
    template <class Share> __device__ __forceinline__ void add_to(Floats<width> &sum, const Share &share) const {
#pragma unroll
        for (int s = 0; s < at_once; s++)
#pragma unroll
            for (int k = 0; k < width; k++) sum.at[k] = fmaf(loaded[s].at[k], share(s), sum.at[k]);
    }
};

/* result [rows, heads, head_dim]; a block has a row's head, a thread a feature. */
template <int heads, int head_dim, int splits, int threads>
__device__ __forceinline__ void combine_splits(const int *IN_TURN positions, const float *IN_TURN partial,
                                               const float *IN_TURN stats, float *IN_TURN result) {
    constexpr int at_once = 8;
    static_assert(splits <= 32, "a lane for each");
    const int feature = threadIdx.x;
    const long long first = (long long)blockIdx.x * splits;
    const bool is_there = positions[blockIdx.x / heads] >= 0;
    const float own = share_of_split(first, is_there ? splits : 0, stats);
    Floats<1> sum = Floats<1>::of(0.0f);
#pragma unroll
    for (int s = 0; s < splits; s += at_once) {
        float shares[at_once];
#pragma unroll
        for (int i = 0; i < at_once; i++) shares[i] = s + i < splits ? __shfl_sync(0xffffffffu, own, s + i) : 0.0f;
        SplitSums<head_dim, 1, at_once> sums;
        sums.load(first + s, feature, partial, [&](int i) { return feature < head_dim && shares[i] > 0.0f; });
        sums.add_to(sum, [&](int i) { return shares[i]; });
    }
    if (feature < head_dim) result[(long long)blockIdx.x * head_dim + feature] = sum.at[0];
}

/* The same by the last of `used` blocks that count themselves, for `heads` heads of a row. Others' sums are read past L1. */
template <int head_dim, int splits, int most_heads, int threads>
__device__ __forceinline__ void combine_last(u32 *counter, int heads, int used, long long first, const float *partial,
                                             const float *stats, float *result) {
    constexpr int width = vector_of(head_dim), at_once = 8;
    static_assert(splits <= 32, "a lane for each");
    __shared__ u32 before;
    __shared__ float shares[most_heads][splits];
    __syncthreads(); /* the block has written its sums */
    if (threadIdx.x == 0) {
        __threadfence();
        before = atomicAdd(counter, 1u);
        __threadfence();
    }
    __syncthreads(); /* all know which block this is */
    if (before != used - 1) return;
    SplitSums<head_dim, width, at_once> sums;
    const int begin = threadIdx.x * width;
    const auto load = [&](int item, int s) {
        sums.load(first + item / head_dim * splits + s, item % head_dim, partial,
                  [&](int i) { return item < heads * head_dim && s + i < used; });
    };
    load(begin, 0);
    for (int i = threadIdx.x / 32; i < heads; i += threads / 32) {
        const float share = share_of_split(first + i * splits, used, stats);
        if (threadIdx.x % 32 < splits) shares[i][threadIdx.x % 32] = share;
    }
    __syncthreads(); /* all shares are there */
    for (int item = begin; item < heads * head_dim; item += threads * width) {
        Floats<width> sum = Floats<width>::of(0.0f);
        for (int s = 0; s < used; s += at_once) {
            if (item > begin || s > 0) load(item, s);
            sums.add_to(sum, [&](int i) { return shares[item / head_dim][min(s + i, splits - 1)]; });
        }
        sum.store(result + item);
    }
    if (threadIdx.x == 0) *counter = 0;
}

/* How decode_attention divides the positions that a row sees. A thread copies ahead what it takes of keys and values, to
 * places of shared memory that are its own, so that it waits for no other thread. */
template <class Kind, int queries, int head_dim, int wide, int threads, int count, int stages> struct DecodeTiles {
    typedef Softmax<queries, head_dim, wide, threads, count> State;
    typedef Words<wide * Kind::bytes> Chunk;
    enum {
        tile = State::groups * count, /* positions that a block takes at a time */
        word_bytes = wide * Kind::bytes,
        chunks = count * State::chunks,
        values_at = chunks * threads * word_bytes,
        scales_at = 2 * values_at,
        stage_bytes = scales_at + (Kind::has_scales ? 2 * count * threads * 4 : 0),
        merged_bytes = State::merged * 4,
        bytes = stages * stage_bytes > merged_bytes ? stages * stage_bytes : merged_bytes
    };

    static __device__ __forceinline__ u8 *place(u8 *stage, int chunk) {
        return stage + (chunk * threads + threadIdx.x) * word_bytes;
    }
    static __device__ __forceinline__ float *scale_place(u8 *stage, int which) {
        return reinterpret_cast<float *>(stage + scales_at) + which * threads + threadIdx.x;
    }

    /* Start to copy a chunk; zeros where it is not there, and then nothing is read. */
    static __device__ __forceinline__ void copy(u8 *to, const u8 *from, bool is_there) {
        if constexpr (word_bytes >= 4) copy_async<word_bytes>(to, from, is_there ? word_bytes : 0);
        else {
            Chunk loaded = {};
            if (is_there) loaded = Chunk::load(from);
            loaded.store(to);
        }
    }
};

/* Rows whose keys and values another launch has appended, and queries f32 [rows, heads, head_dim]. */
template <int head_dim> struct AppendedRows {
    enum { is_made_here = 0 };
    typedef const u8 CacheBytes;
    const float *q;
    __device__ __forceinline__ AppendedRows(const float *q) : q(q) {}

    /* Query `query` of all rows', which is number `i` of the block's. */
    __device__ __forceinline__ const float *query(long long query, int) const { return q + query * head_dim; }
};

/* A block has a split of the positions that a row sees, and `queries` query heads of one key/value head. Where there
 * are several splits, `partial` [rows, heads, splits, head_dim] and `stats` [rows, heads, splits, 2] get sums, m and l,
 * of which l is 0 where the split has no positions, and then there are no sums. Rows beside one of the same sequence are
 * left to prompt_attention where that `has_prompts`.
 *
 * With `counters` u32 [rows, gridDim.y], zeros before and after, the last block of a row's head combines all splits that
 * have positions, and others do nothing. */
template <class Kind, int rows, int heads, int kv_heads, int head_dim, int window, int block_tokens, int table_blocks,
          int splits, bool has_prompts, int queries, int wide, int threads, int count, int stages,
          class Source>
__device__ __forceinline__ void decode_attention(Source source, const int *IN_TURN positions,
                                                 const int *IN_TURN sequences, const int *IN_TURN block_table,
                                                 typename Source::CacheBytes *IN_TURN cache, float *IN_TURN result,
                                                 float *IN_TURN partial, float *IN_TURN stats,
                                                 u32 *IN_TURN counters, const float scale) {
    typedef Cache<Kind, kv_heads, head_dim, block_tokens> Place;
    typedef DecodeTiles<Kind, queries, head_dim, wide, threads, count, stages> Tiles;
    typedef typename Tiles::State State;
    typedef typename Tiles::Chunk Chunk;
    constexpr int group = heads / kv_heads, parts = (group + queries - 1) / queries, tile = Tiles::tile;
    __shared__ uint4 memory[(Tiles::bytes + 15) / 16];
    u8 *const shared = reinterpret_cast<u8 *>(memory);
    const int split = blockIdx.x, kv_head = blockIdx.y / parts, part = blockIdx.y % parts, row = blockIdx.z;
    const int head = kv_head * group + part * queries, used = min(queries, group - part * queries);
    const int position = positions[row], sequence = sequences[row];
    float *const to = result + ((long long)row * heads + head) * head_dim;
    const long long first_place = ((long long)row * heads + head) * splits;
    const Split mine = split_of<window, tile, splits>(position, split);
    bool is_left = false; /* to prompt_attention */
    if (has_prompts && position >= 0)
        is_left = (row > 0 && positions[row - 1] >= 0 && sequences[row - 1] == sequence) ||
                  (row + 1 < rows && positions[row + 1] >= 0 && sequences[row + 1] == sequence);
    const bool has_tiles = position >= 0 && !is_left && split < mine.used;
    const int *const table = block_table + (long long)sequence * table_blocks;
    /* The block of the cache that has a position; those of a tile are in one if `is_whole`. */
    constexpr bool is_whole = block_tokens % tile == 0;
    const auto block_of = [&](int here) { return table[min(here, position) / block_tokens]; };
    int block = is_whole && has_tiles ? block_of(mine.start * tile) : 0;

    const auto is_seen_at = [&](int here) { return here >= mine.first && here <= mine.last; };
    const auto is_made_at = [&](int here) { return Source::is_made_here && here == position; };
    const auto position_at = [&](int at, int p) { return at * tile + p * State::groups + State::group(); };
    const auto load = [&](int at) {
        if (at < mine.stop) {
            u8 *const stage = shared + (at - mine.start) % stages * Tiles::stage_bytes;
#pragma unroll
            for (int p = 0; p < count; p++) {
                const int here = position_at(at, p), slot = here % block_tokens;
                const bool is_seen = is_seen_at(here) && !is_made_at(here);
                const u8 *const keys = cache + Place::keys_at(is_whole ? block : block_of(here), kv_head);
#pragma unroll
                for (int c = 0; c < State::chunks; c++) {
                    const long long offset = ((long long)slot * head_dim + State::at(c)) * Kind::bytes;
                    const bool is_there = is_seen && State::at(c) < head_dim;
                    const u8 *const from = is_there ? keys + offset : cache;
                    u8 *const place = Tiles::place(stage, p * State::chunks + c);
                    Tiles::copy(place, from, is_there);
                    Tiles::copy(place + Tiles::values_at, is_there ? from + Place::values_after : cache, is_there);
                }
                if constexpr (Kind::has_scales) {
                    const u8 *const from = is_seen ? keys + Place::scales_at + 4 * slot : cache;
                    copy_4(Tiles::scale_place(stage, 2 * p), from, is_seen ? 4 : 0);
                    const u8 *const of_values = is_seen ? from + Place::values_after : cache;
                    copy_4(Tiles::scale_place(stage, 2 * p + 1), of_values, is_seen ? 4 : 0);
                }
            }
            if (is_whole) block = block_of((at + 1) * tile);
        }
        commit_copies();
    };
    if (has_tiles)
#pragma unroll
        for (int ahead = 0; ahead < stages - 1; ahead++) load(mine.start + ahead);
    if constexpr (Source::is_made_here) wait_for_earlier_launches();
    if (!has_tiles) {
        if (position < 0 && (splits == 1 || (counters && split == 0)))
            for (int item = threadIdx.x; item < used * head_dim; item += threads) to[item] = 0.0f;
        if (position >= 0 && !is_left && !counters && (int)threadIdx.x < used)
            *reinterpret_cast<float2 *>(stats + 2 * (first_place + threadIdx.x * splits + split)) =
                make_float2(NOTHING_SEEN, 0.0f);
        return;
    }
    if constexpr (Source::is_made_here) {
        const bool has_last = mine.stop * tile > position;
        u8 *const keys = cache + Place::keys_at(block_of(position), kv_head);
        source.make(head, used, kv_head, has_last, has_last && part == 0 ? keys : nullptr, position % block_tokens);
    }
    State state;
    state.begin();
#pragma unroll
    for (int i = 0; i < queries; i++)
        if (i < used) state.load_query(i, source.query((long long)row * heads + head + i, i), scale);
#pragma unroll 1
    for (int at = mine.start; at < mine.stop; at++) {
        load(at + stages - 1);
        wait_for_copies<stages - 1>();
        u8 *const stage = shared + (at - mine.start) % stages * Tiles::stage_bytes;
        Chunk keys[count][State::chunks], values[count][State::chunks];
        float key_scales[count], value_scales[count];
        u32 is_seen[count];
#pragma unroll
        for (int p = 0; p < count; p++) {
            const bool is_made = is_made_at(position_at(at, p));
            is_seen[p] = is_seen_at(position_at(at, p)) ? ~0u : 0u;
            key_scales[p] = value_scales[p] = 1.0f;
            if constexpr (Kind::has_scales)
                key_scales[p] = *Tiles::scale_place(stage, 2 * p), value_scales[p] = *Tiles::scale_place(stage, 2 * p + 1);
#pragma unroll
            for (int c = 0; c < State::chunks; c++) {
                const u8 *const place = Tiles::place(stage, p * State::chunks + c);
                keys[p][c] = Chunk::load(place);
                values[p][c] = Chunk::load(place + Tiles::values_at);
            }
            if constexpr (Source::is_made_here)
                if (is_made) {
#pragma unroll
                    for (int c = 0; c < State::chunks; c++)
                        if (State::at(c) < head_dim) {
                            keys[p][c] = Chunk::load(source.key(State::at(c)));
                            values[p][c] = Chunk::load(source.value(State::at(c)));
                        }
                    key_scales[p] = source.key_scale(), value_scales[p] = source.value_scale();
                }
        }
        state.take([&](int p, int f) { return number_of<Kind>(keys[p][f / wide], f % wide); },
                   [&](int p, int f) { return number_of<Kind>(values[p][f / wide], f % wide); }, is_seen, key_scales,
                   value_scales);
    }
    wait_for_copies<0>();
    __syncthreads(); /* nobody needs the copies, in whose place are sums now */
    state.merge(reinterpret_cast<float *>(memory), [&](int i, int feature, float m, float l, Floats<State::width> sum) {
        if (i >= used) return;
        if (splits == 1) {
#pragma unroll
            for (int k = 0; k < State::width; k++) sum.at[k] /= l;
            sum.store(to + i * head_dim + feature);
            return;
        }
        const long long place = first_place + i * splits + split;
        sum.store(partial + place * head_dim + feature);
        if (feature == 0) *reinterpret_cast<float2 *>(stats + 2 * place) = make_float2(m, l);
    });
    if (splits > 1 && counters)
        combine_last<head_dim, splits, queries, threads>(counters + row * gridDim.y + blockIdx.y, used, mine.used,
                                                         first_place, partial, stats, to);
}

/* Rows q | k | v; each row attends to rows [start, end), padding (start >= end) to none. A block has `queries` rows and a
 * head, and goes through all rows that any of them sees. */
template <int rows, int heads, int head_dim, int queries, int wide, int threads>
__device__ __forceinline__ void span_attention(const float *IN_TURN qkv, const int *IN_TURN starts,
                                               const int *IN_TURN ends, float *IN_TURN result,
                                               const float scale) {
    constexpr int stride = 3 * heads * head_dim, count = 2;
    typedef Softmax<queries, head_dim, wide, threads, count> State;
    __shared__ float4 shared[(State::merged + 3) / 4];
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
    state.merge(reinterpret_cast<float *>(shared), [&](int i, int feature, float, float l, Floats<State::width> sum) {
        if (first_row + i >= rows) return;
#pragma unroll
        for (int k = 0; k < State::width; k++) sum.at[k] = l > 0.0f ? sum.at[k] / l : 0.0f;
        sum.store(result + ((long long)(first_row + i) * heads + head) * head_dim + feature);
    });
}

}  // namespace pyc
