"""The key-value cache of ONNX Runtime's programs: for each layer, keys and values of every sequence by position.

f32 [sequences, kv_heads, positions, features of a head], as GroupQueryAttention reads and writes it in place. Sequences
next to each other are one piece of memory, so a step may take several at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.artifact.format import KvCache
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.onnx.program import OnnxProgram
from pyc.runtime.host.sizes import human_bytes


def check_cache(program: OnnxProgram, cache: KvCache | None) -> None:
    """Raise ArtifactError when the program's cache is not that of the header."""
    if cache is None:
        return
    expected, got = (cache.layers, cache.heads), (program.layers, program.kv_heads)
    if got != expected or program.head_features < cache.head_dim:
        raise ArtifactError(
            f"the program for ONNX Runtime is not valid: its cache has {got[0]} layers of {got[1]} heads of "
            f"{program.head_features} features, the header's {expected[0]} of {expected[1]} of {cache.head_dim}"
        )


def make_caches(
    program: OnnxProgram, sequences: int, positions: int, memory_bytes: float
) -> dict[str, NDArray[np.float32]]:
    """Return the cache by the names of a graph's inputs, "past.L.key" and "past.L.value".

    Memory is taken where it is written. Raises RunError when the machine, of `memory_bytes`, has not enough for one
    sequence.
    """
    shape = sequences, program.kv_heads, positions, program.head_features
    one = 4 * program.layers * 2 * program.kv_heads * positions * program.head_features
    if one > memory_bytes:
        raise RunError(
            f"context: the cache of a sequence of {positions} tokens takes {human_bytes(one)}, and this process may "
            f"have {human_bytes(int(memory_bytes))} of memory; load with a smaller context (pyc run --context)"
        )
    names = [f"past.{layer}.{kind}" for layer in range(program.layers) for kind in ("key", "value")]
    try:
        return {name: np.zeros(shape, np.float32) for name in names}
    except (MemoryError, ValueError) as error:
        raise RunError(
            f"context: the system grants no memory for the cache of {sequences} sequences of {positions} tokens; "
            "load with a smaller context"
        ) from error
