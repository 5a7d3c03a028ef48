/* Matmuls of symmetric int4 with many tokens, by AVX-512 VNNI: scales folded into the codes, bit for bit those of
 * pyc_linear_integer.h.
 *
 * A scale has four significant bits: scale = +-m 2^e with m in [8, 15]. For a chunk of tokens the codes of a panel
 * become bytes 128 +- m (q - 8), once, and what is left of the scales are powers of two. A block then is
 *
 *   2^(e + e_x) * (sum of (128 +- m (q - 8)) x - 128 sum of x)
 *
 * where the sums are integers below 2^24: exact, as the product of dot and scale is in the other kernel.
 *
 * Why: the multiplication by a scale takes a slot of the dot products' ports, one of nine. Powers of two are applied by
 * additions to exponents (vscalefps), which have ports of their own. They are done for the block before, a token after
 * each step of this one: all at the end of a block they would fill the scheduler and keep the dot products out. The
 * empty asm statements keep that order: without them the compiler does a token's eight steps, which wait for each
 * other, in turn.
 */
#ifndef PYC_LINEAR_FOLDED_H
#define PYC_LINEAR_FOLDED_H

#include "pyc_linear_integer.h"
#include "pyc_work_partition.h"
#include "pyc_interleaved_rows.h"

#if PYC_FOLDS

#define PYC_SEGMENT 32 /* blocks at a time: their codes, and a register block, stay in the first-level cache */
#define PYC_STEPS 8    /* of a block: 4 inputs of 16 rows each */
_Static_assert(PYC_STEPS == PYC_INTERLEAVED_TOKENS, "a token's block is scaled after each step");

/* A segment of a panel. */
struct pyc_folded {
    uint8_t codes[PYC_SEGMENT][PYC_STEPS][PYC_PANEL_STEP];
    pyc_f32v power[PYC_SEGMENT];
};

/* Folds blocks [first, first + blocks) of a panel. */
PYC_OUTLINE void pyc_fold_panel(struct pyc_folded *to, const uint8_t *panel, int first, int blocks,
                                const struct pyc_shape s) {
    typedef uint16_t halves __attribute__((ext_vector_type(2 * PYC_LANES)));
    typedef uint8_t bytes __attribute__((ext_vector_type(4 * PYC_LANES)));
    PYC_ROLLED for (int b = 0; b < blocks; b++) {
        const pyc_u32v scale = (pyc_u32v)pyc_group_scale(panel, (first + b) / s.group_blocks, 0, s);
        const pyc_u32v negative = (pyc_u32v)((pyc_i32v)scale >> 31), m = (scale >> 20 & 7) | 8;
        to->power[b] = __builtin_convertvector((pyc_i32v)(scale >> 23 & 0xff) - 130, pyc_f32v);
        /* m q + 128 - 8 m, or ~(m q) + 129 + 8 m; two codes at once: m q is below 256, and reaches into no other. */
        const pyc_u32v offset = (negative & (129 + 8 * m)) | (~negative & (128 - 8 * m));
        const bytes offsets = (bytes)(offset * 0x01010101u);
        const halves factor = (halves)(m | m << 16);
        PYC_UNROLL for (int j = 0; j < PYC_STEPS / 2; j++) {
            const pyc_u32v both = pyc_load_u32v(panel + s.data + (4 * (first + b) + j) * PYC_PANEL_STEP);
            PYC_UNROLL for (int high = 0; high < 2; high++) {
                const pyc_u32v codes = (high ? both >> 4 : both) & 0x0f0f0f0fu;
                const bytes folded = (bytes)((pyc_u32v)((halves)codes * factor) ^ negative) + offsets;
                memcpy(to->codes[b][PYC_STEPS / 2 * high + j], &folded, sizeof folded);
            }
        }
    }
}

/* sum += what the dot products of a block stand for. */
PYC_INLINE pyc_f32v pyc_add_block(pyc_f32v sum, pyc_i32v dot, pyc_f32v power, float row_power) {
    return sum + pyc_vscalefps(pyc_to_f32v(dot), power + row_power);
}

/* to[t] = from[t] + a register block by a segment of a panel; `from` may be NULL, for 0. Meanwhile `share` bytes a
 * block come from `upcoming` on: prefetched at once, they would keep its own lines waiting. */
PYC_OUTLINE void pyc_folded_register_block(const struct pyc_folded *w, const struct pyc_interleaved_block *x,
                                           int blocks, const pyc_f32v *from, pyc_f32v *to, const uint8_t *upcoming,
                                           int share) {
    pyc_f32v sum[PYC_INTERLEAVED_TOKENS], power = 0;
    pyc_i32v before[PYC_INTERLEAVED_TOKENS];
    PYC_UNROLL for (int t = 0; t < PYC_INTERLEAVED_TOKENS; t++) {
        before[t] = 0;
        sum[t] = from ? from[t] : (pyc_f32v)0;
    }
    PYC_ROLLED for (int b = 0; b < blocks; b++) {
        const float *row_power = x[b ? b - 1 : 0].power; /* before the first block is nothing */
        pyc_i32v dot[PYC_INTERLEAVED_TOKENS];
        __builtin_prefetch(upcoming + b * share, 0, 2);
        PYC_UNROLL for (int t = 0; t < PYC_INTERLEAVED_TOKENS; t++) dot[t] = x[b].correction[t];
        PYC_UNROLL for (int j = 0; j < PYC_STEPS; j++) {
            const pyc_u32v codes = pyc_load_u32v(w->codes[b][j]);
            PYC_UNROLL for (int t = 0; t < PYC_INTERLEAVED_TOKENS; t++) {
                dot[t] = pyc_multiply_bytes(dot[t], codes, pyc_load_i32(x[b].values[t] + 4 * j));
                __asm__ volatile("" : "+v"(dot[t]));
                if (t == PYC_INTERLEAVED_TOKENS / 2) {
                    sum[j] = pyc_add_block(sum[j], before[j], power, row_power[j]);
                    __asm__ volatile("" : "+v"(sum[j]));
                }
            }
        }
        power = w->power[b];
        PYC_UNROLL for (int t = 0; t < PYC_INTERLEAVED_TOKENS; t++) before[t] = dot[t];
    }
    PYC_UNROLL for (int t = 0; t < PYC_INTERLEAVED_TOKENS; t++)
        to[t] = pyc_add_block(sum[t], before[t], power, x[blocks - 1].power[t]);
}

/* The groups of PYC_INTERLEAVED_TOKENS rows of a run by one panel. */
PYC_INLINE void pyc_folded_panel(const uint8_t *x, const uint8_t *panel, const float *bias, float *y, int token_start,
                                 int groups, int columns, const struct pyc_shape s) {
    struct pyc_folded folded __attribute__((aligned(64)));
    pyc_f32v sums[PYC_FOLDED_CHUNK], done[PYC_INTERLEAVED_TOKENS]; /* sums in y, rows apart, would not stay near */
    for (int first = 0; first < s.blocks; first += PYC_SEGMENT) {
        const int blocks = s.blocks - first < PYC_SEGMENT ? s.blocks - first : PYC_SEGMENT;
        const int last = first + blocks == s.blocks, share = 4 * PYC_PANEL_STEP / groups;
        pyc_fold_panel(&folded, panel, first, blocks, s);
        const uint8_t *upcoming = panel + s.data + (first + blocks) * 4 * PYC_PANEL_STEP;
        for (int i = 0; i < groups; i++) {
            const int token = token_start + i * PYC_INTERLEAVED_TOKENS;
            float *to = y + (ptrdiff_t)token * s.outputs;
            PYC_UNROLL for (int t = 0; last && t < PYC_INTERLEAVED_TOKENS; t++)
                __builtin_prefetch(to + (ptrdiff_t)t * s.outputs, 1, 3);
            pyc_f32v *sum = sums + i * PYC_INTERLEAVED_TOKENS;
            pyc_folded_register_block(&folded, pyc_interleaved_at(x, token, s) + first, blocks, first ? sum : NULL,
                                      last ? done : sum,
                            upcoming + i * share * blocks, share);
            PYC_UNROLL for (int t = 0; last && t < PYC_INTERLEAVED_TOKENS; t++)
                pyc_store_row(to + (ptrdiff_t)t * s.outputs, bias, done[t], columns);
        }
    }
}

/* The part of a run whose rows are interleaved; returns the first token behind it. */
PYC_INLINE int pyc_linear_folded(const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                 const struct pyc_run run, const struct pyc_shape s) {
    const int interleaved = pyc_interleaved_tokens(run.tokens),
              stop = interleaved < run.token_stop ? interleaved : run.token_stop;
    const int groups = (stop - run.token_start) / PYC_INTERLEAVED_TOKENS;
    if (groups <= 0) return run.token_start;
    for (int p = run.panel_start; p < run.panel_stop; p++)
        pyc_folded_panel(x, w + (ptrdiff_t)p * s.panel_bytes, bias ? bias + p * PYC_PANEL : NULL, y + p * PYC_PANEL,
                         run.token_start, groups, s.outputs - p * PYC_PANEL, s);
    return run.token_start + groups * PYC_INTERLEAVED_TOKENS;
}

#else

PYC_INLINE int pyc_linear_folded(const uint8_t *x, const uint8_t *w, const float *bias, float *y,
                                 const struct pyc_run run, const struct pyc_shape s) {
    return run.token_start;
}

#endif

PYC_INLINE int32_t pyc_linear_int4(const uint8_t *x, const uint8_t *w, const float *bias, float *y, struct pyc_run run,
                                   const struct pyc_shape s) {
    if (pyc_folds(s)) run.token_start = pyc_linear_folded(x, w, bias, y, run, s);
    return pyc_linear_int4_simd(x, w, bias, y, run, s);
}

#endif
