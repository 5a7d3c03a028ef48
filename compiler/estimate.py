"""How many bytes things will take, from shapes alone."""

from __future__ import annotations

from pyc.runtime.format import ModelInfo
from pyc.runtime.kv_blocks import head_bytes

COMPILER_BYTES = 500 << 20
"""Memory that TVM, LLVM and their copies of a program take in a build (measured: 480 to 520 MB)."""

WORKER_BYTES = 64 << 20
"""Memory of a worker: pieces in flight, 16 MiB of f32 each, with their temporaries."""

LIBRARY_BYTES = 400 << 10
"""A compiled library of one instruction set and four buckets, before compression (measured: 0.4 MB)."""

COMPRESSED_SHARE = 0.3
"""What zstd leaves of libraries and tokenizers (measured: 0.30)."""


def kv_cache_bytes(info: ModelInfo, sequences: int, tokens: int) -> int:
    """Return the bytes of keys and values: `sequences` of `tokens` tokens, whole blocks; 0 for encoders."""
    cache = info.kv_cache
    if cache is None:
        return 0
    blocks = -(-tokens // cache.block_tokens)
    return sequences * blocks * cache.layers * 2 * cache.heads * head_bytes(cache)


def build_peak_bytes(workers: int) -> int:
    """Return about what a build takes at its peak: the compiler and `workers`, whatever the model's size."""
    return COMPILER_BYTES + workers * WORKER_BYTES


def artifact_bytes(weights: int, files: int, libraries: int, *, compressed: bool) -> int:
    """Return about the size of an artifact: stored weights, files as they are, and how many libraries."""
    rest = files + libraries * LIBRARY_BYTES
    return weights + int(rest * (COMPRESSED_SHARE if compressed else 1))
