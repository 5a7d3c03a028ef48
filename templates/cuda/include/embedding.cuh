/* Rows of an embedding table, by the ids of tokens; zeros for ids that it has not. Bound by bytes: of the table, and four
 * of the result for each number. */
#pragma once
#include "matrix.cuh"

namespace pyc {

template <class M, int VOCABULARY, int FEATURES, int THREADS>
__device__ __forceinline__ void embedding(const int *ids, const u8 *codes, const u8 *scales, const u8 *zeros,
                                          const float *factors, float *result) {
    const int id = ids[blockIdx.y], k = blockIdx.x * THREADS + threadIdx.x;
    if (k >= FEATURES) return;
    const bool is_known = id >= 0 && id < VOCABULARY;
    result[(long long)blockIdx.y * FEATURES + k] =
        is_known ? weight_at<M, FEATURES>(codes, scales, zeros, factors, id, k) : 0.0f;
}

}  // namespace pyc
