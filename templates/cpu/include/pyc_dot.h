/* The integer heart: dot products over one block of 32 inputs, T tokens by C vectors of rows, exact.
 *
 *   dot[t][c] += sum over the block of q * x
 *
 * Lookup tables: bytes in [0, 127], or [0, 63] below 4 bits (`small`). int4: q in [0, 15], unsigned. int8: q +
 * PYC_INT8_ZERO, where the bytes hold q + 128 and |q| <= 127. x in [-127, 127]. What each instruction set does, and why
 * it cannot overflow:
 *
 * - AVX-512 VNNI and AVX-VNNI: vpdpbusd, u8 x s8 into i32.
 * - AVX2: maddubs, u8 x s8 pairs into i16. Lookup tables: one product of at most 2 * 127 * 127, or two of 2 * 63 * 127.
 * int4: 16 products of at most 15 * 127 sum to 30480 < 2^15, so a whole block stays in i16. int8: |q| x sign(x, q), two
 * products of at most 127 * 127 sum to 32258 < 2^15.
 * - NEON dotprod: sdot, s8 x s8 into i32.
 * - else: 16-bit multiplications of the even and of the odd bytes of each lane, the same bounds as AVX2.
 */
#ifndef PYC_DOT_H
#define PYC_DOT_H

#include "pyc_instructions.h"
#include "pyc_register_blocks.h"

#define PYC_VECTOR_BYTES (4 * PYC_LANES)
#define PYC_PANEL_STEP (4 * PYC_PANEL) /* bytes of a panel that hold 4 inputs of each row (int4: 8) */

typedef pyc_i32v pyc_dots[PYC_REGISTER_TOKENS][PYC_COLUMNS];

/* Each multiplies w by four inputs of a token: nibbles all C vectors of it, of the T tokens of a register block. */
#if PYC_HAS_VNNI
#define PYC_INT8_ZERO 128
typedef pyc_i32v pyc_sumv;
PYC_INLINE pyc_sumv pyc_sum_start(pyc_i32v dot) { return dot; }
PYC_INLINE pyc_i32v pyc_sum_end(pyc_sumv sum, pyc_i32v dot) { return sum; }
PYC_INLINE void pyc_multiply_nibbles(const int T, const int C, pyc_sumv *sum, const pyc_u32v *w, pyc_i32v x) {
    PYC_UNROLL for (int c = 0; c < C; c++) sum[c] = pyc_vpdpbusd(sum[c], w[c], x);
}
PYC_INLINE pyc_i32v pyc_multiply_bytes(pyc_i32v sum, pyc_u32v w, pyc_i32v x) { return pyc_vpdpbusd(sum, w, x); }
PYC_INLINE pyc_i32v pyc_multiply_entries(const int small, pyc_i32v sum, pyc_u32v w, pyc_i32v x, pyc_u32v v,
                                         pyc_i32v y) {
    return pyc_vpdpbusd(pyc_vpdpbusd(sum, w, x), v, y);
}

#elif defined(__AVX2__)
#define PYC_INT8_ZERO 0
typedef pyc_i16v pyc_sumv;
PYC_INLINE pyc_sumv pyc_sum_start(pyc_i32v dot) { return (pyc_sumv)(int16_t)0; }
PYC_INLINE pyc_i32v pyc_sum_end(pyc_sumv sum, pyc_i32v dot) { return dot + pyc_vpmaddwd(sum, (pyc_i16v)(int16_t)1); }
/* Left to itself, the compiler does all of one token after all of another: half as many products wait for nothing. */
#define PYC_IN_TURN(value) if (T > 1) __asm__ volatile("" : "+x"(value))
PYC_INLINE void pyc_multiply_nibbles(const int T, const int C, pyc_sumv *sum, const pyc_u32v *w, pyc_i32v x) {
    pyc_sumv product[PYC_COLUMNS];
    PYC_UNROLL for (int c = 0; c < C; c++) {
        product[c] = pyc_vpmaddubsw((pyc_bytesv)w[c], (pyc_bytesv)x);
        PYC_IN_TURN(product[c]);
    }
    PYC_UNROLL for (int c = 0; c < C; c++) {
        sum[c] += product[c];
        PYC_IN_TURN(sum[c]);
    }
}
PYC_INLINE pyc_i32v pyc_multiply_bytes(pyc_i32v sum, pyc_u32v w, pyc_i32v x) {
    const pyc_bytesv q = (pyc_bytesv)(w ^ 0x80808080u);
    const pyc_i16v pairs = pyc_vpmaddubsw(__builtin_elementwise_abs(q), pyc_vpsignb((pyc_bytesv)x, q));
    return sum + pyc_vpmaddwd(pairs, (pyc_i16v)(int16_t)1);
}
PYC_INLINE pyc_i32v pyc_multiply_entries(const int small, pyc_i32v sum, pyc_u32v w, pyc_i32v x, pyc_u32v v,
                                         pyc_i32v y) {
    const pyc_i16v one = (pyc_i16v)(int16_t)1;
    const pyc_i16v first = pyc_vpmaddubsw((pyc_bytesv)w, (pyc_bytesv)x),
                   second = pyc_vpmaddubsw((pyc_bytesv)v, (pyc_bytesv)y);
    if (small) return sum + pyc_vpmaddwd(first + second, one);
    return sum + pyc_vpmaddwd(first, one) + pyc_vpmaddwd(second, one);
}

#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#define PYC_INT8_ZERO 0
typedef pyc_i32v pyc_sumv;
PYC_INLINE pyc_sumv pyc_sum_start(pyc_i32v dot) { return dot; }
PYC_INLINE pyc_i32v pyc_sum_end(pyc_sumv sum, pyc_i32v dot) { return sum; }
PYC_INLINE pyc_i32v pyc_sdot(pyc_i32v sum, pyc_u32v w, pyc_i32v x) {
    return (pyc_i32v)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
}
PYC_INLINE void pyc_multiply_nibbles(const int T, const int C, pyc_sumv *sum, const pyc_u32v *w, pyc_i32v x) {
    PYC_UNROLL for (int c = 0; c < C; c++) sum[c] = pyc_sdot(sum[c], w[c], x);
}
PYC_INLINE pyc_i32v pyc_multiply_bytes(pyc_i32v sum, pyc_u32v w, pyc_i32v x) {
    return pyc_sdot(sum, w ^ 0x80808080u, x);
}
PYC_INLINE pyc_i32v pyc_multiply_entries(const int small, pyc_i32v sum, pyc_u32v w, pyc_i32v x, pyc_u32v v,
                                         pyc_i32v y) {
    return pyc_sdot(pyc_sdot(sum, w, x), v, y);
}

#else
#define PYC_INT8_ZERO 0
typedef int16_t pyc_sumv __attribute__((ext_vector_type(2 * PYC_LANES)));
PYC_INLINE pyc_sumv pyc_even(pyc_u32v w) { return ((pyc_sumv)w) << 8 >> 8; }
PYC_INLINE pyc_sumv pyc_odd(pyc_u32v w) { return ((pyc_sumv)w) >> 8; }
PYC_INLINE pyc_sumv pyc_sum_start(pyc_i32v dot) { return (pyc_sumv)(int16_t)0; }
PYC_INLINE pyc_i32v pyc_sum_end(pyc_sumv sum, pyc_i32v dot) {
    const pyc_i32v pairs = ((pyc_i32v)sum);
    return dot + (pairs << 16 >> 16) + (pairs >> 16);
}
PYC_INLINE pyc_sumv pyc_products(pyc_u32v w, pyc_u32v x) {
    return pyc_even(w) * pyc_even(x) + pyc_odd(w) * pyc_odd(x);
}
PYC_INLINE void pyc_multiply_nibbles(const int T, const int C, pyc_sumv *sum, const pyc_u32v *w, pyc_i32v x) {
    PYC_UNROLL for (int c = 0; c < C; c++) sum[c] += pyc_products(w[c], (pyc_u32v)x);
}
PYC_INLINE pyc_i32v pyc_multiply_bytes(pyc_i32v sum, pyc_u32v w, pyc_i32v x) {
    return pyc_sum_end(pyc_products(w ^ 0x80808080u, (pyc_u32v)x), sum);
}
PYC_INLINE pyc_i32v pyc_multiply_entries(const int small, pyc_i32v sum, pyc_u32v w, pyc_i32v x, pyc_u32v v,
                                         pyc_i32v y) {
    return pyc_sum_end(pyc_products(v, (pyc_u32v)y), pyc_sum_end(pyc_products(w, (pyc_u32v)x), sum));
}
#endif

/* `w` points to the first wanted vector of the block in the panel, `x` to the block of the first token. */
PYC_INLINE void pyc_dot_int4(const int T, const int C, const uint8_t *w, const uint8_t *x, const int row_bytes,
                             pyc_dots dot) {
    pyc_sumv sum[PYC_REGISTER_TOKENS][PYC_COLUMNS];
    PYC_UNROLL for (int t = 0; t < T; t++)
        PYC_UNROLL for (int c = 0; c < C; c++) sum[t][c] = pyc_sum_start(dot[t][c]);
    PYC_UNROLL for (int j = 0; j < 4; j++) {
        pyc_u32v both[PYC_COLUMNS], q[PYC_COLUMNS];
        PYC_UNROLL for (int c = 0; c < C; c++) both[c] = pyc_load_u32v(w + j * PYC_PANEL_STEP + c * PYC_VECTOR_BYTES);
        PYC_UNROLL for (int high = 0; high < 2; high++) {
            PYC_UNROLL for (int c = 0; c < C; c++) q[c] = (high ? both[c] >> 4 : both[c]) & 0x0f0f0f0fu;
            /* the tokens in turn: sums that follow each other do not wait */
            PYC_UNROLL for (int t = 0; t < T; t++) {
                const pyc_i32v four = (pyc_i32v)pyc_load_i32(x + (ptrdiff_t)t * row_bytes + 4 * j + 16 * high);
                pyc_multiply_nibbles(T, C, sum[t], q, four);
            }
        }
    }
    PYC_UNROLL for (int t = 0; t < T; t++)
        PYC_UNROLL for (int c = 0; c < C; c++) dot[t][c] = pyc_sum_end(sum[t][c], dot[t][c]);
}

PYC_INLINE void pyc_dot_int8(const int T, const int C, const uint8_t *w, const uint8_t *x, const int row_bytes,
                             pyc_dots dot) {
    PYC_UNROLL for (int j = 0; j < 8; j++)
        PYC_UNROLL for (int c = 0; c < C; c++) {
            const pyc_u32v bytes = pyc_load_u32v(w + j * PYC_PANEL_STEP + c * PYC_VECTOR_BYTES);
            PYC_UNROLL for (int t = 0; t < T; t++)
                dot[t][c] = pyc_multiply_bytes(dot[t][c], bytes, pyc_load_i32(x + (ptrdiff_t)t * row_bytes + 4 * j));
        }
}

#endif
