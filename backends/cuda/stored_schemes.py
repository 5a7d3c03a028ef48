"""How an artifact's matrices for CUDA are stored: found out from its header, which names no schemes.

Codes have a block's bytes as their last dimension, or are those of lookup tables of 4 bits; the dtype of the scales
tells the rest. Floating point of 8 bits looks as it does for ONNX, and is found there.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from pyc.backends.cpu.stored_schemes import StoredWeight
from pyc.backends.cuda.layouts import PARTS
from pyc.backends.recipe_schemes import UNKNOWN, RecipeSchemes
from pyc.compiler.codebooks import CODEBOOKS
from pyc.compiler.quantization import BLOCK
from pyc.compiler.schemes import LookupGroup, Scheme
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import Header, Tensor

_OWN = "@cuda"
"""What ends the names of weights that another backend stores otherwise (`passes.lower`)."""


def stored_parts(header: Header, schemes: RecipeSchemes) -> dict[str, StoredWeight]:
    """Return how the parts of quantized matrices are stored, by the names of tensors; `schemes` are those of matrices.

    The values of a matrix are counted with its codes.
    """
    by_name = {tensor.name: tensor for tensor in header.tensors}
    found: dict[str, StoredWeight] = {}
    for name, codes in by_name.items():
        plain = name.removesuffix(_OWN)
        stem = plain.removesuffix(".codes")
        if stem == plain or codes.dtype != "u8":
            continue
        parts = {part: by_name.get(f"{stem}.{part}{_OWN}") or by_name.get(f"{stem}.{part}") for part in PARTS}
        parts["codes"] = codes
        scheme = _scheme(parts, tuple(one for group in schemes.of(stem) for one in group))
        if scheme is None:
            continue
        values = prod(codes.shape) * 8 // (_bits(codes) or (8 if scheme.startswith("int8") else 4))
        for part in parts.values():
            if part is not None:
                size_bytes = prod(part.shape) * DTYPES[part.dtype].itemsize
                found[part.name] = StoredWeight(part.name, scheme, True, values if part is codes else 0, size_bytes)
    return found


def _scheme(parts: Mapping[str, Tensor | None], schemes: tuple[Scheme, ...]) -> str | None:
    """Return the name of the scheme of parts; None where they are not CUDA's."""
    codes, scales = parts["codes"], parts["scales"]
    if codes is None or scales is None or len(scales.shape) != 2:
        return None
    groups, bits = scales.shape[1], _bits(codes)
    if bits is not None and scales.dtype in ("bf16", "f32"):
        group = BLOCK * codes.shape[1] // groups if scales.dtype == "bf16" else None
        return _table(schemes, bits, group, has_factors=group is None)
    match scales.dtype, len(codes.shape):
        case "bf16", 3:
            return f"int4-g{2 * codes.shape[2]}"
        case "f16", 3:
            return f"int8-g{codes.shape[2]}" if parts["zero_points"] is None else f"int4-g{2 * codes.shape[2]}-asym"
        case "f32", 3 if groups == 1 and codes.shape[1] > 1:
            return "int8"
        case "bf16", 2:
            return _table(schemes, 4, 2 * codes.shape[1] // groups, parts["factors"] is not None)
    return None


def _bits(codes: Tensor) -> int | None:
    """Return the bits of a code of blocks of planes; None for other codes."""
    return {20: 5, 12: 3, 8: 2}.get(codes.shape[2]) if len(codes.shape) == 3 else None


def _table(schemes: tuple[Scheme, ...], bits: int, group: int | None, has_factors: bool) -> str:
    """Return the name of the first of `schemes` with such a table; `group` is None where a row has one scale."""
    fitting = (
        scheme.name
        for scheme in schemes
        if isinstance(scheme, LookupGroup)
        and CODEBOOKS[scheme.codebook].bits == bits
        and (scheme.scales == "row" if group is None else scheme.group_size == group)
        and scheme.has_row_factors == has_factors
    )
    return next(fitting, UNKNOWN)
