/* A step of one sequence: the row's heads are made by the blocks that attend, so that nothing waits for a launch that appends.
 *
 * Each block normalizes and rotates the queries that it has. That of the last positions makes the key and the value, too,
 * attends to them in shared memory, and writes them to the cache, where no block reads them.
 */
#pragma once
#include "attention.cuh"
#include "qkv_append.cuh"

namespace pyc {

template <class Kind, int heads, int kv_heads, int head_dim, int rotary, int block_tokens, int queries, int width, int lanes,
          int threads>
struct MadeRow {
    enum { is_made_here = 1, head_bytes = head_dim * Kind::bytes };
    typedef u8 CacheBytes;
    typedef Cache<Kind, kv_heads, head_dim, block_tokens> Place;

    /* In shared memory. */
    struct Made {
        float4 queries_made[queries][(head_dim + 3) / 4];
        uint4 numbers[2][(head_bytes + 15) / 16]; /* of the key and the value */
        float scales[2];
    };

    const float *qkv, *angles, *q_gain, *k_gain;
    float epsilon;
    Made &made;

    /* Make `used` queries from `first` on, and with `has_last` the key and the value, which go to `keys` and what belongs
     * to them unless that is null. */
    __device__ __forceinline__ void make(int first, int used, int kv_head, bool has_last, u8 *keys, int slot) {
        const int items = used + (has_last ? 2 : 0);
        for (int round = 0; round < items; round += threads / lanes) {
            const int item = round + (int)threadIdx.x / lanes, which = item - used; /* of the key and the value */
            const bool is_query = item < used, is_value = which > 0;
            const int h = is_query ? first + item : heads + (is_value ? kv_heads : 0) + kv_head;
            Head<head_dim, rotary, width, lanes> head;
            head.make(qkv + h * head_dim, is_query ? q_gain : is_value ? nullptr : k_gain, is_value ? nullptr : angles,
                      q_gain || k_gain, epsilon);
            float reciprocal;
            const float scale = head.template scale<Kind>(reciprocal);
            if (item >= items) continue;
            if (is_query) {
                head.store(reinterpret_cast<float *>(made.queries_made[item]));
                continue;
            }
            head.template store_numbers<Kind>(reinterpret_cast<u8 *>(made.numbers[which]), reciprocal);
            if (threadIdx.x % lanes == 0) made.scales[which] = scale;
            if (!keys) continue;
            u8 *const to = keys + (is_value ? Place::values_after : 0);
            head.template store_numbers<Kind>(to + (long long)slot * head_bytes, reciprocal);
            if (Kind::has_scales && threadIdx.x % lanes == 0)
                *reinterpret_cast<float *>(to + Place::scales_at + 4 * slot) = scale;
        }
        __syncthreads(); /* all heads are there */
    }

    __device__ __forceinline__ const float *query(long long, int i) const {
        return reinterpret_cast<const float *>(made.queries_made[i]);
    }
    __device__ __forceinline__ const u8 *key(int feature) const {
        return reinterpret_cast<const u8 *>(made.numbers[0]) + feature * Kind::bytes;
    }
    __device__ __forceinline__ const u8 *value(int feature) const {
        return reinterpret_cast<const u8 *>(made.numbers[1]) + feature * Kind::bytes;
    }
    __device__ __forceinline__ float key_scale() const { return made.scales[0]; }
    __device__ __forceinline__ float value_scale() const { return made.scales[1]; }
};

/* The numbers from `rotary` to `block_tokens` and from `splits` to `stages` are those of qkv_append and decode_attention. */
template <class Kind, int heads, int kv_heads, int head_dim, int rotary, int window, int block_tokens, int table_blocks,
          int splits, int queries, int wide, int width, int lanes, int threads, int count, int stages>
__device__ __forceinline__ void step_attention(const float *IN_TURN qkv, const float *IN_TURN angles,
                                               const int *IN_TURN positions, const int *IN_TURN sequences,
                                               const int *IN_TURN block_table, const float *IN_TURN q_gain,
                                               const float *IN_TURN k_gain, u8 *IN_TURN cache, float *IN_TURN result,
                                               float *IN_TURN partial, float *IN_TURN stats, u32 *IN_TURN counters,
                                               const float epsilon, const float scale) {
    typedef MadeRow<Kind, heads, kv_heads, head_dim, rotary, block_tokens, queries, width, lanes, threads> Row;
    __shared__ typename Row::Made made;
    decode_attention<Kind, 1, heads, kv_heads, head_dim, window, block_tokens, table_blocks, splits, false, queries, wide,
                     threads, count, stages>(Row{qkv, angles, q_gain, k_gain, epsilon, made}, positions, sequences,
                                             block_table, cache, result, partial, stats, counters, scale);
}

}  // namespace pyc
