"""How far a tensor of one artifact is from that of another; A and B are what their bytes stand for, in f64:

    distance = sqrt(sum (B - A)^2 / sum A^2)

Both are read and summed in pieces of about NUMBERS_AT_A_TIME numbers: anybody may have written them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pyc.backends.recipe_schemes import BYTES, HALF
from pyc.backends.stored_values import ROWS_TOGETHER, is_stored_as, stored_values
from pyc.backends.stored_weights import StoredWeight
from pyc.compiler.schemes import SCHEMES, Dense, Scheme
from pyc.runtime.artifact.format import Tensor
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.artifact.tensor_rows import TensorRows

NUMBERS_AT_A_TIME = 1 << 20
MOST_COLUMNS = 1 << 19
"""The rows of a panel are looked at together, and no model has rows of a quarter of this."""
OTHER_SHAPES = "other shapes"
IN_PARTS = "codes and scales apart"
UNKNOWN_SCHEME = "scheme not known"
TOO_WIDE = "rows too long"
_OPEN = {HALF: "f16 or bf16 not known", BYTES: "int8 or fp8 not known"}
"""Why there is no distance, of names that stand for several schemes."""


def tensor_distance(
    artifacts: tuple[Artifact, Artifact], tensors: tuple[Tensor, Tensor], weights: tuple[StoredWeight, StoredWeight]
) -> float | str:
    """Return how far the second tensor is from the first, or why that cannot be said; NaN where numbers are none.

    Raises ArtifactError for damaged bytes.
    """
    with np.errstate(all="ignore"):
        if any(len(tensor.shape) != 2 for tensor in tensors):
            return _of_numbers(artifacts, tensors)
        return _of_matrices(artifacts, tensors, weights)


def _of_numbers(artifacts: tuple[Artifact, Artifact], tensors: tuple[Tensor, Tensor]) -> float | str:
    """Of vectors, and of what is no matrix."""
    first, second = (TensorRows(*each, is_flat=True) for each in zip(artifacts, tensors, strict=True))
    one, two = (tensor.shape for tensor in tensors)
    if one != two or first.dtype != second.dtype or first.dtype == np.uint8:
        are_numbers = first.dtype == second.dtype and first.dtype != np.uint8
        return OTHER_SHAPES if len(one) == len(two) and are_numbers else IN_PARTS
    moved = square = 0.0
    for start in range(0, first.shape[0], NUMBERS_AT_A_TIME):
        piece = slice(start, start + NUMBERS_AT_A_TIME)
        more = _squares(_numbers(first[piece]), _numbers(second[piece]))
        moved, square = moved + more[0], square + more[1]
    return _root(moved, square)


def _of_matrices(
    artifacts: tuple[Artifact, Artifact], tensors: tuple[Tensor, Tensor], weights: tuple[StoredWeight, StoredWeight]
) -> float | str:
    one, two = weights
    rows, columns = one.rows, one.columns
    if columns and two.columns and (rows, columns) != (two.rows, two.columns):
        return OTHER_SHAPES
    schemes = _scheme(one), _scheme(two)
    for weight, scheme in zip(weights, schemes, strict=True):
        if scheme is None:
            return _OPEN.get(weight.scheme, UNKNOWN_SCHEME)
        if not weight.columns:
            return IN_PARTS
    arrays = (TensorRows(*each) for each in zip(artifacts, tensors, strict=True))
    pairs = [(array, scheme) for array, scheme in zip(arrays, schemes, strict=True) if scheme is not None]
    if not all(is_stored_as(array, scheme, rows, columns) for array, scheme in pairs):
        return UNKNOWN_SCHEME
    if columns > MOST_COLUMNS:
        return TOO_WIDE
    step = ROWS_TOGETHER * max(1, NUMBERS_AT_A_TIME // (ROWS_TOGETHER * columns))
    moved = square = 0.0
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        a, b = (stored_values(array, scheme, columns, start, stop) for array, scheme in pairs)
        more = _squares(a, b)
        moved, square = moved + more[0], square + more[1]
    return _root(moved, square)


def _scheme(weight: StoredWeight) -> Scheme | None:
    """The scheme of a tensor's matrix; of names that stand for several, none."""
    if weight.scheme in ("f32", "f16", "bf16"):
        return Dense(weight.scheme)
    return SCHEMES.get(weight.scheme)


def _numbers(array: NDArray[np.generic]) -> NDArray[np.float32]:
    if array.dtype == np.uint16:  # bf16
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32)


def _squares(a: NDArray[np.float32], b: NDArray[np.float32]) -> tuple[float, float]:
    wide = a.astype(np.float64)
    return float(np.square(b - wide).sum()), float(np.square(wide).sum())


def _root(moved: float, square: float) -> float:
    if not moved:
        return 0.0
    return math.sqrt(moved / square) if square else math.inf
