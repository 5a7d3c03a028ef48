"""How the tensors of an artifact are stored: found out from its header, which names no schemes.

A packed matrix is u8 [panels, panel_bytes]. Its recipe names the schemes that it may have; a scheme and a number of
columns give the bytes of a panel (`layouts`), so the scheme that fits the model's own sizes is the one. Overrides that
name a matrix are looked up, as those are of a build that chose schemes by a goal; regular expressions are not matched:
one out of somebody's file may take for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import msgspec

from pyc.backends.cpu.constants import LANES
from pyc.backends.cpu.layouts import panel_layout
from pyc.compiler.recipe.types import Document, Quantize
from pyc.compiler.schemes import (
    ALIASES,
    KEEP_CODES,
    SCHEMES,
    Dense,
    Float8,
    Int4Group,
    Int8Channel,
    Int8Group,
    LookupGroup,
    Scheme,
)
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import Header, ModelInfo, Tensor
from pyc.runtime.errors import QuantizeError
from pyc.runtime.host.rounding import ceil_div

HALF = "16-bit"
"""The name for f16 and bf16, whose panels have one form."""
BYTES = "8-bit"
"""The name for codes of a byte by a scale for each row, int8 or floating point, where the recipe's overrides leave open
which they are: their panels have one form."""
UNKNOWN = "packed"
"""The name for what no scheme of the recipe fits."""
MOST_COLUMNS = 1 << 32
MOST_SIZES = 256
"""Sizes of panels, and numbers of columns, that a model may have: real ones have a few."""


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A tensor: the name of its scheme, whether it is a matrix, its values, those of padding rows left out where they
    are known (0: the scheme is not known), and its bytes. `columns` are those of a matrix that is not in parts; 0 where
    they are not known."""

    name: str
    scheme: str
    is_matrix: bool
    values: int
    size_bytes: int
    columns: int = 0

    @property
    def rows(self) -> int:
        """The rows of the matrix, with those of padding where they are not known; 0 where its columns are not."""
        return self.values // self.columns if self.columns else 0


def stored_weights(header: Header) -> tuple[StoredWeight, ...]:
    """Return how every tensor is stored, in the header's order. Raises nothing, whatever the header says, and takes no
    longer for more tensors than it takes to look at each."""
    sizes = {tensor.shape[1] for tensor in header.tensors if _is_packed(tensor)}
    schemes, widths = schemes_of(header), _widths(header)
    if max(len(sizes), len(widths)) > MOST_SIZES:
        sizes = set()
    found = {size: _fitting(size, schemes, widths) for size in sizes}
    names, info = names_of_bytes(header), header.model
    vocabulary = {size: known for size in sizes if (known := _of_width(size, schemes, info.hidden_size))}
    of_panels = {ceil_div(info.vocab_size, LANES): {**found, **vocabulary}}
    named = _named(header)
    fitting: dict[tuple[int, Scheme], tuple[str, int] | None] = {}

    def panels_of(tensor: Tensor) -> dict[int, tuple[str, int]]:
        likely = of_panels.get(tensor.shape[0], found) if tensor.shape else found
        scheme = named.get(_first_name(tensor.name)) if named and _is_packed(tensor) else None
        if scheme is None or tensor.shape[1] not in found:
            return likely
        key = (tensor.shape[1], scheme)
        if key not in fitting:
            fitting[key] = next((fit for width in sorted(widths) if (fit := _of_width(key[0], (scheme,), width))), None)
        fit = fitting[key]
        return likely if fit is None else {tensor.shape[1]: fit}

    return tuple(_stored(tensor, info, panels_of(tensor), names) for tensor in header.tensors)


def scheme_bytes(weights: tuple[StoredWeight, ...]) -> tuple[tuple[str, int, int], ...]:
    """Return the name, the number of tensors and the bytes of each scheme, that of the most bytes first."""
    found: dict[str, tuple[int, int]] = {}
    for weight in weights:
        count, size_bytes = found.get(weight.scheme, (0, 0))
        found[weight.scheme] = (count + 1, size_bytes + weight.size_bytes)
    rows = [(name, count, size_bytes) for name, (count, size_bytes) in found.items()]
    return tuple(sorted(rows, key=lambda row: -row[2]))


def main_scheme(weights: tuple[StoredWeight, ...]) -> str:
    """Return the scheme that most values are stored in."""
    values: dict[str, int] = {}
    for weight in weights:
        values[weight.scheme] = values.get(weight.scheme, 0) + weight.values
    return max(values, key=values.__getitem__, default="none")


def _stored(
    tensor: Tensor, info: ModelInfo, found: dict[int, tuple[str, int]], names: tuple[str, str]
) -> StoredWeight:
    """`found`: the scheme and the columns of panels of so many bytes; `names`: those of `names_of_bytes`."""
    size_bytes = prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
    if not _is_packed(tensor):
        is_matrix = len(tensor.shape) == 2
        columns = tensor.shape[1] if is_matrix else 0
        return StoredWeight(tensor.name, tensor.dtype, is_matrix, prod(tensor.shape), size_bytes, columns)
    panels, panel_bytes = tensor.shape
    scheme, columns = found.get(panel_bytes, (UNKNOWN, 0))
    is_vocabulary = panels == ceil_div(info.vocab_size, LANES) and columns == info.hidden_size
    if scheme in _BYTES:
        scheme = names[is_vocabulary] or scheme
    rows = info.vocab_size if is_vocabulary else panels * LANES
    return StoredWeight(tensor.name, scheme, True, rows * columns, size_bytes, columns)


def _is_packed(tensor: Tensor) -> bool:
    return tensor.dtype == "u8" and len(tensor.shape) == 2


def _fitting(panel_bytes: int, schemes: tuple[Scheme, ...], widths: frozenset[int]) -> tuple[str, int]:
    """The name of the scheme of such panels, and their columns."""
    for scheme in schemes:
        for columns in sorted(widths):
            if _panel_bytes(scheme, columns) == panel_bytes:
                return _name(scheme), columns
    fitting = {(_name(scheme), columns) for scheme in schemes if (columns := _columns(scheme, panel_bytes))}
    return fitting.pop() if len(fitting) == 1 else (UNKNOWN, 0)


def _of_width(panel_bytes: int, schemes: tuple[Scheme, ...], columns: int) -> tuple[str, int] | None:
    """The same where the columns are known: panels of ternary look like those of int8 with a quarter of the columns."""
    return next(((_name(s), columns) for s in schemes if _panel_bytes(s, columns) == panel_bytes), None)


@lru_cache(maxsize=4096)
def _panel_bytes(scheme: Scheme, columns: int) -> int:
    try:
        return panel_layout(scheme, columns).panel_bytes
    except QuantizeError:
        return 0


@lru_cache(maxsize=4096)
def _columns(scheme: Scheme, panel_bytes: int) -> int:
    """How many columns such a panel has; 0 when none fits. Of several, that differ in padding, the most."""
    step = scheme.group_size if isinstance(scheme, (Int4Group, Int8Group, LookupGroup)) else 1
    low, high = 0, MOST_COLUMNS // step
    while low < high:
        middle = (low + high + 1) // 2
        if _panel_bytes(scheme, middle * step) <= panel_bytes:
            low = middle
        else:
            high = middle - 1
    return low * step if low and _panel_bytes(scheme, low * step) == panel_bytes else 0


def _name(scheme: Scheme) -> str:
    return HALF if isinstance(scheme, Dense) and scheme.dtype in ("f16", "bf16") else scheme.name


_BYTES = frozenset(
    scheme.name
    for scheme in SCHEMES.values()
    if isinstance(scheme, Int8Channel) or (isinstance(scheme, Float8) and scheme.scaling != "block")
)
"""Schemes whose panels have one form."""


def names_of_bytes(header: Header, form: frozenset[str] = _BYTES) -> tuple[str, str]:
    """The scheme that matrices have of `form`, whose schemes look alike, and that of the vocabulary's; "": none has."""
    quantize = _quantize(header)
    if quantize is None:
        return "", ""
    overrides = {override.scheme for override in quantize.overrides}
    found = []
    for first in (quantize.scheme, quantize.embeddings):
        kept = {scheme.name for scheme in _kept_codes(header)}
        names = {ALIASES.get(name, name) for name in (first, *overrides)}
        names = (names | kept if "none" in names else names) & form
        found.append(names.pop() if len(names) == 1 else BYTES if names else "")
    return found[0], found[1]


def _quantize(header: Header) -> Quantize | None:
    """That of the recipe; None where it is none."""
    try:
        return msgspec.json.decode(header.provenance.recipe, type=Document).quantize
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def schemes_of(header: Header) -> tuple[Scheme, ...]:
    """The schemes that matrices may have: the recipe's, in the order in which they are likely, and f32, which tables of
    positions have."""
    quantize = _quantize(header)
    if quantize is None:
        return ()
    names = [quantize.scheme, quantize.embeddings, *(override.scheme for override in quantize.overrides)]
    found: list[Scheme] = []
    for name in names:
        scheme = SCHEMES.get(ALIASES.get(name, name), Dense())
        found += [*_kept_codes(header), *_kept(header)] if scheme == Dense() else [scheme]
    return tuple(dict.fromkeys([*found, Dense("f32")]))


def _named(header: Header) -> dict[str, Scheme]:
    """The schemes of matrices that an override names in full, by their names without ".weight". Those behind a regular
    expression, which may match first, are left out, and what a name keeps as it is."""
    quantize = _quantize(header)
    found: dict[str, Scheme] = {}
    for override in quantize.overrides if quantize is not None else ():
        if override.match.startswith("re:"):
            break
        scheme = SCHEMES.get(ALIASES.get(override.scheme, override.scheme), Dense())
        found.setdefault(override.match.removesuffix(".weight"), scheme)
    return {name: scheme for name, scheme in found.items() if scheme != Dense()}


def _first_name(stacked: str) -> str:
    """The first of the matrices that a weight is stacked of, without ".weight": a.q of a.q+k.weight."""
    return stacked.removesuffix(".weight").partition("+")[0]


def _kept_codes(header: Header) -> list[Scheme]:
    """The schemes of a quantized checkpoint's own codes, which "none" keeps (`passes.assign_schemes`)."""
    records = [record.options for record in header.provenance.passes if record.name == KEEP_CODES]
    try:
        names = {name for options in records for name in msgspec.json.decode(options, type=dict[str, int])}
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []
    return [scheme for name, scheme in SCHEMES.items() if name in names]


def _kept(header: Header) -> list[Scheme]:
    """What "none" may be, as in the checkpoint. A panel of f32 looks like one of 16 bits with twice the columns; the
    vocabulary's matrix, whose columns are known, tells which it is."""
    info = header.model
    panels = ceil_div(info.vocab_size, LANES)
    is_wide = any(tensor.shape == (panels, 4 * LANES * info.hidden_size) for tensor in header.tensors)
    return [Dense("f32"), Dense("bf16")] if is_wide else [Dense("bf16"), Dense("f32")]


def _widths(header: Header) -> frozenset[int]:
    """Numbers of columns that matrices of this model are likely to have: those of the hidden state, of what attention
    returns (its queries, without keys and values where they are stacked) and of a feed-forward's inner state (half of
    the rows where two are stacked)."""
    info = header.model
    found = {info.hidden_size}
    for tensor in header.tensors:
        if _is_packed(tensor):
            rows = tensor.shape[0] * LANES
            found |= {rows, rows // 2, rows // 3}
            if info.kv_cache is not None:
                found.add(rows - 2 * info.kv_cache.heads * info.kv_cache.head_dim)
    return frozenset(width for width in found if 0 < width <= MOST_COLUMNS)
