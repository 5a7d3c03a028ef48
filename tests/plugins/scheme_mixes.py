"""All quantized schemes in few models: each has another scheme in each place of two layers."""

import re
from collections.abc import Iterable

from pyc.compiler.schemes import SCHEMES, Dense, Scheme

LAYER = ("self_attn.[qkv]_proj", "self_attn.o_proj", "mlp.(gate|up)_proj", "mlp.down_proj")
PLACES = tuple(rf"layers\.{number}\.{part}" for number in range(2) for part in LAYER)
"""Matrices that are stacked have one scheme."""
QUANTIZED = tuple(name for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense))


def mixes_of(schemes: Iterable[str] = QUANTIZED) -> dict[str, tuple[str, ...]]:
    """By an id for a test, the schemes of as few models as it takes. The embeddings of each have its first."""
    names = tuple(schemes)
    found = [names[start : start + len(PLACES)] for start in range(0, len(names), len(PLACES))]
    return {f"{mix[0]}-to-{mix[-1]}": mix for mix in found}


def quantize_of(mix: tuple[str, ...]) -> dict[str, object]:
    """The recipe's `quantize`."""
    overrides = [{"match": f"re:.*{place}.*", "scheme": name} for place, name in zip(PLACES, mix, strict=False)]
    return {"scheme": mix[0], "embeddings": mix[0], "overrides": overrides}


def scheme_in(mix: tuple[str, ...], tensor: str) -> Scheme:
    """The scheme of a matrix in the model of a mix."""
    return SCHEMES[next((name for place, name in zip(PLACES, mix, strict=False) if re.search(place, tensor)), mix[0])]
