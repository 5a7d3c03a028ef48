/* Tiles of which some are on their way to shared memory while threads work on others. */
#pragma once
#include "async_copy.cuh"
#include "dtypes.cuh"

namespace pyc {

/* Calls `use(stage, tile)` for TILES tiles in order, each of them copied by all threads of the block by
 * `load(stage, tile)` before. STAGES tiles of STAGE_BYTES have room in shared memory: all but one are on their way. */
template <int STAGES, int TILES, int STAGE_BYTES, class Load, class Use>
__device__ __forceinline__ void for_each_tile(u8 *memory, const Load &load, const Use &use) {
    const auto copy = [&](int tile) {
        if (tile < TILES) load(memory + tile % STAGES * STAGE_BYTES, tile);
        commit_copies();
    };
#pragma unroll 1
    for (int tile = 0; tile < STAGES - 1; tile++) copy(tile);
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        copy(tile + STAGES - 1);
        use(memory + tile % STAGES * STAGE_BYTES, tile);
    }
    wait_for_copies<0>();
}

}  // namespace pyc
