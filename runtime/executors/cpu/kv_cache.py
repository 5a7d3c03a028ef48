"""How the key/value cache lies in memory: blocks of u8 [2, heads, head_bytes], keys, then values.

docs/tensor-layouts.md has what is inside. Which block holds which tokens is the session's matter
(`runtime.generation.kv_blocks`).
"""

from pyc.runtime.artifact.format import KvCache, KvDtype
from pyc.runtime.errors import RunError
from pyc.runtime.host.rounding import round_up
from pyc.runtime.host.sizes import human_bytes

_VALUE_BYTES: dict[KvDtype, int] = {"f32": 4, "f16": 2, "int8": 1, "fp8": 1}
_SCALE_BYTES = 4
VECTOR = 16
"""Features of a head are stored in multiples of it."""
_MOST_ADDRESSES = 1 << 46
"""Half of what a process may address."""


def head_bytes(cache: KvCache) -> int:
    """Bytes of the keys, or of the values, of one head in a block: features in whole vectors of 16; int8 and fp8
    add an f32 scale a position."""
    features = round_up(cache.head_dim, VECTOR)
    scale_bytes = _SCALE_BYTES if cache.dtype in ("int8", "fp8") else 0
    return cache.block_tokens * (features * _VALUE_BYTES[cache.dtype] + scale_bytes)


def check_memory(cache: KvCache, blocks: int, sequences: int, memory_bytes: float) -> None:
    """Raise RunError, saying what is needed, when a process that may have `memory_bytes` cannot have the cache.

    One of the `sequences` that share `blocks` has to fit in memory. All of them together take addresses first, and
    memory where they are written.
    """
    total = blocks * cache.layers * 2 * cache.heads * head_bytes(cache)
    one = total // max(sequences, 1)
    if one > memory_bytes or total > _MOST_ADDRESSES:
        tokens = blocks // max(sequences, 1) * cache.block_tokens
        may = f", and this process may have {human_bytes(int(memory_bytes))} of memory" if one > memory_bytes else ""
        raise RunError(
            f"context: the cache of a sequence of {tokens} tokens takes {human_bytes(one)}, of all {sequences} "
            f"sequences {human_bytes(total)}{may}; load with a smaller context (pyc run --context), "
            "or build with one"
        )
