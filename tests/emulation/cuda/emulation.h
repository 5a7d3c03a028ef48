/* CUDA C++ for the host: what NVRTC has built in, for clang, over functions of the emulated driver (block.h).
 *
 * Included before a kernel's source. Threads of a block are fibres of one thread of the host: they run one at a time,
 * and change at barriers, shuffles and matrix instructions alone. Memory is watched by the instrumentation that clang
 * has for ThreadSanitizer, whose callbacks are the driver's (memory.h).
 */
#pragma once

typedef decltype(sizeof(0)) size_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef decltype((char *)0 - (char *)0) ptrdiff_t;
typedef unsigned long uintptr_t;

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("emulated_shared"), used))
#define SHARED_MEMORY(name) unsigned char *const name = emulated_shared_memory()

struct emulated_index { unsigned x, y, z; };
#define threadIdx (emulated_thread_index())
#define blockIdx (emulated_block_index())
#define blockDim (emulated_block_size())
#define gridDim (emulated_grid_size())
#define warpSize 32

#define EMULATED_COLLECTIVE __attribute__((convergent))
extern "C" {
emulated_index emulated_thread_index(void) __attribute__((const));
emulated_index emulated_block_index(void) __attribute__((const));
emulated_index emulated_block_size(void) __attribute__((const));
emulated_index emulated_grid_size(void) __attribute__((const));
unsigned char *emulated_shared_memory(void) __attribute__((const));
void emulated_barrier(int place) EMULATED_COLLECTIVE;
void emulated_warp_barrier(unsigned mask) EMULATED_COLLECTIVE;
uint64_t emulated_shuffle(unsigned mask, uint64_t value, int lane) EMULATED_COLLECTIVE;
unsigned emulated_ballot(unsigned mask, int predicate) EMULATED_COLLECTIVE;
unsigned emulated_atomic_add(unsigned *place, unsigned value);
void emulated_fence(void);
void emulated_let_dependents_begin(void);
void emulated_wait_for_dependencies(void);
void emulated_ldmatrix(unsigned *fragments, const void *row, int count, int is_transposed) EMULATED_COLLECTIVE;
void emulated_mma(int kind, float *d, const unsigned *a, const unsigned *b) EMULATED_COLLECTIVE;
void emulated_mma_integer(int *d, const unsigned *a, const unsigned *b) EMULATED_COLLECTIVE;
void emulated_wgmma(int kind, int columns, float *d, const unsigned *a, uint64_t shared_a, uint64_t shared_b, int adds);
void emulated_wgmma_fence(void);
void emulated_wgmma_commit(void);
void emulated_wgmma_wait(int pending) EMULATED_COLLECTIVE;
void emulated_proxy_fence(void);
void emulated_async_copy(void *shared, const void *global, int bytes, int source_bytes);
void emulated_async_commit(void);
void emulated_async_wait(int pending);
float expf(float), exp2f(float), logf(float), log2f(float), tanhf(float), erff(float), sinf(float), cosf(float);
float sqrtf(float), fabsf(float), floorf(float), ceilf(float), rintf(float), fmaxf(float, float), fminf(float, float);
float fmaf(float, float, float), powf(float, float), truncf(float);
double exp(double), exp2(double), log(double), log2(double), pow(double, double), sqrt(double), fabs(double);
double floor(double), sin(double), cos(double), rint(double), fma(double, double, double);
}

/* Vectors, read and written as one, and aligned as on the device. */
#define EMULATED_VECTORS(type, name) \
    typedef type name##2 __attribute__((ext_vector_type(2))); \
    typedef type name##4 __attribute__((ext_vector_type(4))); \
    inline name##2 make_##name##2(type x, type y) { return name##2{x, y}; } \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return name##4{x, y, z, w}; }
EMULATED_VECTORS(float, float)
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(unsigned, uint)
EMULATED_VECTORS(short, short)
EMULATED_VECTORS(unsigned short, ushort)
EMULATED_VECTORS(signed char, char)
EMULATED_VECTORS(unsigned char, uchar)
typedef double double2 __attribute__((ext_vector_type(2)));
typedef unsigned long long ulonglong2 __attribute__((ext_vector_type(2)));

template <class To, class From> inline To emulated_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
inline int __float_as_int(float x) { return emulated_bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
inline float __int_as_float(int x) { return emulated_bits<float>(x); }

/* Arithmetic; approximations of the device are exact here. */
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp2f(float x) { return exp2f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline int __float2int_rz(float x) { return (int)x; }
inline unsigned __float2uint_rn(float x) { return (unsigned)rintf(x); }
inline float __int2float_rn(int x) { return (float)x; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __dadd_rn(double x, double y) { return x + y; }
#define EMULATED_EXTREMES(type) \
    inline type min(type a, type b) { return b < a ? b : a; } \
    inline type max(type a, type b) { return a < b ? b : a; }
EMULATED_EXTREMES(int)
EMULATED_EXTREMES(unsigned)
EMULATED_EXTREMES(long long)
EMULATED_EXTREMES(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline int abs(int x) { return x < 0 ? -x : x; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline unsigned __brev(unsigned x) { return __builtin_bitreverse32(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)(((uint64_t)x * y) >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)(((unsigned __int128)x * y) >> 64);
}
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
    return c;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned selector = s >> 4 * i & 15, byte = (unsigned)(both >> 8 * (selector & 7)) & 255;
        result |= (selector & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return result;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((((uint64_t)high << 32) | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((((uint64_t)high << 32) | low) << (shift & 31)) >> 32);
}
template <class T> inline T __ldg(const T *place) { return *place; }
template <class T> inline T __ldcs(const T *place) { return *place; }
template <class T> inline T __ldcg(const T *place) { return *place; }
template <class T, class U> inline void __stcs(T *place, U value) { *place = value; }
template <class T, class U> inline void __stcg(T *place, U value) { *place = value; }
inline void __threadfence(void) { emulated_fence(); }
inline void __threadfence_block(void) {}
inline unsigned atomicAdd(unsigned *place, unsigned value) { return emulated_atomic_add(place, value); }
inline int atomicAdd(int *place, int value) { return (int)emulated_atomic_add((unsigned *)place, (unsigned)value); }

/* Threads of a block. */
#define __syncthreads() emulated_barrier(__LINE__)
inline void __syncwarp(unsigned mask = ~0u) { emulated_warp_barrier(mask); }
inline unsigned __ballot_sync(unsigned mask, int predicate) { return emulated_ballot(mask, predicate); }
inline int __any_sync(unsigned mask, int predicate) { return emulated_ballot(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return emulated_ballot(mask, !predicate) == 0; }
template <class T> inline T emulated_shuffled(unsigned mask, T value, int lane) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = emulated_shuffle(mask, bits, lane);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
inline int emulated_lane(void) { return (int)(threadIdx.x & 31); }
template <class T> inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    return emulated_shuffled(mask, value, (emulated_lane() & ~(width - 1)) | (from & (width - 1)));
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const int lane = emulated_lane(), other = lane ^ bits;
    return emulated_shuffled(mask, value, (other & ~(width - 1)) > (lane & ~(width - 1)) ? lane : other);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int lane = emulated_lane();
    return emulated_shuffled(mask, value, (lane & (width - 1)) + (int)by < width ? lane + (int)by : lane);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    const int lane = emulated_lane();
    return emulated_shuffled(mask, value, (lane & (width - 1)) >= (int)by ? lane - (int)by : lane);
}

/* 16 bits of floating point. */
inline float emulated_f16_to_f32(uint16_t bits) {
    const unsigned sign = (unsigned)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return __uint_as_float(sign | __float_as_uint((float)fraction * 0x1p-24f));
    return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}
inline uint16_t emulated_f32_to_f16(float x) {
    const unsigned bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7fff);
    if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000u) return (uint16_t)(sign | (unsigned)rintf(__uint_as_float(rest) * 0x1p24f));
    return (uint16_t)(sign | ((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1)) >> 13));
}
inline uint16_t emulated_f32_to_bf16(float x) {
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Matrix instructions: d += a b, fragments as in the PTX manual. */
enum { EMULATED_BF16, EMULATED_F16, EMULATED_E4M3, EMULATED_E5M2 };
inline void emulated_mma_bf16_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulated_mma(EMULATED_BF16, d, a, b);
}
inline void emulated_mma_f16_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulated_mma(EMULATED_F16, d, a, b);
}
inline void emulated_mma_e4m3_m16n8k32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulated_mma(EMULATED_E4M3, d, a, b);
}
inline void emulated_mma_e5m2_m16n8k32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulated_mma(EMULATED_E5M2, d, a, b); /* b of e4m3 */
}
inline void emulated_mma_s8_m16n8k32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulated_mma_integer(d, a, b);
}
inline void emulated_wgmma_bf16(int columns, float *d, const unsigned *a, uint64_t shared_a, uint64_t shared_b, int adds) {
    emulated_wgmma(EMULATED_BF16, columns, d, a, shared_a, shared_b, adds);
}
inline void emulated_wgmma_float8(int columns, bool is_e4m3, float *d, uint64_t shared_a, uint64_t shared_b, int adds) {
    emulated_wgmma(is_e4m3 ? EMULATED_E4M3 : EMULATED_E5M2, columns, d, nullptr, shared_a, shared_b, adds);
}
inline void emulated_ldmatrix_x4(unsigned (&r)[4], const void *row) { emulated_ldmatrix(r, row, 4, 0); }
inline void emulated_ldmatrix_x2(unsigned (&r)[2], const void *row) { emulated_ldmatrix(r, row, 2, 0); }
inline void emulated_ldmatrix_x4_trans(unsigned (&r)[4], const void *row) { emulated_ldmatrix(r, row, 4, 1); }
inline void emulated_ldmatrix_x2_trans(unsigned (&r)[2], const void *row) { emulated_ldmatrix(r, row, 2, 1); }

/* cp.async: shared memory holds nothing between the start of a copy and the wait for it. Bytes from `source_bytes` on
 * are zeros. */
inline void emulated_cp_async_16(void *shared, const void *global, int source_bytes = 16) {
    emulated_async_copy(shared, global, 16, source_bytes);
}
inline void emulated_cp_async_8(void *shared, const void *global, int source_bytes = 8) {
    emulated_async_copy(shared, global, 8, source_bytes);
}
inline void emulated_cp_async_4(void *shared, const void *global, int source_bytes = 4) {
    emulated_async_copy(shared, global, 4, source_bytes);
}
inline void emulated_cp_async_commit(void) { emulated_async_commit(); }
inline void emulated_cp_async_wait(int pending) { emulated_async_wait(pending); }

/* What a library of kernels says of itself: the driver reads `emulated_module`. */
struct emulated_kernel {
    const char *name;
    void (*call)(void *const *parameters);
    int parameters, threads;
};
struct emulated_module_table {
    const emulated_kernel *kernels;
    int count;
    char *shared_start, *shared_stop;
};
template <int...> struct emulated_indices {};
template <int n, int... rest> struct emulated_count : emulated_count<n - 1, n - 1, rest...> {};
template <int... indices> struct emulated_count<0, indices...> { typedef emulated_indices<indices...> type; };
template <class... T, int... i>
inline void emulated_spread(void (*kernel)(T...), void *const *parameters, emulated_indices<i...>) {
    kernel(*(T *)parameters[i]...);
}
template <class F, F *kernel> struct emulated_call;
template <class... T, void (*kernel)(T...)> struct emulated_call<void(T...), kernel> {
    static constexpr int parameters = sizeof...(T);
    static void call(void *const *given) {
        emulated_spread(kernel, given, typename emulated_count<sizeof...(T)>::type());
    }
};
#define EMULATED_KERNEL(symbol, threads) \
    {#symbol, emulated_call<decltype(symbol), symbol>::call, emulated_call<decltype(symbol), symbol>::parameters, threads}
