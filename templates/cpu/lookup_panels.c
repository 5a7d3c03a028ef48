/* Rows of f32 to panels of lookup codes, as compiler/lookup.py and backends/cpu/layouts.py say; the same bytes, several
 * times as fast. Compiled for the machine that builds. No result depends on its vectors: sums are of integers. */
#include <stdint.h>
#include <string.h>

#include "pyc_constants.h"

#define WORDS (PYC_BLOCK / 4)
#define MOST_ENTRIES 32

/* A block of weights, and as many integers. */
typedef float block_f32 __attribute__((ext_vector_type(PYC_BLOCK)));
typedef int32_t block_i32 __attribute__((ext_vector_type(PYC_BLOCK)));

static inline block_f32 load_block(const float *w) {
    block_f32 block;
    memcpy(&block, w, sizeof block);
    return block;
}

struct codebook {
    int32_t bits, shift, steps;
    int32_t entries[MOST_ENTRIES];
    int32_t step[8];
};

struct table {
    float entry[MOST_ENTRIES], middle[MOST_ENTRIES]; /* middle[j] lies between entries j and j + 1 */
};

static inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* To nearest, ties to even; |x| < 2^22. */
static inline block_f32 rounded(block_f32 x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

/* The squared error of a group in quarters of a table's unit, which is exact. */
static int32_t error_of(const float *w, int64_t group, float scale, const struct table *t, int entries) {
    block_i32 sum = 0;
    for (int64_t from = 0; from < group; from += PYC_BLOCK) {
        const block_f32 scaled = load_block(w + from) / scale;
        block_f32 value = t->entry[0];
        for (int j = 0; j + 1 < entries; j++) value = scaled >= t->middle[j] ? (block_f32)t->entry[j + 1] : value;
        const block_i32 error = __builtin_convertvector(rounded((scaled - value) * 4), block_i32);
        sum += error * error;
    }
    return __builtin_reduce_add(sum);
}

/* The bits of a group's scale, and which table it takes; 0xffffffff where a weight is not finite or a scale too large.
 */
static uint32_t scale_of(const float *w, int64_t group, const struct codebook *book, const struct table *tables,
                         uint8_t *taken) {
    float high = w[0], low = w[0];
    int bad = 0;
    for (int64_t from = 0; from < group; from += PYC_BLOCK)
        for (int k = 0; k < PYC_BLOCK; k++) {
            const float x = w[from + k];
            high = x > high ? x : high;
            low = x < low ? x : low;
            bad |= (bits_of(x) & 0x7f800000) == 0x7f800000;
        }
    if (bad) return 0xffffffff;
    const int entries = 1 << book->bits;
    const float extreme = high >= -low ? high : low;
    uint32_t best = 0;
    float least = 0;
    int found = 0;
    for (int table = 0; table < (book->shift ? 2 : 1); table++)
        for (int end = 0; end < 2; end++) {
            const float wanted = extreme / tables[table].entry[end ? entries - 1 : 0];
            const float size = wanted < 0 ? -wanted : wanted;
            if (size > 65504) return 0xffffffff;
            for (int i = 0; i < book->steps; i++) {
                const uint32_t middle = bits_of(wanted) & 0xfff00000;
                const uint32_t bits = size >= 0x1p-24f ? middle + (uint32_t)book->step[i] * 0x100000 : middle;
                const float scale = float_of(bits);
                const float error = (float)error_of(w, group, scale == 0 ? 1 : scale, tables + table, entries) *
                                    (scale * scale);
                if (found && error >= least) continue;
                found = 1;
                best = bits;
                least = error;
                *taken = (uint8_t)table;
            }
        }
    return best;
}

/* Writes the codes of a block for row `lane`. */
static void pack_block(const float *w, float scale, const struct table *t, int bits, int lane, uint8_t *block) {
    const block_f32 scaled = load_block(w) / scale;
    block_i32 count = 0;
    for (int j = 0; j + 1 < 1 << bits; j++) count -= scaled >= t->middle[j];
    uint8_t code[PYC_BLOCK];
    for (int k = 0; k < PYC_BLOCK; k++) code[k] = (uint8_t)count[k];
    uint32_t to[5] = {0, 0, 0, 0, 0};
    for (int j = 0; j < WORDS; j++) {
        uint32_t four;
        memcpy(&four, code + 4 * j, 4);
        if (bits >= 4)
            to[j % 4] |= (four & 0x0f0f0f0f) << j / 4 * 4;
        else
            to[j % 2] |= (four & 0x03030303) << j / 2 * 2;
        if (bits & 1) to[bits - 1] |= (four >> (bits - 1) & 0x01010101) << j;
    }
    for (int i = 0; i < bits; i++) memcpy(block + (i * PYC_PANEL + lane) * 4, &to[i], 4);
}

/* Row `lane` of a panel. */
static int pack_row(const float *w, int64_t inputs, int64_t group, int lane, const struct codebook *book,
                    const struct table *tables, uint8_t *panel, int64_t row_exponents, int64_t data, uint32_t *scale,
                    uint8_t *taken) {
    const int64_t groups = inputs / group, block_bytes = book->bits * PYC_PANEL * 4;
    uint32_t base = 127 - 24;
    for (int64_t g = 0; g < groups; g++) {
        scale[g] = scale_of(w + g * group, group, book, tables, taken + g);
        if (scale[g] == 0xffffffff) return 1;
        const uint32_t exponent = scale[g] >> 23 & 0xff;
        base = exponent > base + 7 ? exponent - 7 : base;
    }
    for (int64_t g = 0; g < groups; g++) {
        const uint32_t bits = (scale[g] >> 23 & 0xff) < base ? base << 23 : scale[g];
        const uint32_t byte = bits >> 31 << 7 | ((bits >> 23 & 0xff) - base) << 3 | (bits >> 20 & 7);
        panel[g * PYC_PANEL + lane] = (uint8_t)(byte | (uint32_t)taken[g] << 6);
        for (int64_t b = g * group / PYC_BLOCK; b < (g + 1) * group / PYC_BLOCK; b++)
            pack_block(w + b * PYC_BLOCK, float_of(bits), tables + taken[g], book->bits, lane,
                       panel + data + b * block_bytes);
    }
    const uint32_t bits = base << 23;
    memcpy(panel + row_exponents + 4 * lane, &bits, 4);
    return 0;
}

/* rows [count, inputs] to ceil(count / 16) panels, of which only the padding between sections is left as it was;
 * `scales` and `taken` have room for inputs / group. Returns 1, and leaves panels unfinished, where a row can't be
 * quantized. */
int32_t pyc_lookup_panels(const float *rows, int64_t count, int64_t inputs, int64_t group, uint8_t *panels,
                          int64_t panel_bytes, int64_t row_exponents, int64_t data, uint32_t *scales, uint8_t *taken,
                          const struct codebook *book) {
    struct table tables[2];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 1 << book->bits; j++) {
            tables[i].entry[j] = (float)(book->entries[j] + i * book->shift);
            if (j) tables[i].middle[j - 1] = (tables[i].entry[j - 1] + tables[i].entry[j]) / 2;
        }
    for (int64_t row = 0; row < count; row++) {
        uint8_t *panel = panels + row / PYC_PANEL * panel_bytes;
        if (pack_row(rows + row * inputs, inputs, group, (int)(row % PYC_PANEL), book, tables, panel, row_exponents,
                     data, scales, taken))
            return 1;
    }
    const float base = 0x1p-24f;
    for (int64_t row = count; row % PYC_PANEL; row++) { /* rows past the last one: codes of 0 */
        uint8_t *panel = panels + row / PYC_PANEL * panel_bytes;
        for (int64_t g = 0; g < inputs / group; g++) panel[g * PYC_PANEL + row % PYC_PANEL] = 0;
        for (int64_t j = 0; j < inputs / PYC_BLOCK * book->bits; j++)
            memset(panel + data + (j * PYC_PANEL + row % PYC_PANEL) * 4, 0, 4);
        memcpy(panel + row_exponents + 4 * (row % PYC_PANEL), &base, 4);
    }
    return 0;
}
