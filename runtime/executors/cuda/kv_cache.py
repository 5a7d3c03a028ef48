"""How a layer's key/value cache lies in the memory of a GPU: blocks of u8 [2, kv_heads, head_bytes], keys, then values.

The keys or values of a head are [block_tokens, head_dim] of f32, f16, int8 or fp8 (e4m3); behind codes of 8 bits stand
their scales, f32 [block_tokens].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.artifact.format import KvCache, KvDtype
from pyc.runtime.executors.cpu.prefix import e4m3_codes
from pyc.runtime.executors.protocol import FloatArray
from pyc.runtime.host.rounding import ceil_div

CACHE_BLOCK_TOKENS = 64
"""Positions of a block."""

_VALUE_BYTES: dict[KvDtype, int] = {"f32": 4, "f16": 2, "int8": 1, "fp8": 1}
_SCALE_BYTES = 4
MOST: dict[KvDtype, int] = {"int8": 127, "fp8": 448}
"""Of those with scales, the code of the largest magnitude."""


def head_bytes(cache: KvCache) -> int:
    """Bytes of the keys, or of the values, of one head in a block."""
    scale_bytes = _SCALE_BYTES if cache.dtype in MOST else 0
    return cache.block_tokens * (cache.head_dim * _VALUE_BYTES[cache.dtype] + scale_bytes)


def block_bytes(cache: KvCache) -> int:
    """Bytes of a block of a layer."""
    return 2 * cache.heads * head_bytes(cache)


def packed_prefix(prefix: FloatArray, cache: KvCache) -> NDArray[np.uint8]:
    """Return the blocks that hold `prefix` f32 [layers, 2, kv_heads, tokens, head_dim], as u8 [layers, blocks,
    block_bytes]. What is behind the last token is zero."""
    layers, two, heads, tokens, head_dim = prefix.shape
    blocks = ceil_div(tokens, cache.block_tokens)
    padded = np.zeros((layers, two, heads, blocks * cache.block_tokens, head_dim), np.float32)
    padded[..., :tokens, :] = prefix
    by_block = padded.reshape(layers, two, heads, blocks, cache.block_tokens, head_dim).transpose(0, 3, 1, 2, 4, 5)
    rows = np.ascontiguousarray(by_block)
    shape = (layers, blocks, two, heads, -1)
    if cache.dtype in MOST:
        most = np.float32(MOST[cache.dtype])
        largest = np.abs(rows).max(axis=-1)
        scaled = rows * np.divide(most, largest, out=np.zeros_like(largest), where=largest > 0)[..., None]
        codes = np.rint(scaled).astype(np.int8) if cache.dtype == "int8" else e4m3_codes(scaled)
        scales = (largest / most).astype("<f4").view(np.uint8).reshape(shape)
        packed = np.concatenate([codes.view(np.uint8).reshape(shape), scales], axis=-1)
    else:
        packed = rows.astype("<f4" if cache.dtype == "f32" else "<f2").view(np.uint8).reshape(shape)
    found: NDArray[np.uint8] = packed.reshape(layers, blocks, -1)
    return found
