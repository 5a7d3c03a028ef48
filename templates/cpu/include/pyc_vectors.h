/* Vectors of f32 and i32 as wide as the hardware's, and the few conversions that kernels need.
 *
 * A panel has 16 rows: PYC_COLUMNS hardware vectors. Nothing here depends on how a vector is split, and no
 * operation is contracted or reordered by the compiler (-ffp-contract=off, no fast-math), so one (token, row)
 * is computed by the same sequence of roundings in every register block.
 */
#ifndef PYC_VECTORS_H
#define PYC_VECTORS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "pyc_constants.h"

#define PYC_INLINE static inline __attribute__((always_inline))
#define PYC_OUTLINE static __attribute__((noinline))
#define PYC_SHARED __attribute__((noinline, visibility("hidden"))) /* by the objects of a library */
#define PYC_UNROLL _Pragma("clang loop unroll(full)")
#define PYC_ROLLED _Pragma("clang loop unroll(disable)")

#if defined(__AVX512F__)
#define PYC_LANES 16
#elif defined(__AVX2__)
#define PYC_LANES 8
#else
#define PYC_LANES 4
#endif
#define PYC_COLUMNS (PYC_PANEL / PYC_LANES)

typedef float pyc_f32v __attribute__((ext_vector_type(PYC_LANES)));
typedef int32_t pyc_i32v __attribute__((ext_vector_type(PYC_LANES)));
typedef uint32_t pyc_u32v __attribute__((ext_vector_type(PYC_LANES)));
typedef uint16_t pyc_u16v __attribute__((ext_vector_type(PYC_LANES)));
typedef uint8_t pyc_u8v __attribute__((ext_vector_type(PYC_LANES)));
typedef int8_t pyc_i8v __attribute__((ext_vector_type(PYC_LANES)));

#define PYC_LOADER(name, type)                          \
    PYC_INLINE type pyc_load_##name(const void *from) { \
        type value;                                     \
        memcpy(&value, from, sizeof value);             \
        return value;                                   \
    }
PYC_LOADER(f32v, pyc_f32v)
PYC_LOADER(u32v, pyc_u32v)
PYC_LOADER(u16v, pyc_u16v)
PYC_LOADER(u8v, pyc_u8v)
PYC_LOADER(i8v, pyc_i8v)
PYC_LOADER(f32, float)
PYC_LOADER(i32, int32_t)
PYC_LOADER(u32, uint32_t)
PYC_LOADER(u16, uint16_t)

PYC_INLINE pyc_f32v pyc_bits_f32v(pyc_u32v bits) { return ((pyc_f32v)bits); }

PYC_INLINE float pyc_bits_f32(uint32_t bits) { return pyc_load_f32(&bits); }

/* a * b + c: rounded once where the hardware can, twice where it cannot (a library call would be slow). */
PYC_INLINE pyc_f32v pyc_fma(pyc_f32v a, pyc_f32v b, pyc_f32v c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_elementwise_fma(a, b, c);
#else
    return a * b + c;
#endif
}

/* Finite f16 -> f32, exactly, subnormals included. Without hardware: the 15 low bits, moved to the place of an
 * f32's exponent and fraction, are the value times 2^-112. */
PYC_INLINE float pyc_f16_value(uint16_t half) {
    const float magnitude = pyc_bits_f32((uint32_t)(half & 0x7fff) << 13) * 0x1p112f;
    return half & 0x8000 ? -magnitude : magnitude;
}

PYC_INLINE pyc_f32v pyc_f16_values(pyc_u16v halves) {
#if defined(__F16C__) || defined(__aarch64__)
    typedef _Float16 pyc_f16v __attribute__((ext_vector_type(PYC_LANES)));
    return __builtin_convertvector(((pyc_f16v)halves), pyc_f32v);
#else
    const pyc_u32v wide = __builtin_convertvector(halves, pyc_u32v);
    const pyc_f32v magnitude = pyc_bits_f32v((wide & 0x7fff) << 13) * 0x1p112f;
    return pyc_bits_f32v(((pyc_u32v)magnitude) | (wide & 0x8000) << 16);
#endif
}

/* The larger of two numbers in each lane, and the largest lane: the builtins for floats take NaN into account, which
 * takes three instructions instead of one, or fifteen after each other. A NaN in a counts as less than b. */
PYC_INLINE pyc_f32v pyc_larger(pyc_f32v a, pyc_f32v b) {
    const pyc_i32v above = a > b;
    return (pyc_f32v)(((pyc_i32v)a & above) | ((pyc_i32v)b & ~above));
}
PYC_INLINE float pyc_largest(pyc_f32v a) {
    const pyc_i32v bits = (pyc_i32v)a; /* floats order as these integers do */
    const int32_t top = __builtin_reduce_max(bits ^ (bits >> 31 & 0x7fffffff));
    return pyc_bits_f32((uint32_t)(top ^ (top >> 31 & 0x7fffffff)));
}

/* Prefetch the cache lines of [from, from + bytes), into the first-level or the second-level cache. */
PYC_INLINE void pyc_prefetch_near(const uint8_t *from, const int bytes) {
    PYC_UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 3);
}

PYC_INLINE void pyc_prefetch_far(const uint8_t *from, const int bytes) {
    PYC_UNROLL for (int i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

/* Writes `count` lanes (all of them when count >= PYC_LANES) of value + bias; bias may be NULL. */
PYC_INLINE void pyc_store_row(float *y, const float *bias, pyc_f32v value, int count) {
    if (count >= PYC_LANES) {
        if (bias) value += pyc_load_f32v(bias);
        memcpy(y, &value, sizeof value);
        return;
    }
    for (int lane = 0; lane < count; lane++) y[lane] = bias ? value[lane] + bias[lane] : value[lane];
}

#endif
