/* Asking for weights before they are read. */
#ifndef PYC_AHEAD_H
#define PYC_AHEAD_H

#include "pyc_amx.h"
#include "pyc_tiles.h"

/* Where the weights come from memory, `ahead` (the first tile that reads a panel) keeps the stream going:
 * - The header is asked for before the data. Read a little at a time beside the data, headers of 512 bytes and
 *   more made the hardware's prefetcher give up: 12 instead of 32 GB/s on Zen 4 (int4-g32, one token). With one or
 *   two tokens it is also copied, so that the data is the only stream: 31 instead of 19 GB/s (int8-g32, AVX2).
 * - With more than two tokens a panel takes longer than the hardware looks ahead: the next one is asked for, into
 *   the second-level cache (8 tokens: 22 instead of 14 GB/s), and what is PYC_NEAR bytes ahead, from there into the first
 *   (4 tokens: a tenth, 8: a fourteenth less time). With one token that only costs.
 * - That is Zen 4. A Xeon with AMX wants what is 2 KB ahead in the first-level cache, whatever there are of tokens, and
 *   nothing else: one core, 1, 4 and 8 tokens, 11.7, 8.8 and 6.8 GB/s with no such thing, 13.6, 10.5 and 8.6 with the above,
 *   13.8, 10.9 and 9.2 with this, where it reads 18 (int4-g32). Pairs of bf16 by pairs want 1.5 KB: 33 instead of 26 GB/s of
 *   two cores and one token, which they have at 1, 1.5 and 2.5 KB, and not at 2.
 * - CPUs with AVX-VNNI and no AVX-512 have that Xeon's cores or later ones, so they get the same. None was measured.
 */
#if PYC_HAS_TILES || (PYC_HAS_VNNI && !defined(__AVX512F__))
#define PYC_NEAR_ALONE 1
#define PYC_ASKS_AHEAD(T) 1
#define PYC_NEAR 2048
#define PYC_NEAR_PAIRS 1536
#else
#define PYC_NEAR_ALONE 0
#define PYC_ASKS_AHEAD(T) ((T) > 2)
#define PYC_NEAR 3072
#define PYC_NEAR_PAIRS PYC_NEAR
#endif

PYC_INLINE void pyc_prefetch_ahead(const uint8_t *data, int b, const int block_bytes, const struct pyc_shape s) {
    const uint8_t *block = data + b * block_bytes;
    pyc_prefetch_near(block + PYC_NEAR, block_bytes);
    if (PYC_NEAR_ALONE) return;
    pyc_prefetch_far(block + s.panel_bytes, block_bytes);
    if (s.data > 64) /* some of the next panel's header */
        __builtin_prefetch(data + s.panel_bytes - s.data + b * (s.data / s.blocks), 0, 2);
}

/* The same for panels that have no header: what lies `bytes` from the start of the next one, or `near` bytes ahead. */
PYC_INLINE void pyc_ask_ahead(const uint8_t *panel, ptrdiff_t bytes, int lines, const int near, const struct pyc_shape s) {
    if (PYC_NEAR_ALONE)
        pyc_prefetch_near(panel + bytes + near, lines * 64);
    else
        pyc_prefetch_far(panel + s.panel_bytes + bytes, lines * 64);
}

#endif
