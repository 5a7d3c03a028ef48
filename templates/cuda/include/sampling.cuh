/* The next token of each row of logits, as runtime/generation/sampling.py chooses it.
 *
 *   penalties, then at temperature 0 the first of the largest; else with weights w = exp((z - max z) / T):
 *   top-k   z >= the k-th largest               top-p   the fewest largest w that reach p of the mass
 *   min-p   w >= m * max w                      draw    inverse CDF over what is left, by rising id
 *
 * A block has a row; each of its warps has a stretch of neighbouring ids. The borders of top-k and top-p are found by
 * bisection with PIVOTS pivots at once: how many, or how much, is not below each. After two rounds warps keep only what
 * may be left, in their part of `ids` and `values`, so further rounds read little. All sums are in a fixed order.
 */
#pragma once
#include "reduce.cuh"

namespace pyc {

enum { PIVOTS = 7, SETTINGS = 8, IN_PROMPT = 1 << 30 };

/* Of a row, as f32: 1 / T (0: the largest), k (0: all), p (1: all), m, repetition, frequency, presence, unused. */
struct Sampling {
    float inverse_temperature, k, p, m, repetition, frequency, presence;
    static __device__ __forceinline__ Sampling load(const float *IN_TURN from) {
        return {from[0], from[1], from[2], from[3], from[4], from[5], from[6]};
    }
    __device__ __forceinline__ bool penalizes() const {
        return repetition != 1.0f || frequency != 0.0f || presence != 0.0f;
    }
    /* A logit of a token that `count` says of: how often it is in the output, and IN_PROMPT. */
    __device__ __forceinline__ float penalized(float value, int count) const {
        if (!count) return value;
        value = value > 0.0f ? __fdiv_rn(value, repetition) : __fmul_rn(value, repetition);
        const int times = count & ~IN_PROMPT;
        if (times) value = __fsub_rn(value, __fadd_rn(__fmul_rn(frequency, (float)times), presence));
        return value;
    }
};

/* Order of f32 as that of u32; -0 is 0. */
__device__ __forceinline__ u32 key_of(float value) {
    const u32 bits = __float_as_uint(value + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* The larger, of equal ones the lower id. What is no number is larger than all. */
__device__ __forceinline__ void keep_larger(float &value, int &id, float other, int other_id) {
    const bool is_larger = other > value || (other != other && value == value) ||
                           ((other == value || (other != other && value != value)) && other_id < id);
    if (is_larger) value = other, id = other_id;
}

template <int warps> __device__ __forceinline__ void largest_of_block(float &value, int &id, float *values, int *ids) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int by = 16; by > 0; by /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, by);
        keep_larger(value, id, other, __shfl_xor_sync(0xffffffffu, id, by));
    }
    if (lane == 0) values[threadIdx.x / 32] = value, ids[threadIdx.x / 32] = id;
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < warps; i++) keep_larger(value, id, values[i], ids[i]);
}

/* Stretches of a row's largest values: best [rows, chunks] and where it is, for greedy_rows. */
template <int vocabulary, int chunks, int threads>
__device__ __forceinline__ void greedy_chunks(const float *IN_TURN logits, float *IN_TURN best,
                                              int *IN_TURN best_ids) {
    __shared__ float values[threads / 32];
    __shared__ int ids[threads / 32];
    constexpr int each = (vocabulary + chunks - 1) / chunks;
    const float *const row = logits + (long long)blockIdx.y * vocabulary;
    const int stop = min((int)(blockIdx.x + 1) * each, vocabulary);
    float value = -__int_as_float(0x7f800000);
    int id = vocabulary;
#pragma unroll 4
    for (int i = blockIdx.x * each + threadIdx.x; i < stop; i += threads) keep_larger(value, id, row[i], i);
    largest_of_block<threads / 32>(value, id, values, ids);
    if (threadIdx.x == 0) best[blockIdx.y * chunks + blockIdx.x] = value, best_ids[blockIdx.y * chunks + blockIdx.x] = id;
}

/* tokens [rows]: -1 where the largest logit is not finite. A warp has a row. */
template <int vocabulary, int chunks>
__device__ __forceinline__ void greedy_rows(const float *IN_TURN best, const int *IN_TURN best_ids,
                                            int *IN_TURN tokens) {
    float value = -__int_as_float(0x7f800000);
    int id = vocabulary;
    for (int i = threadIdx.x; i < chunks; i += 32)
        keep_larger(value, id, best[blockIdx.x * chunks + i], best_ids[blockIdx.x * chunks + i]);
#pragma unroll
    for (int by = 16; by > 0; by /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, by);
        keep_larger(value, id, other, __shfl_xor_sync(0xffffffffu, id, by));
    }
    if (threadIdx.x == 0) tokens[blockIdx.x] = fabsf(value) < __int_as_float(0x7f800000) ? id : -1;
}

/* What the next step reads, of the tokens of this one: tokens become ids, positions go on, and the row `step` of history
 * [steps, rows] is the tokens. A row without a token is padding from then on. One block. */
template <int rows, int steps, int threads>
__device__ __forceinline__ void advance(const int *IN_TURN tokens, int *IN_TURN ids, int *IN_TURN positions,
                                        int *IN_TURN step, int *IN_TURN history) {
    const int now = *step;
    for (int row = threadIdx.x; row < rows; row += threads) {
        const int token = positions[row] < 0 ? -1 : tokens[row];
        ids[row] = max(token, 0);
        positions[row] = token < 0 ? -1 : positions[row] + 1;
        if (now >= 0 && now < steps) history[now * rows + row] = token;
    }
    __syncthreads(); /* all have read the step */
    if (threadIdx.x == 0) *step = now + 1;
}

template <int vocabulary, int threads> struct Sampler {
    enum {
        warps = threads / 32,
        stretch = ((vocabulary + warps - 1) / warps + 31) / 32 * 32 /* ids of a warp */
    };
    struct Shared {
        float values[warps], sums[PIVOTS][warps];
        int ids[warps], equals[warps];
    };

    Shared &shared;
    const float *values; /* of the row: all, or what is left */
    const int *ids;      /* null: all */
    float *kept_values;
    int *kept_ids;
    int first, size; /* of the warp's stretch */
    float inverse_temperature, largest;

    __device__ __forceinline__ int id_of(int i) const { return ids ? ids[first + i] : first + i; }
    __device__ __forceinline__ float weight_of(float value) const {
        return expf(__fmul_rn(__fsub_rn(value, largest), inverse_temperature));
    }

    /* The largest key at and above which what `amount(value, key)` says adds up to `target` or more; `above` is what lies
     * above it. `key(value)` orders; the first pivots are given, falling. Those below are dropped. */
    template <class Key, class Amount, class Between>
    __device__ __forceinline__ u32 bisect(const float target, u32 low, u32 high, u32 (&pivots)[PIVOTS], float &above,
                                          const Key &key, const Amount &amount, const Between &between) {
        above = 0.0f;
        for (int round = 0; high - low > 1; round++) {
            float sums[PIVOTS];
            if (round > 0) {
#pragma unroll
                for (int p = 0; p < PIVOTS; p++)
                    pivots[p] = min(max(between(round, low, high, PIVOTS - p), low), high - 1);
            }
#pragma unroll
            for (int p = 0; p < PIVOTS; p++) sums[p] = 0.0f;
#pragma unroll 2
            for (int i = threadIdx.x % 32; i < size; i += 32) {
                const float value = values[first + i], more = amount(value);
                const u32 own = key(value);
#pragma unroll
                for (int p = 0; p < PIVOTS; p++) sums[p] += own >= pivots[p] ? more : 0.0f;
            }
            __syncthreads(); /* what the round before added up has been read */
#pragma unroll
            for (int p = 0; p < PIVOTS; p++) {
                sums[p] = reduce_warp<Sum>(sums[p]);
                if (threadIdx.x % 32 == 0) shared.sums[p][threadIdx.x / 32] = sums[p];
            }
            __syncthreads(); /* sums of all warps are there */
            u32 new_low = low, new_high = high;
#pragma unroll
            for (int p = 0; p < PIVOTS; p++) {
                const int lane = threadIdx.x % 32;
                const float sum = reduce_warp<Sum>(lane < warps ? shared.sums[p][lane] : 0.0f);
                if (sum >= target) new_low = max(new_low, pivots[p]);
                else if (pivots[p] < new_high && pivots[p] > low) new_high = pivots[p], above = sum;
            }
            if (new_low >= new_high) new_high = new_low + 1; /* rounded sums may contradict each other */
            low = new_low, high = new_high;
            if (round == 1) drop(low, key);
        }
        drop(low, key);
        return low;
    }

    /* Keep what is at or above a key. A warp writes no farther than it has read. */
    template <class Key> __device__ __forceinline__ void drop(const u32 low, const Key &key) {
        int kept = 0;
#pragma unroll 1
        for (int start = 0; start < size; start += 32) {
            const int i = start + threadIdx.x % 32;
            const float value = i < size ? values[first + i] : 0.0f;
            const int id = i < size ? id_of(i) : 0;
            const u32 chosen = __ballot_sync(0xffffffffu, i < size && key(value) >= low);
            __syncwarp(); /* all have read */
            if (chosen >> threadIdx.x % 32 & 1) {
                const int place = first + kept + __popc(chosen & ((1u << threadIdx.x % 32) - 1));
                kept_values[place] = value;
                kept_ids[place] = id;
            }
            kept += __popc(chosen);
            __syncwarp();
        }
        values = kept_values, ids = kept_ids, size = kept;
    }

    /* The sum over the block of what each warp has; those of the warps stay in shared.values. */
    __device__ __forceinline__ float add_up(float sum) {
        sum = reduce_warp<Sum>(sum);
        __syncthreads();
        if (threadIdx.x % 32 == 0) shared.values[threadIdx.x / 32] = sum;
        __syncthreads();
        return reduce_warp<Sum>(threadIdx.x % 32 < warps ? shared.values[threadIdx.x % 32] : 0.0f);
    }

    __device__ __forceinline__ void top_k(const float k) {
        u32 pivots[PIVOTS];
#pragma unroll
        for (int p = 0; p < PIVOTS; p++) pivots[p] = key_of(largest - (float)(1 << p) * 0.5f);
        float above;
        bisect(k, 0u, key_of(largest) + 1, pivots, above, [](float value) { return key_of(value); },
               [](float) { return 1.0f; }, [](int round, u32 low, u32 high, int eighth) {
                   const float from = value_of(low), to = value_of(high - 1);
                   if (round > 3 || !(from > -1e30f)) return low + (u32)((unsigned long long)(high - low) * eighth / 8);
                   return key_of(from + (to - from) * (float)eighth * 0.125f);
               });
    }

    /* What top-p leaves: the border's weight, and how many of that weight. */
    __device__ __forceinline__ u32 top_p(const float p, int &equals) {
        float mass = 0.0f, above;
#pragma unroll 4
        for (int i = threadIdx.x % 32; i < size; i += 32) mass += weight_of(values[first + i]);
        mass = add_up(mass);
        u32 pivots[PIVOTS];
#pragma unroll
        for (int i = 0; i < PIVOTS; i++) pivots[i] = __float_as_uint(exp2f(-(float)(1 << i) * 0.5f));
        const float target = fmaxf(p * mass, 1e-30f);
        const u32 border = bisect(
            target, 0u, __float_as_uint(1.0f) + 1, pivots, above,
            [&](float value) { return __float_as_uint(weight_of(value)); }, [&](float value) { return weight_of(value); },
            [](int, u32 low, u32 high, int eighth) { return low + (u32)((unsigned long long)(high - low) * eighth / 8); });
        const float count = ceilf((target - above) / fmaxf(__uint_as_float(border), 1e-38f));
        equals = count < (float)vocabulary ? max((int)count, 1) : vocabulary;
        return border;
    }

    /* The token at which the mass of what is left first exceeds `uniform` of all. Of those of weight `border` the first
     * `equals` are left, of others those above, and not below `least`. */
    __device__ __forceinline__ void draw(const double uniform, const u32 border, const int equals, const float least,
                                         int *IN_TURN token) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        int own = 0, before = 0;
#pragma unroll 1
        for (int start = 0; start < size; start += 32) {
            const bool is_equal =
                start + lane < size && __float_as_uint(weight_of(values[first + start + lane])) == border;
            own += __popc(__ballot_sync(0xffffffffu, is_equal));
        }
        __syncthreads();
        if (lane == 0) shared.equals[warp] = own;
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < warp; i++) before += shared.equals[i];
        float mass = 0.0f;
        int rank = before;
#pragma unroll 1
        for (int start = 0; start < size; start += 32) mass += left(start, border, equals, least, rank);
        add_up(mass);
        double total = 0.0, target;
        int chosen = -1, last = 0;
#pragma unroll 1
        for (int i = 0; i < warps; i++) total += shared.values[i];
        target = uniform * total;
        double passed = 0.0, until = 0.0;
#pragma unroll 1
        for (int i = 0; i < warps; i++) {
            if (shared.values[i] > 0.0f) last = i;
            if (chosen < 0 && passed + shared.values[i] > target) chosen = i, until = passed;
            passed += shared.values[i];
        }
        if (chosen < 0) chosen = last, until = total;
        if (warp != chosen) return;
        int found = -1, latest = 0;
        rank = before;
#pragma unroll 1
        for (int start = 0; start < size && found < 0; start += 32) {
            const float weight = left(start, border, equals, least, rank);
            double sum = weight; /* of the lanes up to this one */
#pragma unroll
            for (int by = 1; by < 32; by *= 2) {
                const double other = __shfl_up_sync(0xffffffffu, sum, by);
                if (lane >= by) sum += other;
            }
            const u32 some = __ballot_sync(0xffffffffu, weight > 0.0f);
            const u32 beyond = __ballot_sync(0xffffffffu, weight > 0.0f && until + sum > target);
            if (some) latest = start + 31 - __clz(some);
            if (beyond) found = start + __ffs(beyond) - 1;
            until += __shfl_sync(0xffffffffu, sum, 31);
        }
        if (lane == 0) *token = id_of(found < 0 ? latest : found);
    }

    /* The weight of a lane's value if it is left, else 0; `rank` counts those of the border's weight before. */
    __device__ __forceinline__ float left(int start, const u32 border, const int equals, const float least, int &rank) const {
        const int lane = threadIdx.x % 32;
        const float weight = start + lane < size ? weight_of(values[first + start + lane]) : 0.0f;
        const bool is_there = start + lane < size, is_equal = is_there && __float_as_uint(weight) == border;
        const u32 all = __ballot_sync(0xffffffffu, is_equal);
        const int own = rank + __popc(all & ((1u << lane) - 1));
        rank += __popc(all);
        const bool is_left = is_there && (is_equal ? own < equals : __float_as_uint(weight) > border) && weight >= least;
        return is_left ? weight : 0.0f;
    }
};

/* tokens [rows] for logits [rows, vocabulary], settings [rows, SETTINGS] and numbers of [0, 1), of which a draw takes one.
 * counts [sequences, vocabulary] are those of Sampling::penalized; the token is counted. -1 where the largest logit is not
 * finite, or the row's sequence is negative. values and ids [rows, vocabulary] are room to work in. */
template <int vocabulary, int threads>
__device__ __forceinline__ void sample(const float *IN_TURN logits, const float *IN_TURN settings,
                                       const double *IN_TURN uniforms, const int *IN_TURN sequences,
                                       int *IN_TURN counts, int *IN_TURN tokens, float *IN_TURN values,
                                       int *IN_TURN ids) {
    typedef Sampler<vocabulary, threads> State;
    __shared__ typename State::Shared shared;
    const int row = blockIdx.x, lane = threadIdx.x % 32, first = threadIdx.x / 32 * State::stretch;
    const long long offset = (long long)row * vocabulary;
    if (sequences[row] < 0) {
        if (threadIdx.x == 0) tokens[row] = -1;
        return;
    }
    const Sampling sampling = Sampling::load(settings + row * SETTINGS);
    int *const counted = counts + (long long)sequences[row] * vocabulary;
    const bool penalizes = sampling.penalizes();
    State state = {shared, penalizes ? values + offset : logits + offset, nullptr, values + offset, ids + offset, first};
    state.size = max(0, min((int)State::stretch, vocabulary - first));
    float largest = -__int_as_float(0x7f800000);
    int id = vocabulary;
    for (int i = lane; i < state.size; i += 32) {
        float value = logits[offset + first + i];
        if (penalizes) {
            value = sampling.penalized(value, counted[first + i]);
            values[offset + first + i] = value;
        }
        keep_larger(largest, id, value, first + i);
    }
    __syncwarp();
    largest_of_block<State::warps>(largest, id, shared.values, shared.ids);
    if (!(fabsf(largest) < __int_as_float(0x7f800000))) {
        if (threadIdx.x == 0) tokens[row] = -1;
        return;
    }
    if (sampling.inverse_temperature == 0.0f) {
        if (threadIdx.x == 0) tokens[row] = id;
    } else {
        state.inverse_temperature = sampling.inverse_temperature;
        state.largest = largest;
        if (sampling.k > 0.0f && sampling.k < (float)vocabulary) state.top_k(sampling.k);
        u32 border = 0;
        int equals = vocabulary;
        if (sampling.p < 1.0f) border = state.top_p(sampling.p, equals);
        state.draw(uniforms[row], border, equals, sampling.m, tokens + row);
    }
    __syncthreads(); /* the token is known */
    if (threadIdx.x == 0 && penalizes) counted[tokens[row]]++;
}

}  // namespace pyc
