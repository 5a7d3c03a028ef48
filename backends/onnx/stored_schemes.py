"""How an artifact's matrices for ONNX are stored: found out from its header, which names no schemes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from pyc.backends.cpu.stored_schemes import StoredWeight
from pyc.backends.onnx.layouts import ROW_BLOCK
from pyc.backends.recipe_schemes import UNKNOWN, RecipeSchemes, name_of
from pyc.compiler.schemes import Float8, Int4Group, Int8Channel, Int8Group, LookupGroup, Scheme
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import Header, Tensor

_SUFFIXES = (".codes", ".scales", ".zero_points")
_BESIDE_CODES = (".scales", ".zero_points", ".factors")


def stored_parts(header: Header, schemes: RecipeSchemes) -> dict[str, StoredWeight]:
    """Return how the parts of quantized matrices are stored, by the names of tensors; `schemes` are those of matrices.

    The values of a matrix are counted with its codes.
    """
    by_name = {tensor.name: tensor for tensor in header.tensors}
    found: dict[str, StoredWeight] = {}
    for name, codes in by_name.items():
        stem = name.removesuffix(_SUFFIXES[0])
        if stem == name or codes.dtype != "u8" or len(codes.shape) not in (2, 3):
            continue
        scales = by_name.get(f"{stem}.scales")
        if len(codes.shape) == 2:
            scheme, values = _fitting_floats(scales, schemes.of(stem)), prod(codes.shape)
        else:
            scheme, values = _fitting(codes, f"{stem}.zero_points" in by_name, schemes.of(stem))
        for suffix in _SUFFIXES:
            part = by_name.get(stem + suffix)
            if part is not None:
                size_bytes = prod(part.shape) * DTYPES[part.dtype].itemsize
                found[part.name] = StoredWeight(part.name, scheme, True, values if part is codes else 0, size_bytes)
    return found


def counts(weights: Iterable[StoredWeight]) -> Mapping[str, int]:
    """Return the number of matrices of each scheme: a matrix in parts is one."""
    found: dict[str, int] = {}
    for weight in weights:
        plain = weight.name.partition("@")[0]
        found[weight.scheme] = found.get(weight.scheme, 0) + (not plain.endswith(_BESIDE_CODES))
    return found


def _fitting(codes: Tensor, has_zero_points: bool, groups: tuple[tuple[Scheme, ...], ...]) -> tuple[str, int]:
    """Return the name of the scheme of such codes, and how many there are, padding included."""
    rows, blocks, size = codes.shape
    for scheme in (scheme for group in groups for scheme in group):
        match scheme:
            case Int4Group(block, symmetric) if 2 * size == block and has_zero_points != symmetric:
                return scheme.name, rows * blocks * block
            case (Int8Group(block) | LookupGroup(_, block)) if size == block and not has_zero_points:
                return scheme.name, rows * blocks * block
            case Int8Channel() if size == ROW_BLOCK and not has_zero_points:
                return scheme.name, rows * blocks * size
    return UNKNOWN, 0


def _fitting_floats(scales: Tensor | None, groups: tuple[tuple[Scheme, ...], ...]) -> str:
    """Return the name of the scheme of codes of 8-bit floating point. Scales of blocks may be one a row, too."""
    has_blocks = scales is not None and len(scales.shape) == 2 and scales.shape[1] > 1
    for schemes in groups:
        floats = [scheme for scheme in schemes if isinstance(scheme, Float8)]
        by_block = [scheme for scheme in floats if scheme.scaling == "block"]
        by_row = [scheme for scheme in floats if scheme.scaling != "block" and not has_blocks]
        if by_row or by_block:
            return name_of(by_row or by_block)
    return UNKNOWN
