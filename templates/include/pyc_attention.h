/* Attention of query rows over a paged cache, for one key/value head at a time.
 *
 * Cache of a layer: [blocks, 2, kv_heads, 16 * head_dim], blocks of 16 positions; keys lie as [head_dim][16], so that a
 * lane is a position, values as [16][head_dim]. Rows are the queries of all tokens and of the `group` heads that
 * share a key/value head, row = token * group + head; a tile of up to PYC_ROWS rows of one sequence reads
 * each block once.
 *
 * Per row and block of 16 positions, in order (online softmax, arXiv:1805.02867):
 *   s = scale * q K, masked;  m' = max(m, max s);  c = e^(m - m');  p = e^(s - m');  l = c l + sum p;  v = c v + p V
 * A block that a row does not see leaves it bit for bit as it was (c = 1, p = 0), so a result depends neither on the
 * tile nor on the batch around the row.
 */
#ifndef PYC_ATTENTION_H
#define PYC_ATTENTION_H

#include "pyc_vectors.h"

/* Two chains of scores for each row and vector of positions fit the registers. */
#if defined(__AVX512F__)
#define PYC_ROWS 8
#else
#define PYC_ROWS 2
#endif

#define PYC_MASKED (-1e30f)
/* Rows that one call takes from a key/value head: enough tiles to share a block, few enough to balance threads. */
#define PYC_UNIT_ROWS 32

struct pyc_attention {
    int heads;
    int kv_heads;
    int head_dim;
    int table_width;
    int window; /* 0: unbounded */
    int half;   /* the cache holds f16, else f32 */
    float scale;
};

/* e^x for x <= 0: 2^n p(r), n = round(x / ln 2), p the Taylor polynomial of degree 7; relative error 2e-7 from -87 up,
 * below that e^-87. e^0 is 1 exactly. */
PYC_INLINE pyc_f32v pyc_exp(pyc_f32v x) {
    x = __builtin_elementwise_max(x, (pyc_f32v)-87.0f);
    const pyc_f32v n = __builtin_elementwise_floor(pyc_fma(x, (pyc_f32v)1.4426950408889634f, (pyc_f32v)0.5f));
    pyc_f32v r = pyc_fma(n, (pyc_f32v)-0.693359375f, x);
    r = pyc_fma(n, (pyc_f32v)2.12194440e-4f, r);
    pyc_f32v p = 1.0f / 5040;
    p = pyc_fma(p, r, (pyc_f32v)(1.0f / 720));
    p = pyc_fma(p, r, (pyc_f32v)(1.0f / 120));
    p = pyc_fma(p, r, (pyc_f32v)(1.0f / 24));
    p = pyc_fma(p, r, (pyc_f32v)(1.0f / 6));
    p = pyc_fma(p, r, (pyc_f32v)0.5f);
    p = pyc_fma(p, r, (pyc_f32v)1.0f);
    p = pyc_fma(p, r, (pyc_f32v)1.0f);
    const pyc_i32v power = (__builtin_convertvector(n, pyc_i32v) + 127) << 23;
    return p * (pyc_f32v)power;
}

/* PYC_LANES values of the cache from element `at` on. */
PYC_INLINE pyc_f32v pyc_cached(const uint8_t *cache, ptrdiff_t at, const struct pyc_attention a) {
    return a.half ? pyc_f16_values(pyc_load_u16v(cache + 2 * at)) : pyc_load_f32v(cache + 4 * at);
}

PYC_INLINE float pyc_cached_one(const uint8_t *cache, ptrdiff_t at, const struct pyc_attention a) {
    return a.half ? pyc_f16_value(pyc_load_u16(cache + 2 * at)) : pyc_load_f32(cache + 4 * at);
}

/* What a tile of rows carries from block to block. */
struct pyc_rows {
    const float *query[PYC_ROWS];
    float *value[PYC_ROWS];
    int first[PYC_ROWS]; /* positions that the row sees: [first, last] */
    int last[PYC_ROWS];
    float maximum[PYC_ROWS];
    float sum[PYC_ROWS];
    float correction[PYC_ROWS];
    float weight[PYC_ROWS][PYC_PANEL];
};

/* With few rows the cache comes from memory, in pieces of 4 KB that end the hardware's prefetching: the next block is
 * asked for while this one is read. Tiles of many rows find it in the second-level cache. */
#define PYC_AHEAD(R) ((R) <= 2)

/* Scores, softmax weights and corrections of R rows for the block at positions [start, start + 16). */
PYC_INLINE void pyc_block_weights(const int R, struct pyc_rows *rows, const uint8_t *cache, ptrdiff_t keys,
                                  ptrdiff_t next_keys, int start, const struct pyc_attention a) {
    /* Even and odd features apart: two chains of additions a row hide the latency of few rows. */
    pyc_f32v score[2][PYC_ROWS][PYC_COLUMNS];
    PYC_UNROLL for (int h = 0; h < 2; h++) PYC_UNROLL for (int r = 0; r < R; r++)
        PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) score[h][r][c] = 0;
    const int even = a.head_dim & ~1;
    PYC_ROLLED for (int i = 0; i < even; i += 2) {
        if (PYC_AHEAD(R)) __builtin_prefetch(cache + (next_keys + i * PYC_PANEL) * (a.half ? 2 : 4), 0, 3);
        PYC_UNROLL for (int h = 0; h < 2; h++) PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
            const pyc_f32v key = pyc_cached(cache, keys + (i + h) * PYC_PANEL + c * PYC_LANES, a);
            PYC_UNROLL for (int r = 0; r < R; r++)
                score[h][r][c] = pyc_fma((pyc_f32v)rows->query[r][i + h], key, score[h][r][c]);
        }
    }
    if (even < a.head_dim)
        PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
            const pyc_f32v key = pyc_cached(cache, keys + even * PYC_PANEL + c * PYC_LANES, a);
            PYC_UNROLL for (int r = 0; r < R; r++)
                score[0][r][c] = pyc_fma((pyc_f32v)rows->query[r][even], key, score[0][r][c]);
        }
    pyc_i32v position[PYC_COLUMNS];
    PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++)
        PYC_UNROLL for (int lane = 0; lane < PYC_LANES; lane++) position[c][lane] = start + c * PYC_LANES + lane;
    PYC_UNROLL for (int r = 0; r < R; r++) {
        pyc_f32v top = PYC_MASKED;
        PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
            const pyc_i32v seen = (position[c] <= rows->last[r]) & (position[c] >= rows->first[r]);
            const pyc_f32v scaled = (score[0][r][c] + score[1][r][c]) * a.scale;
            score[0][r][c] = (pyc_f32v)(((pyc_i32v)scaled & seen) | ((pyc_i32v)(pyc_f32v)PYC_MASKED & ~seen));
            top = __builtin_elementwise_max(top, score[0][r][c]);
        }
        const float before = rows->maximum[r];
        const float largest = __builtin_reduce_max(top);
        const float after = largest > before ? largest : before;
        rows->correction[r] = pyc_exp((pyc_f32v)(before - after))[0];
        rows->maximum[r] = after;
        float total = 0;
        PYC_UNROLL for (int c = 0; c < PYC_COLUMNS; c++) {
            const pyc_i32v seen = score[0][r][c] > (pyc_f32v)PYC_MASKED;
            const pyc_f32v weight = (pyc_f32v)((pyc_i32v)pyc_exp(score[0][r][c] - after) & seen);
            memcpy(rows->weight[r] + c * PYC_LANES, &weight, sizeof weight);
        }
        PYC_UNROLL for (int j = 0; j < PYC_PANEL; j++) total += rows->weight[r][j];
        rows->sum[r] = rows->sum[r] * rows->correction[r] + total;
    }
}

/* v = c v + p V for R rows; C vectors of features at a time keep enough chains going. */
PYC_INLINE void pyc_block_features(const int R, const int C, struct pyc_rows *rows, const uint8_t *cache,
                                   ptrdiff_t values, ptrdiff_t next_values, int feature, const struct pyc_attention a) {
    pyc_f32v sum[PYC_ROWS][4];
    PYC_UNROLL for (int r = 0; r < R; r++) PYC_UNROLL for (int c = 0; c < C; c++)
        sum[r][c] = pyc_load_f32v(rows->value[r] + feature + c * PYC_LANES) * rows->correction[r];
    PYC_ROLLED for (int j = 0; j < PYC_PANEL; j++) PYC_UNROLL for (int c = 0; c < C; c++) {
        const ptrdiff_t ahead = next_values + j * a.head_dim + feature + c * PYC_LANES;
        if (PYC_AHEAD(R)) __builtin_prefetch(cache + ahead * (a.half ? 2 : 4), 0, 3);
        const pyc_f32v value = pyc_cached(cache, values + j * a.head_dim + feature + c * PYC_LANES, a);
        PYC_UNROLL for (int r = 0; r < R; r++)
            sum[r][c] = pyc_fma((pyc_f32v)rows->weight[r][j], value, sum[r][c]);
    }
    PYC_UNROLL for (int r = 0; r < R; r++) PYC_UNROLL for (int c = 0; c < C; c++)
        memcpy(rows->value[r] + feature + c * PYC_LANES, &sum[r][c], sizeof sum[r][c]);
}

PYC_INLINE void pyc_block_values(const int R, struct pyc_rows *rows, const uint8_t *cache, ptrdiff_t values,
                                 ptrdiff_t next_values, const struct pyc_attention a) {
    const int C = R > 4 ? 2 : 4;
    int feature = 0;
    for (; feature + C * PYC_LANES <= a.head_dim; feature += C * PYC_LANES)
        pyc_block_features(R, C, rows, cache, values, next_values, feature, a);
    for (; feature + PYC_LANES <= a.head_dim; feature += PYC_LANES)
        pyc_block_features(R, 1, rows, cache, values, next_values, feature, a);
    for (; feature < a.head_dim; feature++)
        for (int r = 0; r < R; r++) {
            float sum = rows->value[r][feature] * rows->correction[r];
            for (int j = 0; j < PYC_PANEL; j++)
                sum += rows->weight[r][j] * pyc_cached_one(cache, values + j * a.head_dim + feature, a);
            rows->value[r][feature] = sum;
        }
}

/* R rows of one sequence, from their first visible block to their last; rows->value points into y. */
PYC_INLINE void pyc_attend(const int R, struct pyc_rows *rows, const int32_t *table, const uint8_t *cache, int kv_head,
                           const struct pyc_attention a) {
    int first = rows->first[0], last = rows->last[0];
    for (int r = 0; r < R; r++) {
        first = rows->first[r] < first ? rows->first[r] : first;
        last = rows->last[r] > last ? rows->last[r] : last;
        rows->maximum[r] = PYC_MASKED;
        rows->sum[r] = 0;
        for (int i = 0; i < a.head_dim; i++) rows->value[r][i] = 0;
    }
    const ptrdiff_t head_elements = (ptrdiff_t)PYC_PANEL * a.head_dim;
    for (int b = first / PYC_PANEL; b <= last / PYC_PANEL; b++) {
        const int next = b < last / PYC_PANEL ? b + 1 : b;
        const ptrdiff_t keys = ((ptrdiff_t)table[b] * 2 * a.kv_heads + kv_head) * head_elements;
        const ptrdiff_t next_keys = ((ptrdiff_t)table[next] * 2 * a.kv_heads + kv_head) * head_elements;
        const ptrdiff_t values = a.kv_heads * head_elements;
        pyc_block_weights(R, rows, cache, keys, next_keys, b * PYC_PANEL, a);
        pyc_block_values(R, rows, cache, keys + values, next_keys + values, a);
    }
    for (int r = 0; r < R; r++) {
        const float inverse = 1.0f / rows->sum[r];
        for (int i = 0; i < a.head_dim; i++) rows->value[r][i] *= inverse;
    }
}

/* Row n of a key/value head into slot r of a tile. */
PYC_INLINE void pyc_take_row(struct pyc_rows *rows, int r, int n, const float *queries, const int32_t *positions,
                             float *y, int kv_head, const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads;
    const int token = n / group;
    const ptrdiff_t at = ((ptrdiff_t)token * a.heads + kv_head * group + n % group) * a.head_dim;
    rows->query[r] = queries + at;
    rows->value[r] = y + at;
    rows->last[r] = positions[token];
    rows->first[r] = a.window && positions[token] >= a.window ? positions[token] - a.window + 1 : 0;
}

/* Units [unit_start, unit_stop) of m tokens: a unit is PYC_UNIT_ROWS rows of a key/value head, heads outermost. */
PYC_INLINE int32_t pyc_cached_attention(const float *queries, const int32_t *positions, const int32_t *sequences,
                                        const int32_t *block_table, const uint8_t *cache, float *y, int32_t m,
                                        int32_t unit_start, int32_t unit_stop, const struct pyc_attention a) {
    const int group = a.heads / a.kv_heads;
    const int units_a_head = (m * group + PYC_UNIT_ROWS - 1) / PYC_UNIT_ROWS;
    for (int unit = unit_start; unit < unit_stop; unit++) {
        const int kv_head = unit / units_a_head;
        int n = unit % units_a_head * PYC_UNIT_ROWS;
        const int stop = n + PYC_UNIT_ROWS < m * group ? n + PYC_UNIT_ROWS : m * group;
        while (n < stop) {
            struct pyc_rows rows;
            const int token = n / group;
            pyc_take_row(&rows, 0, n, queries, positions, y, kv_head, a);
            if (positions[token] < 0) {
                for (int i = 0; i < a.head_dim; i++) rows.value[0][i] = 0;
                n++;
                continue;
            }
            int count = 1;
            while (count < PYC_ROWS && n + count < stop && positions[(n + count) / group] >= 0 &&
                   sequences[(n + count) / group] == sequences[token]) {
                pyc_take_row(&rows, count, n + count, queries, positions, y, kv_head, a);
                count++;
            }
            const int32_t *table = block_table + (ptrdiff_t)sequences[token] * a.table_width;
            if (PYC_ROWS == 8 && count == 8) {
                pyc_attend(8, &rows, table, cache, kv_head, a);
                n += 8;
            } else if (PYC_ROWS >= 4 && count >= 4) {
                pyc_attend(4, &rows, table, cache, kv_head, a);
                n += 4;
            } else if (count >= 2) {
                pyc_attend(2, &rows, table, cache, kv_head, a);
                n += 2;
            } else {
                pyc_attend(1, &rows, table, cache, kv_head, a);
                n += 1;
            }
        }
    }
    return 0;
}

#endif
