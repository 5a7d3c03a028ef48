/* Rows of f32 to panels of symmetric int4, as compiler/quantization.py and backends/cpu/layouts.py say; the same bytes,
 * in a fifth of the time. Compiled for the machine that builds. No result depends on its vectors: sums are of integers.
 */
#include <stdint.h>
#include <string.h>

#include "pyc_constants.h"

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
static inline float rounded(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

static inline float code(float scaled) {
    const float q = rounded(scaled);
    return q < -8 ? -8 : q > 7 ? 7 : q;
}

/* The squared error of a group in steps of scale / 64, which is exact: at most 128 times 200^2. */
static int32_t error_of(const float *w, int64_t group, float scale) {
    int32_t sum = 0;
    for (int64_t from = 0; from < group; from += PYC_BLOCK)
        for (int k = 0; k < PYC_BLOCK; k++) {
            const float scaled = w[from + k] / scale;
            const int32_t error = (int32_t)rounded((scaled - code(scaled)) * 64);
            sum += error * error;
        }
    return sum;
}

/* The bits of a group's scale; 0xffffffff where a weight is not finite or the scale too large. */
static uint32_t scale_of(const float *w, int64_t group) {
    float high = w[0], low = w[0];
    int bad = 0;
    for (int64_t from = 0; from < group; from += PYC_BLOCK)
        for (int k = 0; k < PYC_BLOCK; k++) {
            const float x = w[from + k];
            high = x > high ? x : high;
            low = x < low ? x : low;
            bad |= (bits_of(x) & 0x7f800000) == 0x7f800000;
        }
    const float wanted = (high >= -low ? high : low) / -8;
    if (bad || wanted > 65504 || wanted < -65504) return 0xffffffff;
    const uint32_t middle = bits_of(wanted) & 0xfff00000;
    if ((middle & 0x7fffffff) < 0x33800000) return middle; /* 2^-24 */
    uint32_t best = 0;
    float least = 0;
    for (int step = 1; step >= -1; step--) {
        const uint32_t bits = middle + (uint32_t)step * 0x100000;
        const float scale = float_of(bits), error = (float)error_of(w, group, scale) * (scale * scale);
        if (step == 1 || error < least) {
            best = bits;
            least = error;
        }
    }
    return best;
}

/* Row `lane` of a panel. */
static int pack_row(const float *w, int64_t inputs, int64_t group, int lane, uint8_t *panel, int64_t row_exponents,
                    int64_t data, uint32_t *scale) {
    const int64_t groups = inputs / group;
    uint32_t base = 127 - 24;
    for (int64_t g = 0; g < groups; g++) {
        scale[g] = scale_of(w + g * group, group);
        if (scale[g] == 0xffffffff) return 1;
        const uint32_t exponent = scale[g] >> 23 & 0xff;
        base = exponent > base + 15 ? exponent - 15 : base;
    }
    for (int64_t g = 0; g < groups; g++) {
        const uint32_t bits = (scale[g] >> 23 & 0xff) < base ? base << 23 : scale[g];
        panel[g * PYC_PANEL + lane] = (uint8_t)(bits >> 31 << 7 | ((bits >> 23 & 0xff) - base) << 3 | (bits >> 20 & 7));
        for (int64_t b = g * group / PYC_BLOCK; b < (g + 1) * group / PYC_BLOCK; b++) {
            uint8_t codes[PYC_BLOCK];
            for (int k = 0; k < PYC_BLOCK; k++)
                codes[k] = (uint8_t)(int32_t)(code(w[b * PYC_BLOCK + k] / float_of(bits)) + 8);
            for (int k = 0; k < PYC_BLOCK / 2; k++) codes[k] |= (uint8_t)(codes[k + PYC_BLOCK / 2] << 4);
            for (int j = 0; j < 4; j++) memcpy(panel + data + ((b * 4 + j) * PYC_PANEL + lane) * 4, codes + 4 * j, 4);
        }
    }
    const uint32_t bits = base << 23;
    memcpy(panel + row_exponents + 4 * lane, &bits, 4);
    return 0;
}

/* rows [count, inputs] to ceil(count / 16) panels, of which only the padding between sections is left as it was;
 * `scales` has room for inputs / group. Returns 1, and leaves panels unfinished, where a row can't be quantized. */
int32_t pyc_int4_panels(const float *rows, int64_t count, int64_t inputs, int64_t group, uint8_t *panels,
                        int64_t panel_bytes, int64_t row_exponents, int64_t data, uint32_t *scales) {
    for (int64_t row = 0; row < count; row++) {
        uint8_t *panel = panels + row / PYC_PANEL * panel_bytes;
        if (pack_row(rows + row * inputs, inputs, group, (int)(row % PYC_PANEL), panel, row_exponents, data, scales))
            return 1;
    }
    const float one = 1;
    for (int64_t row = count; row % PYC_PANEL; row++) { /* rows past the last one are zeros */
        uint8_t *panel = panels + row / PYC_PANEL * panel_bytes;
        for (int64_t g = 0; g < inputs / group; g++) panel[g * PYC_PANEL + row % PYC_PANEL] = 0;
        for (int64_t j = 0; j < inputs / PYC_BLOCK * 4; j++)
            memset(panel + data + (j * PYC_PANEL + row % PYC_PANEL) * 4, 0x88, 4);
        memcpy(panel + row_exponents + 4 * (row % PYC_PANEL), &one, 4);
    }
    return 0;
}
