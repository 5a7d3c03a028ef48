/* Attention of many rows of a sequence to its cache, by matrix instructions (FlashAttention-2, arXiv:2307.08691).
 *
 * A block has `rows_of_tile` neighbouring rows and a key/value head with all its query heads: 16 of these pairs a warp.
 * It goes through each sequence of which the tile has rows, `tile` positions at a time, while the next ones are copied.
 * Queries and weights are numbers of 16 bits, or where it `is_split` sums of two, so that results are as good as those of
 * f32.
 *
 * Rows that stand alone, the steps of sequences that generate, are left to decode_attention.
 */
#pragma once
#include "async_copy.cuh"
#include "attention.cuh"
#include "mma_half.cuh"

namespace pyc {

/* What matrix instructions multiply for a kind of cache; codes of int8 and e4m3 are numbers of bf16. */
template <class Kind> struct Multiplied { typedef PairBf16 Number; };
template <> struct Multiplied<CacheF16> { typedef PairF16 Number; };

template <class Kind, int rows, int heads, int kv_heads, int head_dim, int window, int block_tokens, int table_blocks,
          int splits, bool is_split, int tile, int warps>
struct PromptAttention {
    typedef Cache<Kind, kv_heads, head_dim, block_tokens> Place;
    typedef typename Multiplied<Kind>::Number Number;
    enum {
        group = heads / kv_heads,
        pairs = 16 * warps,
        rows_of_tile = pairs / group,
        threads = 32 * warps,
        stride = head_dim + 8, /* so that rows of a matrix are in other banks */
        query_numbers = pairs * stride,
        tile_numbers = tile * stride
    };

    u16 *queries, *rests, *keys, *values; /* of shared memory: [pairs, stride], twice if split, [tile, stride] twice */
    float *key_scales, *value_scales;     /* [tile] */
    int *positions, *sequences;           /* [rows_of_tile]; the position of a row that others do is -1 */
    int kv_head, first_row;
    float sums[head_dim / 8][4], m[2], l[2];
    int from[2], to[2]; /* positions that pairs g and g + 8 of the warp see in the sequence at hand */

    __device__ __forceinline__ int pair(int which) const { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * which; }

    /* Returns whether the tile has rows for this kernel; without any nothing more is read. */
    __device__ __forceinline__ bool begin(unsigned char *shared, const float *IN_TURN q,
                                          const int *IN_TURN all_positions, const int *IN_TURN all_sequences,
                                          const float scale) {
        queries = reinterpret_cast<u16 *>(shared);
        rests = queries + query_numbers;
        keys = rests + (is_split ? query_numbers : 0);
        values = keys + tile_numbers;
        key_scales = reinterpret_cast<float *>(values + tile_numbers);
        value_scales = key_scales + tile;
        positions = reinterpret_cast<int *>(value_scales + tile);
        sequences = positions + rows_of_tile;
        first_row = (int)(gridDim.x - 1 - blockIdx.x) * rows_of_tile; /* the last see most, so they begin first */
        kv_head = blockIdx.y;
        for (int i = threadIdx.x; i < rows_of_tile; i += threads) {
            const int row = first_row + i;
            const int position = row < rows ? all_positions[row] : -1, sequence = position < 0 ? -1 : all_sequences[row];
            const bool is_after = row > 0 && position >= 0 && all_positions[row - 1] >= 0 && all_sequences[row - 1] == sequence;
            const bool is_before =
                row + 1 < rows && position >= 0 && all_positions[row + 1] >= 0 && all_sequences[row + 1] == sequence;
            positions[i] = is_after || is_before ? position : -1;
            sequences[i] = sequence;
        }
        __syncthreads();
        bool has_rows = false;
        for (int i = 0; i < rows_of_tile; i++) has_rows |= positions[i] >= 0;
        if (!has_rows) return false;
        for (int item = threadIdx.x; item < pairs * head_dim / 2; item += threads) {
            const int i = item / (head_dim / 2), feature = item % (head_dim / 2) * 2, row = first_row + i / group;
            float2 x = make_float2(0.0f, 0.0f);
            if (i < rows_of_tile * group && row < rows)
                x = *reinterpret_cast<const float2 *>(q + ((long long)row * heads + kv_head * group + i % group) * head_dim +
                                                      feature);
            u32 rounded, rest;
            split_pair<Number>(x.x * scale, x.y * scale, rounded, rest);
            *reinterpret_cast<u32 *>(queries + i * stride + feature) = rounded;
            if (is_split) *reinterpret_cast<u32 *>(rests + i * stride + feature) = rest;
        }
#pragma unroll
        for (int n = 0; n < head_dim / 8; n++) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
        m[0] = m[1] = NOTHING_SEEN;
        l[0] = l[1] = 0.0f;
        __syncthreads();
        return true;
    }

    /* Start to copy positions [start, start + tile) of a head that begins at `head`; those outside [first, last] are
     * zeros, since a weight of 0 times what memory holds may be no number. */
    __device__ __forceinline__ void copy(u16 *numbers, float *scales, const u8 *IN_TURN head, int start, int first,
                                         int last) const {
        constexpr int chunks = head_dim * Kind::bytes / 16;
        for (int item = threadIdx.x; item < tile * chunks; item += threads) {
            const int i = item / chunks, chunk = item % chunks, here = start + i;
            const bool is_there = here >= first && here <= last;
            const u8 *const source = head + ((long long)(here % block_tokens) * chunks + chunk) * 16;
            if constexpr (Kind::has_scales) {
                Words<16> codes = {};
                if (is_there) codes = Words<16>::load(source);
                Words<16> pairs_of[2];
#pragma unroll
                for (int k = 0; k < 8; k++)
                    pairs_of[k / 4].at[k % 4] =
                        Number::pack(number_of<Kind>(codes, 2 * k), number_of<Kind>(codes, 2 * k + 1));
                u8 *const target = reinterpret_cast<u8 *>(numbers + i * stride + chunk * 16);
                pairs_of[0].store(target);
                pairs_of[1].store(target + 16);
            } else {
                copy_16(numbers + i * stride + chunk * 8, source, is_there ? 16 : 0);
            }
        }
        if constexpr (Kind::has_scales)
            for (int i = threadIdx.x; i < tile; i += threads)
                scales[i] = start + i >= first && start + i <= last ? Place::scale(head, (start + i) % block_tokens) : 0.0f;
        commit_copies();
    }

    /* scores [16, tile] of the warp's pairs. */
    __device__ __forceinline__ void score(float (&scores)[tile / 8][4]) const {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int n = 0; n < tile / 8; n++) scores[n][0] = scores[n][1] = scores[n][2] = scores[n][3] = 0.0f;
        const int query_at = (warp * 16 + lane % 16) * stride + lane / 16 * 8;
        const int key_at = (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
#pragma unroll
        for (int k = 0; k < head_dim; k += 16) {
            u32 a[4], rest[4];
            load_fragments<false>(a, queries + query_at + k);
            if (is_split) load_fragments<false>(rest, rests + query_at + k);
#pragma unroll
            for (int n = 0; n < tile / 8; n += 2) {
                u32 b[4];
                load_fragments<false>(b, keys + key_at + n * 8 * stride + k);
                const u32 left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
                if (is_split) {
                    mma(Number(), scores[n], rest, left);
                    mma(Number(), scores[n + 1], rest, right);
                }
                mma(Number(), scores[n], a, left);
                mma(Number(), scores[n + 1], a, right);
            }
        }
    }

    /* Scores become weights, and sums so far are scaled to the new largest score. */
    __device__ __forceinline__ void weigh(float (&scores)[tile / 8][4], int start) {
        const int column = threadIdx.x % 4 * 2;
        float largest[2] = {m[0], m[1]};
#pragma unroll
        for (int n = 0; n < tile / 8; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int i = n * 8 + column + k % 2, here = start + i;
                if (Kind::has_scales) scores[n][k] *= key_scales[i];
                if (here < from[k / 2] || here > to[k / 2]) scores[n][k] = -__int_as_float(0x7f800000);
                largest[k / 2] = fmaxf(largest[k / 2], scores[n][k]);
            }
#pragma unroll
        for (int which = 0; which < 2; which++) {
            largest[which] = reduce_warp<Maximum, 4>(largest[which]);
            const float kept = exp2f(m[which] - largest[which]);
            m[which] = largest[which];
            l[which] *= kept;
#pragma unroll
            for (int n = 0; n < head_dim / 8; n++) sums[n][2 * which] *= kept, sums[n][2 * which + 1] *= kept;
        }
#pragma unroll
        for (int n = 0; n < tile / 8; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                scores[n][k] = exp2f(scores[n][k] - m[k / 2]);
                l[k / 2] += scores[n][k];
            }
    }

    /* sums += weights * values. */
    __device__ __forceinline__ void add_up(float (&weights)[tile / 8][4]) {
        const int lane = threadIdx.x % 32;
        const int value_at = (lane / 8 % 2 * 8 + lane % 8) * stride + lane / 16 * 8;
#pragma unroll
        for (int k = 0; k < tile / 16; k++) {
            if (Kind::has_scales) {
#pragma unroll
                for (int j = 0; j < 8; j++)
                    weights[2 * k + j / 4][j % 4] *= value_scales[k * 16 + j / 4 * 8 + lane % 4 * 2 + j % 2];
            }
            u32 a[4], rest[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                split_pair<Number>(weights[2 * k + j / 2][j % 2 * 2], weights[2 * k + j / 2][j % 2 * 2 + 1], a[j], rest[j]);
#pragma unroll
            for (int n = 0; n < head_dim / 8; n += 2) {
                u32 b[4];
                load_fragments<true>(b, values + value_at + k * 16 * stride + n * 8);
                const u32 left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
                if (is_split) {
                    mma(Number(), sums[n], rest, left);
                    mma(Number(), sums[n + 1], rest, right);
                }
                mma(Number(), sums[n], a, left);
                mma(Number(), sums[n + 1], a, right);
            }
        }
    }

    /* The rows [start, stop) of the tile, which are of one sequence, see their split of its positions. */
    __device__ __forceinline__ void attend(int start, int stop, int split, const int *IN_TURN block_table,
                                           const u8 *IN_TURN cache) {
        int least = positions[start], most = least;
        for (int i = start + 1; i < stop; i++) least = min(least, positions[i]), most = max(most, positions[i]);
        const int first = window ? max(0, least - window + 1) : 0, first_tile = first / tile;
        const int count = most / tile - first_tile + 1, each = (count + splits - 1) / splits;
        const int begin = first_tile + split * each, end = min(begin + each, first_tile + count);
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const int i = pair(which) / group;
            const bool is_inside = i >= start && i < stop;
            to[which] = is_inside ? positions[i] : -1;
            from[which] = is_inside ? (window ? max(0, to[which] - window + 1) : 0) : 0;
        }
        const int *const table = block_table + (long long)sequences[start] * table_blocks;
        if (begin >= end) return;
        const u8 *head = cache + Place::keys_at(table[begin * tile / block_tokens], kv_head);
        copy(keys, key_scales, head, begin * tile, first, most);
        for (int at = begin; at < end; at++) {
            float scores[tile / 8][4];
            wait_for_copies<0>();
            __syncthreads(); /* keys are there, and nobody needs the values before */
            copy(values, value_scales, head + Place::values_after, at * tile, first, most);
            score(scores);
            weigh(scores, at * tile);
            wait_for_copies<0>();
            __syncthreads(); /* values are there, and nobody needs the keys */
            if (at + 1 < end) {
                head = cache + Place::keys_at(table[(at + 1) * tile / block_tokens], kv_head);
                copy(keys, key_scales, head, (at + 1) * tile, first, most);
            }
            add_up(scores);
        }
        __syncthreads();
    }

    __device__ __forceinline__ void finish(int split, float *IN_TURN result, float *IN_TURN partial,
                                           float *IN_TURN stats) {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            l[which] = reduce_warp<Sum, 4>(l[which]);
            const int i = pair(which), row = first_row + i / group;
            if (i >= rows_of_tile * group || positions[i / group] < 0) continue;
            const long long place = (long long)row * heads + kv_head * group + i % group, part = place * splits + split;
            if (splits > 1 && threadIdx.x % 4 == 0) {
                stats[2 * part] = m[which];
                stats[2 * part + 1] = l[which];
            }
            if (l[which] == 0.0f) continue;
            float *const out = (splits > 1 ? partial + part * head_dim : result + place * head_dim) + threadIdx.x % 4 * 2;
            const float share = splits > 1 ? 1.0f : 1.0f / l[which];
#pragma unroll
            for (int n = 0; n < head_dim / 8; n++)
                *reinterpret_cast<float2 *>(out + n * 8) =
                    make_float2(sums[n][2 * which] * share, sums[n][2 * which + 1] * share);
        }
    }
};

template <class Kind, int rows, int heads, int kv_heads, int head_dim, int window, int block_tokens, int table_blocks,
          int splits, bool is_split, int tile, int warps>
__device__ __forceinline__ void prompt_attention(const float *IN_TURN q, const int *IN_TURN positions,
                                                 const int *IN_TURN sequences, const int *IN_TURN block_table,
                                                 const u8 *IN_TURN cache, float *IN_TURN result,
                                                 float *IN_TURN partial, float *IN_TURN stats,
                                                 const float scale) {
    typedef PromptAttention<Kind, rows, heads, kv_heads, head_dim, window, block_tokens, table_blocks, splits, is_split,
                            tile, warps>
        Attention;
    SHARED_MEMORY(shared);
    Attention attention;
    if (!attention.begin(shared, q, positions, sequences, scale)) return;
    for (int start = 0; start < Attention::rows_of_tile;) {
        int stop = start + 1;
        if (attention.positions[start] >= 0) {
            while (stop < Attention::rows_of_tile && attention.positions[stop] >= 0 &&
                   attention.sequences[stop] == attention.sequences[start])
                stop++;
            attention.attend(start, stop, blockIdx.z, block_table, cache);
        }
        start = stop;
    }
    attention.finish(blockIdx.z, result, partial, stats);
}

}  // namespace pyc
