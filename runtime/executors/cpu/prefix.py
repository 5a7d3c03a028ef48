"""Virtual tokens in the layout of the cache: what a kernel would have written of them (docs/tensor-layouts.md)."""

from __future__ import annotations

from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.artifact.format import KvCache, Program
from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.cpu.kv_cache import VECTOR, head_bytes
from pyc.runtime.executors.protocol import CACHE_VALUES, FloatArray
from pyc.runtime.host.rounding import ceil_div, round_up

Values = Literal["f32", "f16", "bf16", "int8", "fp8"]
"""What a cache holds."""

_STEP: dict[Values, int] = {"f32": 1, "f16": 1, "bf16": 2, "int8": 4, "fp8": 1}
_LANES = 4
_E4M3_LARGEST = 448
_SET = 4

Bytes = NDArray[np.uint8]


def cache_values(program: Program, cache: KvCache) -> Values:
    """Return what the cache of a program holds. Raises ArtifactError when it is nothing known."""
    said = {tool.name: tool.version for tool in program.abi}.get(CACHE_VALUES, cache.dtype)
    if said not in get_args(Values) or (said != cache.dtype and (said, cache.dtype) != ("bf16", "f16")):
        raise ArtifactError(f"{program.library}: its cache holds {said[:20]!a}, the header says {cache.dtype}")
    return cast("Values", said)


def packed_prefix(prefix: FloatArray, cache: KvCache, values: Values) -> list[Bytes]:
    """Return, for each layer, the blocks that hold `prefix` f32 [layers, 2, kv_heads, tokens, head_dim], as u8
    [blocks, 2, kv_heads, head_bytes]. What is behind the last token is zero."""
    layers, two, heads, tokens, head_dim = prefix.shape
    blocks, features = ceil_div(tokens, cache.block_tokens), round_up(head_dim, VECTOR)
    padded = np.zeros((layers, two, heads, blocks * cache.block_tokens, features), np.float32)
    padded[..., :tokens, :head_dim] = prefix
    by_block = padded.reshape(layers, two, heads, blocks, cache.block_tokens, features).transpose(0, 3, 1, 2, 4, 5)
    packed = np.zeros((layers, blocks, two, heads, head_bytes(cache)), np.uint8)
    for index in np.ndindex(layers, blocks, two, heads):
        packed[index] = _head(by_block[index], values, is_keys=index[2] == 0)
    return list(packed)


def _head(rows: FloatArray, values: Values, *, is_keys: bool) -> Bytes:
    """Return the bytes of the keys or values [positions, features] of a head in a block."""
    step, (positions, features) = _STEP[values], rows.shape
    codes, scales = _rounded(rows, values)
    shape: tuple[int, ...] = (positions // step, step, features)
    if is_keys:
        shape = positions // _SET, _SET, features // (_LANES * step), _LANES * step
    lanes = codes.reshape(shape).swapaxes(1, 2)
    return np.frombuffer(np.ascontiguousarray(lanes).tobytes() + scales, np.uint8)


def _rounded(rows: FloatArray, values: Values) -> tuple[NDArray[np.generic], bytes]:
    """Return rows as the cache holds them, and the bytes of their scales."""
    if values == "f32":
        return rows, b""
    if values == "f16":
        return rows.astype(np.float16), b""
    if values == "bf16":  # to nearest, ties to even
        bits = rows.view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype("<u2"), b""
    largest, top = np.abs(rows).max(axis=1), np.float32(127 if values == "int8" else _E4M3_LARGEST)
    inverse = np.divide(top, largest, out=np.zeros_like(largest), where=largest > 0)
    scaled = rows * inverse[:, None]
    codes = (np.rint(scaled) + 128).astype(np.uint8) if values == "int8" else e4m3_codes(scaled)
    return codes, (largest / top).astype("<f4").tobytes()


def e4m3_codes(rows: FloatArray) -> Bytes:
    """Return the codes of the e4m3 nearest to numbers of up to 448, ties to even codes.

    Above 2^-6 a code is the upper bits of an f32, less a difference of exponents; below, a multiple of 2^-9.
    """
    magnitude = np.abs(rows)
    bits = magnitude.view(np.uint32)
    normal = ((bits + (bits >> np.uint32(20) & np.uint32(1)) + np.uint32(0x7FFFF)) >> np.uint32(20)) - np.uint32(960)
    codes = np.where(magnitude < 2.0**-6, np.rint(magnitude * 512).astype(np.uint32), normal)
    return codes.astype(np.uint8) | np.signbit(rows).astype(np.uint8) << np.uint8(7)
