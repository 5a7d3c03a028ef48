/* Matrices [N, K] as they lie in memory, and how matrix instructions read them.
 *
 * Rows of codes lie one after another; beside them are scales, zero points and factors (backends/cuda/kernels/matrix.py).
 * Matrix instructions multiply bf16, which holds every code exactly: integers up to 256, entries of lookup tables,
 * floating point of 8 bits. Scales multiply sums of a group, or codes where the product has no more than the eight
 * significant bits of bf16. f16 and f32 are two bf16, the second what the first leaves.
 *
 * K goes by blocks of 32, of which thread t of four has eight inputs as four pairs, 0 and 1 for a first matrix
 * instruction, 2 and 3 for a second. A sum has no order that would matter, so inputs are paired as it costs least:
 * those of bf16 as ldmatrix has them; of others a thread has eight consecutive codes, and of these the pairs that come
 * out of a register by a mask (`input_of`). Activations take the same order.
 *
 * Codes of 5, 3 and 2 bits lie by blocks of 32, of which number 8 t + j is in two planes: its lower four bits from bit
 * 4 j of the 32-bit word t on, of 3 and 2 bits its lower two from bit 4 (j % 4) + 2 (j / 4) of the 16-bit word t on; the
 * highest of 5 and 3 is bit 4 j + t of the 32-bit word behind these. So a mask or two make the selectors of eight codes, a
 * nibble each (`selectors_of`).
 */
#pragma once
#include "async_copy.cuh"
#include "mma.cuh"

namespace pyc {

enum MatrixKind { F32, F16, BF16, INT8, INT4, LOOKUP5, LOOKUP4, LOOKUP3, LOOKUP2, E4M3, E5M2 };
enum ScaleKind { NO_SCALE, SCALE_BF16, SCALE_F16, SCALE_F32 };

constexpr int BLOCK_K = 32;

__device__ constexpr int ceil_div(int value, int divisor) { return (value + divisor - 1) / divisor; }
__device__ constexpr int round_up(int value, int multiple) { return ceil_div(value, multiple) * multiple; }
__device__ constexpr int smaller(int a, int b) { return a < b ? a : b; }

__device__ constexpr int bits_of(MatrixKind kind) {
    return kind == F32                       ? 32
           : kind == F16 || kind == BF16     ? 16
           : kind == INT4 || kind == LOOKUP4 ? 4
           : kind == LOOKUP5                 ? 5
           : kind == LOOKUP3                 ? 3
           : kind == LOOKUP2                 ? 2
                                             : 8;
}

/* What the inputs of a pair are apart by, among a thread's eight; 0: the order of ldmatrix. */
__device__ constexpr int distance_of(MatrixKind kind) {
    return kind == BF16 ? 0 : bits_of(kind) >= 16 ? 1 : kind == INT4 ? 4 : 2;
}

/* The input, in a block of 32, of half `half` of pair `pair` of thread `t`. */
__device__ constexpr int input_of(int distance, int t, int pair, int half) {
    return distance == 0   ? 8 * pair + 2 * t + half
           : distance == 1 ? 8 * t + 2 * pair + half
           : distance == 2 ? 8 * t + pair / 2 * 4 + pair % 2 + 2 * half
                           : 8 * t + pair + 4 * half;
}

/* `group`: inputs that share a scale, 0 where all of a row do. Of lookup tables: four entries, less the `least`, in each
 * of table0 to table3; `shift` is what is added to the entries of groups whose scale's lowest bit is set. */
template <MatrixKind kind, int group, ScaleKind scale, bool has_zeros, bool has_factors, u32 table0 = 0, u32 table1 = 0,
          u32 table2 = 0, u32 table3 = 0, u32 table4 = 0, u32 table5 = 0, u32 table6 = 0, u32 table7 = 0, int least = 0,
          int shift = 0>
struct Matrix {
    /* Enumerators, as constants of a class would each be a symbol of the program. */
    enum : int {
        KIND = (int)kind,
        GROUP = group,
        BITS = bits_of(kind),
        SCALE = (int)scale,
        HAS_ZEROS = has_zeros,
        HAS_FACTORS = has_factors,
        HAS_ROW_SCALE = scale != NO_SCALE && !group,
        IS_WIDE = kind == F16 || kind == F32,
        IS_LOOKUP = kind == LOOKUP5 || kind == LOOKUP4 || kind == LOOKUP3 || kind == LOOKUP2,
        SCALE_BYTES = scale == NO_SCALE ? 0 : scale == SCALE_F32 ? 4 : 2,
        TABLE_WORDS = kind == LOOKUP5 ? 8 : (table2 | table3) ? 4 : 2,
        LEAST = least,
        SHIFT = shift,
        DISTANCE = distance_of(kind),
        HAS_ADJUSTMENT_OF_GROUP = has_zeros || shift != 0,
    };

    /* Four entries from number 4 `word` on. */
    static __device__ constexpr u32 table(int word) {
        return word < 4 ? (word < 2 ? (word ? table1 : table0) : word < 3 ? table2 : table3)
                        : (word < 6 ? (word < 5 ? table4 : table5) : word < 7 ? table6 : table7);
    }

    static __device__ constexpr long long row_bytes(int inputs) {
        return (long long)(kind == INT8 ? round_up(inputs, 32) : inputs) * BITS / 8;
    }
    static __device__ constexpr int groups(int inputs) { return group ? ceil_div(inputs, group) : 1; }
    static __device__ constexpr long long zero_bytes(int inputs) { return ceil_div(groups(inputs), 2); } /* of a row */

    /* The row of the matrix that row `row` of tiles is. */
    static __device__ constexpr int row_at(int row) { return row; }
};

/* A matrix of which tiles have rows of both halves: `together` of the first, which has `half` rows, then those of the second
 * that belong to them, so that a gate is near what it gates. */
template <class M, int half, int together> struct Paired : M {
    static_assert(half % together == 0, "whole pairs");
    static __device__ constexpr int row_at(int row) {
        return row / (2 * together) * together + row % together + row / together % 2 * half;
    }
};

/* The number that bits of a scale stand for. */
template <class M> __device__ __forceinline__ float scale_of(u32 bits) {
    if constexpr (M::SCALE == SCALE_BF16) return __uint_as_float((bits & (M::SHIFT ? 0xfffeu : 0xffffu)) << 16);
    if constexpr (M::SCALE == SCALE_F16) return f16_to_f32((u16)bits);
    return __uint_as_float(bits);
}

/* What is added to raw codes of a group as pairs of bf16 (`raw_pairs`). */
template <class M> __device__ __forceinline__ u32 adjustment(u32 scale_bits, u32 zero) {
    if constexpr (M::KIND == INT4 && M::HAS_ZEROS) return 0xc300c300u | zero | zero << 16; /* -(128 + zero) */
    if constexpr (M::KIND == INT4) return 0xc308c308u;                                     /* -136 */
    if constexpr (M::IS_LOOKUP) { /* -(128 - least), less the shift */
        constexpr int plain = -M::LEAST, shifted = plain - M::SHIFT;
        static_assert(plain >= 0 && plain < 128 && shifted >= 0 && shifted < 128, "128 - least has seven bits");
        const u32 pair = 0xc300c300u | (u32)plain | (u32)plain << 16;
        return M::SHIFT ? pair - (scale_bits & 1) * ((u32)M::SHIFT | (u32)M::SHIFT << 16) : pair;
    }
    return 0;
}

/* Four bytes of x and y (0 to 7) by the nibbles of a selector; from 8 on, eight times the sign of byte nibble - 8. */
__device__ __forceinline__ u32 select_bytes(u32 x, u32 y, u32 selector) {
#ifdef __CUDA_ARCH__
    u32 selected;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(selected) : "r"(x), "r"(y), "r"(selector));
    return selected;
#else
    return __byte_perm(x, y, selector);
#endif
}

/* What decoding takes, in registers. */
template <class M> struct Decoder {
    u32 magic, less, table[M::IS_LOOKUP ? M::TABLE_WORDS : 1];

    __device__ __forceinline__ Decoder() {
        const u32 zero = unknown_zero();
        magic = zero | 0x43004300u; /* two bf16 128, whose lowest bits count 1 */
        if constexpr (M::KIND == INT8) less = zero | 0xc380c380u; /* -256 */
        if constexpr (M::IS_LOOKUP)
#pragma unroll
            for (int word = 0; word < M::TABLE_WORDS; word++) table[word] = zero | M::table(word);
    }

    /* Bits of each half of `bits`, below 128, as pairs of bf16 128 + bits. */
    __device__ __forceinline__ u32 above_128(u32 bits, u32 mask) const { return masked_or(bits, mask, magic); }

    /* The selectors of eight codes of a table, those of thread `t` of four: nibbles in order; of 5 bits the lower four. */
    __device__ __forceinline__ u32 selectors_of(const u8 *block, int t) const {
        if constexpr (M::BITS >= 4) return ((const u32 *)block)[t];
        const u32 word = ((const u16 *)block)[t];
        const u32 lower = (word | word << 14) & 0x33333333u;
        if constexpr (M::KIND == LOOKUP2) return lower;
        return lower + 4 * highest_of(block, t);
    }

    /* The highest bits of eight codes of 5 or 3 bits, a nibble each. */
    static __device__ __forceinline__ u32 highest_of(const u8 *block, int t) {
        return ((const u32 *)block)[M::BITS - 1] >> t & 0x11111111u;
    }

    /* Entries for four selectors of four bits in the 16 from table[from] on, or in eight where the table has no more.
     * Where the highest bit of a selector is set, a byte is eight times a sign, and entries have none. */
    __device__ __forceinline__ u32 entries_of_four(int from, u32 selectors) const {
        const u32 found = select_bytes(table[from], table[from + 1], selectors);
        if constexpr (M::TABLE_WORDS == 2) return found;
        return found | select_bytes(table[from + 2], table[from + 3], selectors ^ 0x8888u);
    }

    /* Entries of the table, less the least, as bytes in order: of the first four of eight codes, and of the last four. */
    __device__ __forceinline__ void entries_of(const u8 *block, int t, u32 &first, u32 &last) const {
        const u32 selectors = selectors_of(block, t);
        first = entries_of_four(0, selectors), last = entries_of_four(0, selectors >> 16);
        if constexpr (M::KIND == LOOKUP5) {
            const u32 highest = highest_of(block, t); /* as bytes of ones: byte 1 of a word whose byte 0 is zero */
            first = chosen(first, entries_of_four(4, selectors), select_bytes(0xff00u, 0, highest));
            last = chosen(last, entries_of_four(4, selectors >> 16), select_bytes(0xff00u, 0, highest >> 16));
        }
    }

    static __device__ __forceinline__ u32 chosen(u32 clear, u32 set, u32 mask) { return (clear & ~mask) | (set & mask); }
};

/* Bytes 0 and 2, or 1 and 3, as numbers of 8 bits. Their exponents are taken for those of bf16, and a power of two makes up
 * for it. */
template <bool is_e4m3, bool is_odd = false> __device__ __forceinline__ u32 float8_pair(u32 bytes) {
    constexpr u32 power = is_e4m3 ? 0x7b807b80u : 0x77807780u; /* 2^120, 2^112 */
    const u32 shifted = is_odd ? bytes >> (is_e4m3 ? 4 : 3) : bytes << (is_e4m3 ? 4 : 5);
    const u32 magnitude = shifted & (is_e4m3 ? 0x07f007f0u : 0x0fe00fe0u);
    return multiply_pair(masked_or(is_odd ? bytes : bytes << 8, 0x80008000u, magnitude), power);
}

/* Eight codes in shared memory, those of thread `t` of four of the block at `block`, of another kind than bf16, as four
 * pairs of bf16, and for wide kinds what these leave; `added` is `adjustment`. */
template <class M>
__device__ __forceinline__ void load_pairs(const Decoder<M> &decoder, const u8 *block, int t, u32 added, u32 (&pairs)[4],
                                           u32 (&rest)[4]) {
    const u8 *const codes = block + t * M::BITS;
    if constexpr (M::KIND == INT4) {
        const u32 loaded = *(const u32 *)codes;
#pragma unroll
        for (int p = 0; p < 4; p++) pairs[p] = add_pair(decoder.above_128(loaded >> 4 * p, 0x000f000fu), added);
    } else if constexpr (M::IS_LOOKUP) {
        u32 first, last;
        decoder.entries_of(block, t, first, last);
        pairs[0] = add_pair(decoder.above_128(first, 0x007f007fu), added);
        pairs[1] = add_pair(decoder.above_128(first >> 8, 0x007f007fu), added);
        pairs[2] = add_pair(decoder.above_128(last, 0x007f007fu), added);
        pairs[3] = add_pair(decoder.above_128(last >> 8, 0x007f007fu), added);
    } else if constexpr (M::KIND == INT8) {
        const uint2 loaded = *(const uint2 *)codes;
#pragma unroll
        for (int p = 0; p < 4; p++) {
            /* 128 + the lower seven bits, less 256 or, where the highest bit is set, 128. */
            const u32 bytes = (p < 2 ? loaded.x : loaded.y) >> 8 * (p % 2);
            pairs[p] = add_pair(decoder.above_128(bytes, 0x007f007fu), masked_xor(bytes, 0x00800080u, decoder.less));
        }
    } else if constexpr (M::KIND == E4M3 || M::KIND == E5M2) {
        const uint2 loaded = *(const uint2 *)codes;
#pragma unroll
        for (int p = 0; p < 4; p += 2) {
            pairs[p] = float8_pair<M::KIND == E4M3>(p ? loaded.y : loaded.x);
            pairs[p + 1] = float8_pair<M::KIND == E4M3, true>(p ? loaded.y : loaded.x);
        }
    } else {
        float values[8];
        if constexpr (M::KIND == F32) {
            const float4 low = ((const float4 *)codes)[0], high = ((const float4 *)codes)[1];
            values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
            values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
        } else {
            const uint4 loaded = *(const uint4 *)codes;
            const u32 words[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
            for (int i = 0; i < 8; i++) values[i] = f16_to_f32((u16)(words[i / 2] >> 16 * (i % 2)));
        }
#pragma unroll
        for (int p = 0; p < 4; p++) {
            pairs[p] = pack_bf16(values[2 * p], values[2 * p + 1]);
            rest[p] = remainder_pair(values[2 * p], values[2 * p + 1], pairs[p]);
        }
    }
}

/* The same of codes of INT4, less `zero`, and times 2^-6, which takes fewer instructions: four bits in the fraction of a
 * subnormal bf16, or across it and the lowest bit of the exponent, are a number that they are proportional to. */
template <class M> __device__ __forceinline__ void load_small_pairs(const u8 *block, int t, u32 zero, u32 (&pairs)[4]) {
    constexpr u32 power = 0x7f007f00u, smaller_power = 0x7d007d00u; /* 2^127, 2^123 */
    const u32 less = M::HAS_ZEROS ? multiply_pair(zero | zero << 16, 0xff00ff00u) : 0xbe00be00u; /* 8 * 2^-6 */
    const u32 loaded = ((const u32 *)block)[t];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const u32 bits = p < 2 ? loaded : loaded >> 8;
        pairs[p] = p % 2 ? fma_pair(bits & 0x00f000f0u, smaller_power, less) : fma_pair(bits & 0x000f000fu, power, less);
    }
}

/* One code of 2 to 5 bits of a row. */
template <class M> __device__ inline int code_at(const u8 *row, int k) {
    if constexpr (M::BITS == 4) return row[k / 2] >> 4 * (k % 2) & 15;
    const u8 *const block = row + k / BLOCK_K * (BLOCK_K * M::BITS / 8);
    const int t = k % BLOCK_K / 8, j = k % 8;
    const int lower = M::BITS == 5 ? block[k % BLOCK_K / 2] >> 4 * (k % 2) & 15
                                   : block[2 * t + j % 4 / 2] >> (4 * (j % 2) + 2 * (j / 4)) & 3;
    if constexpr (M::BITS == 2) return lower;
    return lower + ((block[BLOCK_K / 8 * (M::BITS - 1) + j / 2] >> (4 * (j % 2) + t) & 1) << (M::BITS - 1));
}

/* One weight, scale included, read from global memory; factors are those of its row. */
template <class M, int inputs>
__device__ inline float weight_at(const u8 *codes, const u8 *scales, const u8 *zeros, const float *factors, long long row,
                                  int k) {
    const u8 *const stored = codes + row * M::row_bytes(inputs);
    float value;
    if constexpr (M::KIND == F32) value = ((const float *)stored)[k];
    else if constexpr (M::KIND == F16) value = f16_to_f32(((const u16 *)stored)[k]);
    else if constexpr (M::KIND == BF16) value = bf16_to_f32(((const u16 *)stored)[k]);
    else if constexpr (M::KIND == INT8) value = (float)((int)stored[k] - 128);
    else if constexpr (M::KIND == E4M3 || M::KIND == E5M2) value = low_of(float8_pair<M::KIND == E4M3>(stored[k]));
    else value = (float)code_at<M>(stored, k);
    if constexpr (M::SCALE != NO_SCALE) {
        const long long group = row * M::groups(inputs) + (M::GROUP ? k / (M::GROUP ? M::GROUP : 1) : 0);
        const u32 bits = M::SCALE == SCALE_F32 ? ((const u32 *)scales)[group] : ((const u16 *)scales)[group];
        if constexpr (M::IS_LOOKUP) {
            const int code = (int)value;
            value = (float)((int)(M::table(code / 4) >> 8 * (code % 4) & 255) + M::LEAST + (M::SHIFT && bits & 1 ? M::SHIFT : 0));
        } else if constexpr (M::HAS_ZEROS) {
            const int of_row = k / M::GROUP;
            const u8 both = zeros[row * M::zero_bytes(inputs) + of_row / 2];
            value -= (float)(both >> 4 * (of_row % 2) & 15);
        } else if constexpr (M::KIND == INT4) {
            value -= 8;
        }
        value *= scale_of<M>(bits);
    }
    if constexpr (M::HAS_FACTORS) value *= factors[row];
    return value;
}

}  // namespace pyc
