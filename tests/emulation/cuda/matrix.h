/* Matrix instructions: d [16, 8] += a [16, k] b [k, 8], products and their sums exact, d rounded once. Beside a of E5M2
 * b is of E4M3.
 *
 * Fragments of lane i, with g = i / 4, t = i % 4, and 32 / bits elements in a register (PTX manual, "mma"):
 *   a[r]  row g + 8 (r % 2), columns from per (t + 4 (r / 2)) on      b[r]  rows from per (t + 4 r) on, column g
 *   d[r]  row g + 8 (r / 2), column 2 t + r % 2
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { BF16, F16, E4M3, E5M2, S8 };

static float number_of_f16(unsigned code) {
    const int exponent = (int)(code >> 10) & 31, fraction = (int)(code & 1023);
    const float sign = code >> 15 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexpf((float)(fraction + 1024), exponent - 25) : ldexpf((float)fraction, -24));
}

static double element(int kind, const unsigned *fragments, int index) {
    const int bits = kind == BF16 || kind == F16 ? 16 : 8, per = 32 / bits;
    const unsigned code = fragments[index / per] >> bits * (index % per) & ((1u << bits) - 1);
    if (kind == BF16) {
        const unsigned wide = code << 16;
        float value;
        memcpy(&value, &wide, 4);
        return value;
    }
    if (kind == S8) return (int8_t)code;
    if (kind == E5M2) return number_of_f16(code << 8); /* the upper half of one */
    if (kind == F16) {
        static float table[1 << 16];
        static int is_filled;
        for (; !is_filled; is_filled = 1)
            for (unsigned i = 0; i < 1 << 16; i++) table[i] = number_of_f16(i);
        return table[code];
    }
    const int exponent = (int)(code >> 3) & 15, fraction = (int)(code & 7); /* E4M3 */
    const double sign = code >> 7 ? -1 : 1;
    if ((code & 127) == 127) return NAN;
    return exponent ? sign * ldexp(fraction + 8, exponent - 10) : sign * ldexp(fraction, -9);
}

static void multiply_fragments(int kind, const unsigned *const *a, const unsigned *const *b, void *const *d) {
    const int per = kind == BF16 || kind == F16 ? 2 : 4, depth = 8 * per;
    const int kind_of_b = kind == E5M2 ? E4M3 : kind;
    static double left[16][32], right[32][8];
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int r = 0; r < 4; r++)
            for (int k = 0; k < per; k++)
                left[g + 8 * (r % 2)][per * (t + 4 * (r / 2)) + k] = element(kind, a[lane], r * per + k);
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < per; k++) right[per * (t + 4 * r) + k][g] = element(kind_of_b, b[lane], r * per + k);
    }
    for (int lane = 0; lane < 32; lane++)
        for (int r = 0; r < 4; r++) {
            const int row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
            double sum = 0;
            for (int k = 0; k < depth; k++) sum += left[row][k] * right[k][column];
            if (kind == S8) ((int *)d[lane])[r] += (int)sum;
            else ((float *)d[lane])[r] = (float)((double)((float *)d[lane])[r] + sum);
        }
}
