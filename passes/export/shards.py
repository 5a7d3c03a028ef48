"""Files of safetensors that an export writes: one, or shards and their index."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import ArtifactError

SHARD_BYTES = 4 << 30
"""A shard ends behind the tensor with which it would exceed this."""

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I8": 1, "I32": 4, "I64": 8}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to write: `dtype` as safetensors calls it, and `values`, which gives the array when its turn comes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    values: Callable[[], NDArray[np.generic]]

    @property
    def size_bytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def write_shards(folder: Path, entries: Sequence[Entry]) -> None:
    """Write the tensors into the folder, in this order. Raises ArtifactError for values of another size."""
    shards: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if shards[-1] and size + entry.size_bytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.size_bytes
    count = len(shards)
    names = [f"model-{index + 1:05}-of-{count:05}.safetensors" for index in range(count)]
    if count == 1:
        names = ["model.safetensors"]
    for file_name, shard in zip(names, shards, strict=True):
        _write_shard(folder / file_name, shard)
    if count > 1:
        owners = {entry.name: file for file, shard in zip(names, shards, strict=True) for entry in shard}
        total = sum(entry.size_bytes for entry in entries)
        index = {"metadata": {"total_size": total}, "weight_map": owners}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _write_shard(path: Path, entries: Sequence[Entry]) -> None:
    """Write a file of safetensors: the length of its header, the header, the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in entries:
        end = offset + entry.size_bytes
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            values = np.ascontiguousarray(entry.values())
            if values.nbytes != entry.size_bytes:
                raise ArtifactError(f"{entry.name}: {values.nbytes} bytes, expected {entry.size_bytes}")
            file.write(values.data)
