/* Instructions of x86-64 that vectors of C have no operator for, under their own names.
 *
 * immintrin.h has them too, and thousands more: reading it takes a quarter of a second, a fifth of what a library takes
 * to compile. These are the builtins that it calls; the compiler is pinned (backends/cpu/toolchain/zig.py).
 */
#ifndef PYC_INSTRUCTIONS_H
#define PYC_INSTRUCTIONS_H

#include "pyc_vectors.h"

#if defined(__AVX512F__)

#define PYC_CURRENT_ROUNDING 4
#define PYC_GREATER_OR_EQUAL 13

/* x 2^floor(power) */
PYC_INLINE pyc_f32v pyc_vscalefps(pyc_f32v x, pyc_f32v power) {
    return __builtin_ia32_scalefps512_mask(x, power, (pyc_f32v)0, 0xffff, PYC_CURRENT_ROUNDING);
}

/* The same where power >= least, and 0 elsewhere. */
PYC_INLINE pyc_f32v pyc_vscalefps_from(float least, pyc_f32v x, pyc_f32v power) {
    const uint16_t mask =
        __builtin_ia32_cmpps512_mask(power, (pyc_f32v)least, PYC_GREATER_OR_EQUAL, 0xffff, PYC_CURRENT_ROUNDING);
    return __builtin_ia32_scalefps512_mask(x, power, (pyc_f32v)0, mask, PYC_CURRENT_ROUNDING);
}

/* The first `count` lanes, and zeros. */
PYC_INLINE pyc_f32v pyc_vmovups_first(const float *from, int count) {
    return __builtin_ia32_loadups512_mask(from, (pyc_f32v)0, (uint16_t)((1u << count) - 1));
}

#endif

#if defined(__AVX512DQ__)
/* x - floor(x) */
PYC_INLINE pyc_f32v pyc_vreduceps_down(pyc_f32v x) {
    return __builtin_ia32_reduceps512_mask(x, 1, (pyc_f32v)0, 0xffff, PYC_CURRENT_ROUNDING);
}
#endif

#if defined(__AVX512BW__)
/* The elements of `table` at the low five bits of `index`. */
typedef uint16_t pyc_u16x32 __attribute__((ext_vector_type(32)));
PYC_INLINE pyc_u16x32 pyc_vpermw(pyc_u16x32 index, pyc_u16x32 table) {
    typedef short halves __attribute__((ext_vector_type(32)));
    return (pyc_u16x32)__builtin_ia32_permvarhi512((halves)table, (halves)index);
}
/* The elements of 16 and of 8 bits that `mask` has. */
PYC_INLINE void pyc_vmovdqu16_some(void *to, uint32_t mask, pyc_u32v x) {
    typedef short halves __attribute__((ext_vector_type(2 * PYC_LANES)));
    __builtin_ia32_storedquhi512_mask(to, (halves)x, mask);
}
PYC_INLINE void pyc_vmovdqu8_some(void *to, uint64_t mask, pyc_u32v x) {
    typedef char bytes __attribute__((ext_vector_type(4 * PYC_LANES)));
    __builtin_ia32_storedquqi512_mask(to, (bytes)x, mask);
}
#endif

/* Also in AVX's encoding, for CPUs without AVX-512; or, with PYC_EMULATE_VNNI, from operators that say the same: the
 * tests run kernels that way where the CPU has no AVX-VNNI. */
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(PYC_EMULATE_VNNI)
#define PYC_HAS_VNNI 1
/* sum + four unsigned bytes of w by four signed bytes of x, in each lane */
PYC_INLINE pyc_i32v pyc_vpdpbusd(pyc_i32v sum, pyc_u32v w, pyc_i32v x) {
#if defined(PYC_EMULATE_VNNI)
    PYC_UNROLL for (uint32_t i = 0; i < 32; i += 8) sum += (pyc_i32v)(w >> i & 255) * (x << (24 - i) >> 24);
    return sum;
#else
    typedef uint8_t unsigned_bytes __attribute__((ext_vector_type(4 * PYC_LANES)));
    typedef char bytes __attribute__((ext_vector_type(4 * PYC_LANES)));
#if defined(__AVX512VNNI__)
    return __builtin_ia32_vpdpbusd512(sum, (unsigned_bytes)w, (bytes)x);
#else
    return __builtin_ia32_vpdpbusd256(sum, (unsigned_bytes)w, (bytes)x);
#endif
#endif
}
#else
#define PYC_HAS_VNNI 0
#endif

#if defined(__AVX512BF16__)
typedef __bf16 pyc_bf16v __attribute__((ext_vector_type(2 * PYC_LANES)));
typedef __bf16 pyc_bf16h __attribute__((ext_vector_type(PYC_LANES)));

/* sum + two products of a pair, in each lane */
PYC_INLINE pyc_f32v pyc_vdpbf16ps(pyc_f32v sum, pyc_bf16v a, pyc_bf16v b) {
    return __builtin_ia32_dpbf16ps_512(sum, a, b);
}

/* To nearest even; what is below 2^-126 is zero. */
PYC_INLINE pyc_bf16h pyc_vcvtneps2bf16(pyc_f32v x) {
    return __builtin_ia32_cvtneps2bf16_512_mask(x, (pyc_bf16h)(__bf16)0, 0xffff);
}
PYC_INLINE pyc_bf16v pyc_vcvtne2ps2bf16(pyc_f32v high, pyc_f32v low) {
    return __builtin_ia32_cvtne2ps2bf16_512(high, low);
}
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
typedef int16_t pyc_i16v __attribute__((ext_vector_type(2 * PYC_LANES)));
typedef char pyc_bytesv __attribute__((ext_vector_type(4 * PYC_LANES)));

/* Pairs of unsigned bytes of a by signed bytes of b, saturated; pairs of i16; x with the signs of y, 0 where y is. */
PYC_INLINE pyc_i16v pyc_vpmaddubsw(pyc_bytesv a, pyc_bytesv b) { return __builtin_ia32_pmaddubsw256(a, b); }
PYC_INLINE pyc_i32v pyc_vpmaddwd(pyc_i16v a, pyc_i16v b) { return __builtin_ia32_pmaddwd256(a, b); }
PYC_INLINE pyc_bytesv pyc_vpsignb(pyc_bytesv x, pyc_bytesv y) { return __builtin_ia32_psignb256(x, y); }
#endif

#endif
