"""Random weights as artifacts store them, so that programs are measured without a checkpoint.

Matrices of panels are normal with a deviation of 0.02, rounded and packed as a build does. Of matrices in parts codes
are any, but for those of floating point that would be no number; scales are 2^-12, zero points the middle, factors one.
Other tensors of one dimension, such as gains of norms, are ones, tables normal like matrices.

An artifact of programs alone says how each matrix is stored (`passes.module_identity`). Of others the header leaves
some open: panels of two schemes may have the same size.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pyc.backends.cpu.constants import LANES
from pyc.backends.cpu.layouts import panel_layout
from pyc.backends.cpu.packing import store_panels
from pyc.backends.recipe_schemes import BYTES, HALF
from pyc.backends.stored_weights import stored_weights
from pyc.compiler.schemes import SCHEMES, Dense, Scheme
from pyc.runtime.artifact.dtypes import DtypeName
from pyc.runtime.artifact.format import Tensor
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.protocol import RandomWeights

Bytes = NDArray[np.uint8]

PATTERN_BYTES = 1 << 20
"""What is repeated, of panels about an eighth of it."""
_DEVIATION = np.float32(0.02)
_SCALE = 2.0**-12
_NO_NAN = np.uint8(0xF7)
"""Of a byte of floating point: with bit 3 clear it is a number of e4m3 and of e5m2."""
_MIDDLE = np.uint8(0x88)
"""Two zero points of four bits."""
_OF_BACKEND = "@"
_PANELS: dict[str, Scheme] = {**SCHEMES, HALF: Dense("bf16"), BYTES: SCHEMES["int8"]}


def random_weights(artifact: Artifact) -> RandomWeights:
    """Return what fills each of an artifact's tensors. It raises ArtifactError for panels of a scheme that the artifact
    does not tell."""
    header = artifact.header
    stored = {weight.name: (weight.scheme, weight.columns) for weight in stored_weights(header)}
    if any(blob.name == _TEXT for blob in header.blobs):
        stored |= schemes_in(artifact.blob(_TEXT).decode("utf-8", "replace"))

    def fill(tensor: Tensor) -> Bytes:
        part = tensor.name.partition(_OF_BACKEND)[0].rpartition(".")[2]
        if part in _PARTS:
            return _part(part, tensor.dtype)
        if tensor.dtype != "u8":
            return _numbers(tensor.dtype, len(tensor.shape) > 1)
        scheme, columns = stored[tensor.name]
        if scheme not in _PANELS or not columns:
            raise ArtifactError(
                f"tensor {tensor.name[:100]!a}: the artifact does not tell its scheme, so none can be made; measure it "
                "with its own weights"
            )
        if panel_layout(_PANELS[scheme], columns).panel_bytes != tensor.shape[-1]:
            raise ArtifactError(f"tensor {tensor.name[:100]!a}: its panels are not those of {scheme}")
        return _panels(scheme, columns)

    return fill


def schemes_in(text: str) -> dict[str, tuple[str, int]]:
    """Return scheme and columns of each matrix of the text that programs were compiled from."""
    return {match[1]: (match[2], int(match[3])) for match in map(_LINE.match, text.splitlines()) if match}


_TEXT = "module/cpu.txt"
_LINE = re.compile(r"weight (\S+) = \w+ \[[\d, ]*\], (\S+) \[\d{1,12}, (\d{1,12})\] ")
_PARTS = ("codes", "scales", "zero_points", "factors")


@lru_cache
def _part(part: str, dtype: DtypeName) -> Bytes:
    """Return a part of matrices in rows."""
    random = np.random.default_rng(0)
    if part == "codes":
        return random.integers(0, 256, PATTERN_BYTES, np.uint8) & _NO_NAN
    if part == "zero_points":
        return np.full(PATTERN_BYTES, _MIDDLE)
    return _as_bytes(np.full(PATTERN_BYTES // 4, _SCALE if part == "scales" else 1.0, np.float32), dtype)


@lru_cache
def _numbers(dtype: DtypeName, is_table: bool) -> Bytes:
    """Return numbers of a tensor that is no matrix of codes."""
    count = PATTERN_BYTES // 4
    if not is_table:
        return _as_bytes(np.ones(count, np.float32), dtype)
    return _as_bytes(np.random.default_rng(1).standard_normal(count, np.float32) * _DEVIATION, dtype)


def _as_bytes(numbers: NDArray[np.float32], dtype: DtypeName) -> Bytes:
    if dtype == "bf16":
        return (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    if dtype in ("f32", "f16"):
        return numbers.astype(np.float32 if dtype == "f32" else np.float16).view(np.uint8)
    return numbers.astype({"i32": np.int32, "i8": np.int8, "u8": np.uint8}[dtype]).view(np.uint8)


@lru_cache
def _panels(name: str, columns: int) -> Bytes:
    """Return whole panels of a scheme."""
    layout = panel_layout(_PANELS[name], columns)
    rows = LANES * max(1, PATTERN_BYTES // 8 // layout.panel_bytes)
    numbers = np.random.default_rng(2).standard_normal((rows, columns), np.float32) * _DEVIATION
    panels = np.ascontiguousarray(store_panels(numbers, layout))
    if name == BYTES:
        panels[:, layout.data.offset : layout.data.end] &= _NO_NAN
    return panels.reshape(-1)
