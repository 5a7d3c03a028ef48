/* Softmax weights of a row over the positions of a block, and what they change of the row's earlier sums.
 *
 * Online softmax (arXiv:1805.02867) in powers of two, t = scale * log2(e) * q k:
 *   m' = max(m, max t);  c = 2^(m - m');  p = 2^(t - m');  l = c l + sum p;  v = c v + p V
 * A block that a row does not see leaves it bit for bit as it was (c = 1, p = 0).
 */
#ifndef PYC_SOFTMAX_H
#define PYC_SOFTMAX_H

#include "pyc_cache.h"
#include "pyc_instructions.h"

#define PYC_MASKED (-1e30f)
#define PYC_LOG2_E 1.4426950408889634f

/* 2^x for x <= 0: 2^n p(f), n = round(x), p the Taylor polynomial of degree 6; relative error 2e-7 from -126 up,
 * 2^-126 below. 2^0 is 1 exactly. */
PYC_INLINE pyc_f32v pyc_exp2(pyc_f32v x) {
    x = pyc_larger(x, (pyc_f32v)-126.0f);
    const pyc_f32v n = __builtin_elementwise_rint(x);
    const pyc_f32v f = x - n;
    pyc_f32v p = 1.5403530393381609e-4f;
    p = pyc_fma(p, f, (pyc_f32v)1.3333558146428443e-3f);
    p = pyc_fma(p, f, (pyc_f32v)9.6181291076284771e-3f);
    p = pyc_fma(p, f, (pyc_f32v)5.5504108664821580e-2f);
    p = pyc_fma(p, f, (pyc_f32v)2.4022650695910071e-1f);
    p = pyc_fma(p, f, (pyc_f32v)6.9314718055994531e-1f);
    p = pyc_fma(p, f, (pyc_f32v)1.0f);
#if defined(__AVX512F__)
    return pyc_vscalefps(p, n);
#else
    return (pyc_f32v)((pyc_i32v)p + (__builtin_convertvector(n, pyc_i32v) << 23));
#endif
}

/* 2^x for a weight that is rounded to bf16: 2^floor(x) by a polynomial of degree 4 (minimax), relative error 3e-6; 0
 * below -126. x may be -inf, and above 0 by a rounding. */
PYC_INLINE pyc_f32v pyc_weight(pyc_f32v x) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    const pyc_f32v f = pyc_vreduceps_down(x);
#else
    const pyc_f32v n = __builtin_elementwise_floor(pyc_larger(x, (pyc_f32v)-127.0f)), f = x - n;
#endif
    pyc_f32v p = 1.353416704e-2f;
    p = pyc_fma(p, f, (pyc_f32v)5.201146044e-2f);
    p = pyc_fma(p, f, (pyc_f32v)2.414427574e-1f);
    p = pyc_fma(p, f, (pyc_f32v)6.930038344e-1f);
    p = pyc_fma(p, f, (pyc_f32v)1.0000025934f);
#if defined(__AVX512F__) && defined(__AVX512DQ__)
    return pyc_vscalefps_from(-126.0f, p, x);
#else
    return (pyc_f32v)((pyc_i32v)p + (__builtin_convertvector(n, pyc_i32v) << 23) & (x >= (pyc_f32v)-126.0f));
#endif
}

PYC_INLINE float pyc_exp2_one(float x) { return pyc_exp2((pyc_f32v)x)[0]; }

/* What a row carries from block to block; its values are elsewhere. */
struct pyc_row {
    float maximum;
    float correction; /* c of the block at hand */
    float scale;      /* int8: what the integer sums of weights and values are to be multiplied with */
    int32_t total;    /* int8: sum of the integer weights */
    float sum[PYC_PANEL];
};

PYC_INLINE void pyc_begin_row(struct pyc_row *row) {
    memset(row, 0, sizeof *row);
    row->maximum = PYC_MASKED;
}

/* Groups [from, to) of 16 scores of a row that sees [first, last], from position `start` on: hides what it does not
 * see, and returns the largest. masked: there is something to hide. */
PYC_INLINE float pyc_largest_score(const int masked, float *score, int start, int from, int to, int first, int last) {
    pyc_f32v top[PYC_COLUMNS];
    pyc_i32v lane = 0;
    PYC_UNROLL for (int i = 0; i < PYC_LANES; i++) lane[i] = i;
    PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) top[c] = PYC_MASKED;
    for (int group = from; group < to; group++) PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
        const int at = group * PYC_PANEL + c * PYC_LANES;
        pyc_f32v t = pyc_load_f32v(score + at);
        if (masked) {
            const pyc_i32v position = lane + (start + at), seen = (position <= last) & (position >= first);
            t = (pyc_f32v)(((pyc_i32v)t & seen) | ((pyc_i32v)(pyc_f32v)PYC_MASKED & ~seen));
            memcpy(score + at, &t, sizeof t);
        }
        top[c] = pyc_larger(t, top[c]);
    }
    PYC_UNROLL for (int c = 1; c < PYC_COLUMNS; c++) top[0] = pyc_larger(top[c], top[0]);
    return pyc_largest(top[0]);
}

/* The same scores into weights p, in place, by the row's new maximum and the correction that goes with it; with scales
 * of the positions, into p times those. Returns the largest of them (with scales only). */
PYC_INLINE float pyc_row_weights(const int masked, const int scaled, struct pyc_row *row, float *score,
                                 const float *scales, int from, int to) {
    const float maximum = row->maximum, correction = row->correction;
    pyc_f32v sums[PYC_COLUMNS], top = 0;
    PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) sums[c] = pyc_load_f32v(row->sum + c * PYC_LANES) * correction;
    for (int group = from; group < to; group++) PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
        float *at = score + group * PYC_PANEL + c * PYC_LANES;
        const pyc_f32v t = pyc_load_f32v(at);
        pyc_f32v p = pyc_exp2(t - maximum);
        if (masked) p = (pyc_f32v)((pyc_i32v)p & (t > (pyc_f32v)PYC_MASKED));
        sums[c] += p;
        if (scaled) {
            p *= pyc_load_f32v(scales + (at - score));
            if (masked) p = (pyc_f32v)((pyc_i32v)p & (t > (pyc_f32v)PYC_MASKED)); /* a scale may be anything there */
            top = pyc_larger(p, top);
        }
        memcpy(at, &p, sizeof p);
    }
    PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) memcpy(row->sum + c * PYC_LANES, &sums[c], sizeof sums[c]);
    return scaled ? pyc_largest(top) : 0;
}

#endif
