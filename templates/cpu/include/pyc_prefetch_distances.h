/* Prefetch distances of weights (pyc_prefetch.h): a matter of a CPU's caches, which its instructions do not tell.
 *
 * One for a whole library, of whose objects each has the definition. The runtime knows what CPUs want
 * (runtime/executors/cpu/prefetch.py) and says so by `pyc_set_distances` (templates/cpu/thread_pool.c); until then they
 * are Zen 4's.
 */
#ifndef PYC_PREFETCH_DISTANCES_H
#define PYC_PREFETCH_DISTANCES_H

#include <stdint.h>

struct pyc_prefetch_distance {
    int32_t
        few; /* bytes, into the first-level cache, where one or two tokens are multiplied; 0: nothing is prefetched */
    int32_t many;  /* the same for more tokens, */
    int32_t panel; /* and whether the next panel is prefetched as well, into the second-level cache */
};

/* By what panels hold and is done with it. */
struct pyc_prefetch_distances {
    struct pyc_prefetch_distance codes;  /* by bytes of activations */
    struct pyc_prefetch_distance floats; /* of f32, f16 or bf16 */
    struct pyc_prefetch_distance pairs;  /* of bf16, multiplied by pairs */
};

__attribute__((weak, visibility("hidden"))) struct pyc_prefetch_distances pyc_prefetch_distances = {
    {0, 3072, 1}, {0, 0, 1}, {0, 0, 1}};

#endif
