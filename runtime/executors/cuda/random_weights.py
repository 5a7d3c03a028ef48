"""Weights of random numbers in place of an artifact's own: what a program takes can be measured without a checkpoint.

Floats are normal with a deviation of 0.02. Bytes, which are codes, have bit 3 clear, so that none is a NaN of fp8.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.artifact.validate import tensor_bytes
from pyc.runtime.executors.cuda.device import Device

POOL_BYTES = 16 << 20
"""Random bytes that are copied again and again."""
_DEVIATION = 0.02
_NO_NAN = 0xF7


def random_weights(device: Device, artifact: Artifact, names: Iterable[str]) -> dict[str, int]:
    """Return where random tensors of the artifact's shapes lie on the device. Raises RunError for lack of memory."""
    by_name = {tensor.name: tensor for tensor in artifact.header.tensors}
    pools: dict[str, NDArray[np.uint8]] = {}
    found: dict[str, int] = {}
    for name in names:
        tensor = by_name[name]
        size_bytes = tensor_bytes(tensor.dtype, tensor.shape)
        if tensor.dtype not in pools:
            pools[tensor.dtype] = device.pinned(POOL_BYTES)
            pools[tensor.dtype][...] = random_bytes(tensor.dtype, POOL_BYTES)
        found[name] = device.allocate(size_bytes, f"the weight {name}")
        for start in range(0, size_bytes, POOL_BYTES):
            part = min(POOL_BYTES, size_bytes - start)
            device.upload(pools[tensor.dtype].ctypes.data, found[name] + start, part)
    device.wait()
    for pool in pools.values():
        device.release_pinned(pool)
    return found


def random_bytes(dtype: str, size_bytes: int) -> NDArray[np.uint8]:
    """Return so many bytes of random numbers of a tensor's dtype, the same each time."""
    generator = np.random.default_rng(0)
    if dtype in ("f32", "f16", "bf16"):
        count = size_bytes // (4 if dtype == "f32" else 2)
        numbers = generator.standard_normal(count, np.float32) * np.float32(_DEVIATION)
        if dtype == "bf16":
            return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return numbers.astype(np.float32 if dtype == "f32" else np.float16).view(np.uint8)
    return generator.integers(0, 256, size_bytes, np.uint8) & np.uint8(_NO_NAN)
