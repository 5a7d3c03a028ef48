/* Prefetching weights. */
#ifndef PYC_PREFETCH_H
#define PYC_PREFETCH_H

#include "pyc_prefetch_distances.h"
#include "pyc_register_blocks.h"

/* Where the weights come from memory, `prefetch` (set for the first register block that reads a panel) keeps the stream
 * going:
 * - The header is prefetched before the data. Read a little at a time beside the data, headers of 512 bytes and
 *   more made the hardware's prefetcher give up: 12 instead of 32 GB/s on Zen 4 (int4-g32, one token). With one or
 *   two tokens it is also copied, so that the data is the only stream: 31 instead of 19 GB/s (int8-g32, AVX2).
 * - With more than two tokens a panel takes longer than the hardware looks ahead: the next one is prefetched, into
 *   the second-level cache (8 tokens: 22 instead of 14 GB/s), and what is 3 KB ahead, from there into the first
 *   (4 tokens: a tenth, 8: a fourteenth less time). With one token that only costs.
 * - That is Zen 4. A Xeon with AMX wants what is 2 KB ahead in the first-level cache, whatever there are of tokens, and
 *   nothing else: one core, 1, 4 and 8 tokens, 11.7, 8.8 and 6.8 GB/s with no such thing, 13.6, 10.5 and 8.6 with the
 * above, 13.8, 10.9 and 9.2 with this, where it reads 18 (int4-g32). Pairs of bf16 by pairs want 1.5 KB: 33 instead of
 * 26 GB/s of two cores and one token, which they have at 1, 1.5 and 2.5 KB, and not at 2. So these are values that the
 * runtime sets (pyc_prefetch_distances.h), whatever instructions a library has.
 */
PYC_INLINE void pyc_prefetch_weights(const int T, const struct pyc_prefetch_distance to, const uint8_t *at,
                                     const int bytes, const struct pyc_shape s) {
    const int near = T > 2 ? to.many : to.few;
    if (near) pyc_prefetch_near(at + near, bytes);
    if (T > 2 && to.panel) pyc_prefetch_far(at + s.panel_bytes, bytes);
}

/* The same at block b of codes, and for some of the next panel's header. */
PYC_INLINE void pyc_prefetch_codes(const int T, const uint8_t *data, int b, const int block_bytes,
                                   const struct pyc_shape s) {
    pyc_prefetch_weights(T, pyc_prefetch_distances.codes, data + b * block_bytes, block_bytes, s);
    if (T > 2 && pyc_prefetch_distances.codes.panel && s.data > 64)
        __builtin_prefetch(data + s.panel_bytes - s.data + b * (s.data / s.blocks), 0, 2);
}

#endif
