/* The cache of keys and values of a layer: u8 [blocks, 2, kv_heads, head bytes], keys before values.
 *
 * A head of a block is [block_tokens, head_dim] numbers of f32, f16 or bf16, or of i8 or e4m3 with a scale f32 a position
 * behind all of them. docs/tensor-layouts.md.
 */
#pragma once
#include "vectors.cuh"

namespace pyc {

struct CacheF32 { enum { bytes = 4, has_scales = 0 }; };
struct CacheF16 { enum { bytes = 2, has_scales = 0 }; };
struct CacheBf16 { enum { bytes = 2, has_scales = 0 }; };
struct CacheInt8 { enum { bytes = 1, has_scales = 1, most = 127 }; }; /* the code of the largest magnitude */
struct CacheFp8 { enum { bytes = 1, has_scales = 1, most = 448 }; };

template <class A, class B> struct same { enum { value = 0 }; };
template <class A> struct same<A, A> { enum { value = 1 }; };

/* 1, 2, 4, 8 or 16 bytes, aligned as they are long. */
template <int bytes> struct Words {
    u32 at[(bytes + 3) / 4];
    static __device__ __forceinline__ Words load(const u8 *IN_TURN from) {
        Words made;
        if constexpr (bytes == 16) {
            const uint4 all = *reinterpret_cast<const uint4 *>(from);
            made.at[0] = all.x, made.at[1] = all.y, made.at[2] = all.z, made.at[3] = all.w;
        } else if constexpr (bytes == 8) {
            const uint2 all = *reinterpret_cast<const uint2 *>(from);
            made.at[0] = all.x, made.at[1] = all.y;
        } else if constexpr (bytes == 4) {
            made.at[0] = *reinterpret_cast<const u32 *>(from);
        } else if constexpr (bytes == 2) {
            made.at[0] = *reinterpret_cast<const u16 *>(from);
        } else {
            static_assert(bytes == 1, "as many as a thread reads at once");
            made.at[0] = *from;
        }
        return made;
    }
    __device__ __forceinline__ void store(u8 *IN_TURN to) const {
        if constexpr (bytes == 16) {
            *reinterpret_cast<uint4 *>(to) = make_uint4(at[0], at[1], at[2], at[3]);
        } else if constexpr (bytes == 8) {
            *reinterpret_cast<uint2 *>(to) = make_uint2(at[0], at[1]);
        } else if constexpr (bytes == 4) {
            *reinterpret_cast<u32 *>(to) = at[0];
        } else if constexpr (bytes == 2) {
            *reinterpret_cast<u16 *>(to) = (u16)at[0];
        } else {
            static_assert(bytes == 1, "as many as a thread writes at once");
            *to = (u8)at[0];
        }
    }
};

/* A byte of e4m3 in the place of f32's exponent and fraction, 2^120 too small. */
__device__ __forceinline__ float e4m3_to_f32(u32 code) {
    return __uint_as_float((code & 0x7f) << 20 | (code & 0x80) << 24) * 0x1p120f;
}

/* A number of up to 448 to the nearest, ties to even. Below 2^-6 an addition rounds, whose sum has steps of 2^-9. */
__device__ __forceinline__ u32 f32_to_e4m3(float x) {
    const u32 bits = __float_as_uint(x), magnitude = bits & 0x7fffffff;
    const u32 normal = ((magnitude + (magnitude >> 20 & 1) + 0x7ffff) >> 20) - (120 << 3);
    const u32 small = __float_as_uint(__uint_as_float(magnitude) + 0x1p14f) - 0x46800000;
    return (magnitude < 0x3c800000 ? small : normal) | (bits >> 24 & 0x80);
}

/* Number i of words, without the scale of its position. */
template <class Kind, int bytes> __device__ __forceinline__ float number_of(const Words<bytes> &words, int i) {
    if constexpr (same<Kind, CacheF32>::value) {
        return __uint_as_float(words.at[i]);
    } else if constexpr (same<Kind, CacheInt8>::value) {
        return (float)((int)(words.at[i / 4] << (24 - 8 * (i % 4))) >> 24);
    } else if constexpr (same<Kind, CacheFp8>::value) {
        return e4m3_to_f32(words.at[i / 4] >> 8 * (i % 4) & 255);
    } else {
        const u16 bits = (u16)(words.at[i / 2] >> 16 * (i % 2));
        return same<Kind, CacheF16>::value ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
}

/* Words of `count` numbers; those that have a scale are multiplied by `inverse` before, its reciprocal. */
template <class Kind, int count>
__device__ __forceinline__ Words<count * Kind::bytes> words_of(const float (&numbers)[count], const float inverse) {
    Words<count * Kind::bytes> made = {};
#pragma unroll
    for (int i = 0; i < count; i++) {
        if constexpr (same<Kind, CacheF32>::value) made.at[i] = __float_as_uint(numbers[i]);
        else if constexpr (same<Kind, CacheInt8>::value)
            made.at[i / 4] |= ((u32)__float2int_rn(numbers[i] * inverse) & 255) << 8 * (i % 4);
        else if constexpr (same<Kind, CacheFp8>::value)
            made.at[i / 4] |= f32_to_e4m3(numbers[i] * inverse) << 8 * (i % 4);
        else
            made.at[i / 2] |= (u32)(same<Kind, CacheF16>::value ? f32_to_f16(numbers[i]) : f32_to_bf16(numbers[i]))
                              << 16 * (i % 2);
    }
    return made;
}

template <class Kind, int kv_heads, int head_dim, int block_tokens> struct Cache {
    enum : long long {
        scales_at = (long long)block_tokens * head_dim * Kind::bytes,
        head_bytes = scales_at + (Kind::has_scales ? block_tokens * 4 : 0),
        values_after = kv_heads * head_bytes
    };

    /* Where the keys of a head of a block begin; its values are `values_after` further. */
    static __device__ __forceinline__ long long keys_at(int block, int kv_head) {
        return ((long long)block * 2 * kv_heads + kv_head) * head_bytes;
    }
    /* The scale of a position of the keys, or values, that begin at `head`. */
    static __device__ __forceinline__ float scale(const u8 *IN_TURN head, int slot) {
        if constexpr (Kind::has_scales) return *reinterpret_cast<const float *>(head + scales_at + 4 * slot);
        return 1.0f;
    }
};

}  // namespace pyc
