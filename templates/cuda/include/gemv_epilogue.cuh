/* What becomes of the sums of a linear layer of few rows (GEMV) before they are stored, so that no launch of its own has to:
 *
 *   norm      x is what an RMS norm reads, times the norm's gain. Sums are divided by the root of the row's mean square; its
 *             squares the launch before has added up, to PARTIALS numbers.
 *   gate      the first half of the outputs goes through a function and multiplies the second.
 *   residual  an addend is added. Stored are the totals, these times the gain of the norm that reads them, and sums of
 *             their squares.
 */
#pragma once
#include "elementwise.cuh"
#include "matrix_tiles.cuh"
#include "reduce.cuh"

namespace pyc {

/* Of a layer [ROWS, INPUTS] to [ROWS, OUTPUTS]. Arrays that are null are not there; a residual has `addend` and
 * `total_squares`. Rows of a matrix with a gate are `Paired`. */
template <class M, class Gate, int ROWS, int OUTPUTS, int INPUTS, int PARTIALS> struct GemvEpilogue {
    enum : int { HAS_GATE = HasGate<Gate>::VALUE, RESULTS = HAS_GATE ? OUTPUTS / 2 : OUTPUTS };

    const u8 *scales;
    const float *factors, *bias; /* of the matrix' rows; [OUTPUTS] */
    const float *squares;        /* [ROWS, PARTIALS] */
    const float *addend, *gain;  /* [ROWS, OUTPUTS], [OUTPUTS] */
    float *result;               /* [ROWS, RESULTS] */
    float *scaled;               /* [ROWS, OUTPUTS] */
    float *total_squares;        /* [ROWS, what the kernel says] */
    float epsilon;

    /* Add up squares of x, as soon as they are there: a number of each row for each warp, in `kept`. */
    template <int WARPS> __device__ __forceinline__ void add_squares(float (&kept)[ROWS][WARPS]) const {
        if constexpr (PARTIALS > 0) {
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                float sum = 0.0f;
#pragma unroll
                for (int first = 0; first < PARTIALS; first += 32 * WARPS) {
                    const int at = first + (int)threadIdx.x;
                    if (PARTIALS % (32 * WARPS) == 0 || at < PARTIALS) sum += squares[row * PARTIALS + at];
                }
                sum = reduce_warp<Sum>(sum);
                if (threadIdx.x % 32 == 0) kept[row][threadIdx.x / 32] = sum;
            }
        }
    }

    /* A sum as the layer has it; `output` counts rows of tiles. Behind a barrier after `add_squares`. */
    template <int WARPS>
    __device__ __forceinline__ float layer_sum(float sum, int row, int output, const float (&kept)[ROWS][WARPS]) const {
        const int at = M::row_at(output);
        sum *= row_scale<M>(scales, factors, at);
        if constexpr (PARTIALS > 0) {
            float all = kept[row][0];
#pragma unroll
            for (int warp = 1; warp < WARPS; warp++) all += kept[row][warp];
            sum *= 1.0f / sqrtf(all / (float)INPUTS + epsilon);
        }
        return bias ? sum + bias[at] : sum;
    }

    /* The output in `at` of the result, of which the gate is number `at` and `other` what it gates. */
    __device__ __forceinline__ void store_gated(float gate, float other, int row, int at) const {
        result[(long long)row * RESULTS + at] = Gate::of(gate) * other;
    }

    /* Store a sum without a gate, and return the square of the total where there is an addend. */
    __device__ __forceinline__ float store(float sum, int row, int output) const {
        const long long at = (long long)row * OUTPUTS + output;
        if (!addend) {
            result[at] = sum;
            return 0.0f;
        }
        const float total = sum + addend[at];
        result[at] = total;
        if (gain) scaled[at] = total * gain[output];
        return total * total;
    }

    /* All of it, for the sum of an output that `is_there`, of consecutive ones a lane each; all lanes of the warp take part. A gate
     * is APART rows before what it gates. Squares of OF_SQUARES outputs are added up. */
    template <int APART, int OF_SQUARES, int WARPS>
    __device__ __forceinline__ void finish(float sum, int row, int output, bool is_there, const float (&kept)[ROWS][WARPS]) const {
        const int lane = threadIdx.x % 32;
        if (is_there) sum = layer_sum(sum, row, output, kept);
        if constexpr (HAS_GATE) {
            const float other = __shfl_xor_sync(0xffffffffu, sum, APART);
            if (is_there && lane % (2 * APART) < APART) store_gated(sum, other, row, M::row_at(output));
        } else {
            float square = 0;
            if (is_there) square = store(sum, row, output);
            if (addend) {
                square = reduce_warp<Sum, OF_SQUARES>(square);
                const long long at = (long long)row * ceil_div(OUTPUTS, OF_SQUARES) + output / OF_SQUARES;
                if (is_there && lane % OF_SQUARES == 0) total_squares[at] = square;
            }
        }
    }
};

}  // namespace pyc
