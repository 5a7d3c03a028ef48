"""Tensors of safetensors files, by where their bytes lie."""

from __future__ import annotations

from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of a safetensors file: `size_bytes` bytes at absolute `offset`, row-major, little-endian."""

    path: str
    tensor: str
    dtype: str
    shape: Shape
    offset: int
    size_bytes: int
