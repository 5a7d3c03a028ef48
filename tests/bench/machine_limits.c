// Loops that reach what one core can do: reading memory, float multiply-add, int8 multiply-add.
// Each peak function returns the operations it did (a multiply-add is two).
#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define UNROLL _Pragma("clang loop unroll(full)")
#define LINE 64
#define STREAMS 4
#define AHEAD 2048  // bytes that are asked for before they are read

// Sum of `size` bytes (a multiple of LINE), read one after another: what is faster, this or that below, depends on the
// machine and the hour.
EXPORT uint64_t pyc_bench_read_in_order(const uint8_t *data, size_t size) {
    typedef uint64_t line __attribute__((vector_size(LINE), aligned(LINE)));
    line sum = {0};
    for (size_t at = 0; at < size; at += LINE) sum += *(const line *)(data + at);
    uint64_t total = 0;
    for (int lane = 0; lane < 8; lane++) total += sum[lane];
    return total;
}

// Sum of `size` bytes (a multiple of STREAMS * LINE), read as STREAMS streams side by side.
EXPORT uint64_t pyc_bench_read(const uint8_t *data, size_t size) {
    typedef uint64_t line __attribute__((vector_size(LINE), aligned(LINE)));
    line sums[STREAMS] = {0};
    const size_t part = size / STREAMS;
    for (size_t at = 0; at < part; at += LINE) {
        UNROLL for (int stream = 0; stream < STREAMS; stream++) {
            const uint8_t *from = data + stream * part + at;
            __builtin_prefetch(from + AHEAD, 0, 0);
            sums[stream] += *(const line *)from;
        }
    }
    const line sum = sums[0] + sums[1] + sums[2] + sums[3];
    uint64_t total = 0;
    for (int lane = 0; lane < 8; lane++) total += sum[lane];
    return total;
}

static volatile float float_input = 0.5f, float_sink;
static volatile int int_input = 3, int_sink;

#define ACCUMULATORS 12  // latency times throughput of a multiply-add, with room

#if defined(__AVX512F__)
typedef __m512 floats;
#define SET(x) _mm512_set1_ps(x)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#elif defined(__FMA__)
typedef __m256 floats;
#define SET(x) _mm256_set1_ps(x)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#elif defined(__x86_64__)
typedef __m128 floats;
#define SET(x) _mm_set1_ps(x)
#define FMA(a, b, c) _mm_add_ps(_mm_mul_ps(a, b), c)
#else
typedef float32x4_t floats;
#define SET(x) vdupq_n_f32(x)
#define FMA(a, b, c) vfmaq_f32(c, a, b)
#endif

EXPORT uint64_t pyc_bench_float(size_t iterations) {
    const floats a = SET(float_input), b = SET(float_input + 0.25f);
    floats sums[ACCUMULATORS];
    UNROLL for (int i = 0; i < ACCUMULATORS; i++) sums[i] = SET((float)i);
    for (size_t done = 0; done < iterations; done++)
        UNROLL for (int i = 0; i < ACCUMULATORS; i++) sums[i] = FMA(sums[i], a, b);
    UNROLL for (int i = 0; i < ACCUMULATORS; i++) float_sink = ((const float *)&sums[i])[0];
    return iterations * ACCUMULATORS * (sizeof(floats) / sizeof(float)) * 2;
}

#if defined(__AVX512VNNI__)
typedef __m512i ints;
#define SET_BYTES(x) _mm512_set1_epi8((char)(x))
#define DOT(sum, a, b) _mm512_dpbusd_epi32(sum, a, b)
#elif defined(__AVX2__)
typedef __m256i ints;
#define SET_BYTES(x) _mm256_set1_epi8((char)(x))
// The empty asm keeps the product, which is the same each time, from moving out of the loop.
static inline __m256i dot(__m256i sum, __m256i a, __m256i b) {
    __asm__ volatile("" : "+x"(a));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
#define DOT(sum, a, b) dot(sum, a, b)
#elif defined(__ARM_FEATURE_DOTPROD)
typedef int32x4_t ints;
#define SET_BYTES(x) vreinterpretq_s32_s8(vdupq_n_s8((int8_t)(x)))
#define DOT(sum, a, b) vdotq_s32(sum, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b))
#endif

// 0: this instruction set has no int8 products.
EXPORT uint64_t pyc_bench_int8(size_t iterations) {
#if defined(SET_BYTES)
    const ints a = SET_BYTES(int_input), b = SET_BYTES(int_input + 1);
    ints sums[ACCUMULATORS];
    UNROLL for (int i = 0; i < ACCUMULATORS; i++) sums[i] = SET_BYTES(i);
    for (size_t done = 0; done < iterations; done++)
        UNROLL for (int i = 0; i < ACCUMULATORS; i++) sums[i] = DOT(sums[i], a, b);
    UNROLL for (int i = 0; i < ACCUMULATORS; i++) int_sink = ((const int *)&sums[i])[0];
    return iterations * ACCUMULATORS * sizeof(ints) * 2;
#else
    (void)iterations;
    (void)int_input;
    (void)int_sink;
    return 0;
#endif
}

#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>
#define REQUEST_PERMISSION 0x1023
#define TILE_DATA 18
#endif

// 0: no AMX, or the kernel does not allow it.
EXPORT uint64_t pyc_bench_amx(size_t iterations) {
#if defined(__AMX_INT8__)
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) != 0) return 0;
    _Alignas(64) uint8_t config[64] = {1};
    _Alignas(64) static const uint8_t zeros[16 * 64];
    for (int tile = 0; tile < 8; tile++) {
        config[16 + 2 * tile] = 64;  // bytes a row
        config[48 + tile] = 16;      // rows
    }
    _tile_loadconfig(config);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t done = 0; done < iterations; done++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 5, 6);
        _tile_dpbssd(2, 4, 7);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
    return iterations * 4 * 16 * 16 * 64 * 2;
#else
    (void)iterations;
    return 0;
#endif
}
