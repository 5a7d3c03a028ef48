/* Several f32 that a thread reads or writes at once: 4 where rows allow it, else 1. */
#pragma once
#include "dependent_launch.cuh"
#include "dtypes.cuh"

namespace pyc {

/* f32 that fit rows of `features`. */
constexpr __host__ __device__ int vector_of(int features) { return features % 4 == 0 ? 4 : 1; }

template <int width> struct Floats {
    float at[width];
    static __device__ __forceinline__ Floats of(float value) {
        Floats made;
#pragma unroll
        for (int i = 0; i < width; i++) made.at[i] = value;
        return made;
    }
    static __device__ __forceinline__ Floats load(const float *IN_TURN from) {
        Floats made;
        if constexpr (width == 4) {
            const float4 all = *reinterpret_cast<const float4 *>(from);
            made.at[0] = all.x, made.at[1] = all.y, made.at[2] = all.z, made.at[3] = all.w;
        } else if constexpr (width == 2) {
            const float2 all = *reinterpret_cast<const float2 *>(from);
            made.at[0] = all.x, made.at[1] = all.y;
        } else {
#pragma unroll
            for (int i = 0; i < width; i++) made.at[i] = from[i];
        }
        return made;
    }
    __device__ __forceinline__ void store(float *IN_TURN to) const {
        if constexpr (width == 4) {
            *reinterpret_cast<float4 *>(to) = make_float4(at[0], at[1], at[2], at[3]);
        } else if constexpr (width == 2) {
            *reinterpret_cast<float2 *>(to) = make_float2(at[0], at[1]);
        } else {
#pragma unroll
            for (int i = 0; i < width; i++) to[i] = at[i];
        }
    }
};

}  // namespace pyc
