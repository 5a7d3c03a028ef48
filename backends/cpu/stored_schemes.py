"""How the tensors of an artifact are stored: found out from its header, which names no schemes.

A packed matrix is u8 [panels, panel_bytes]. Its name tells which schemes it may have (`recipe_schemes`) and how many
columns (`matrix_shapes`); a scheme and a number of columns give the bytes of a panel (`layouts`), so what fits is the
one. The names of somebody else's model tell no columns: there, those that the model's own sizes suggest are tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from pyc.backends.cpu.constants import LANES
from pyc.backends.cpu.layouts import panel_layout
from pyc.backends.matrix_shapes import MatrixShapes, Size, matrix_shapes
from pyc.backends.recipe_schemes import UNKNOWN, RecipeSchemes, name_of
from pyc.compiler.schemes import Int4Group, Int8Group, LookupGroup, Scheme
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import Header, ModelInfo, Tensor
from pyc.runtime.errors import QuantizeError
from pyc.runtime.host.rounding import ceil_div

MOST_COLUMNS = 1 << 32
MOST_SIZES = 256
"""Sizes of panels, and numbers of columns, that a model may have: real ones have a few."""

Groups = tuple[tuple[Scheme, ...], ...]
"""Schemes that a matrix may have, as `RecipeSchemes.of` returns them."""


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


def stored_weights(header: Header, schemes: RecipeSchemes) -> tuple[StoredWeight, ...]:
    """Return how every tensor is stored, in the header's order. Raises nothing, whatever the header says, and takes no
    longer for more tensors than it takes to look at each."""
    panels = _Panels(header, schemes)
    return tuple(
        panels.stored(tensor) if _is_packed(tensor) else _as_it_is(tensor) for tensor in header.tensors
    )


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


def _as_it_is(tensor: Tensor) -> StoredWeight:
    is_matrix = len(tensor.shape) == 2
    size_bytes = prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
    columns = tensor.shape[1] if is_matrix else 0
    return StoredWeight(tensor.name, tensor.dtype, is_matrix, prod(tensor.shape), size_bytes, columns)


class _Panels:
    """Finds the scheme and the columns of packed matrices."""

    def __init__(self, header: Header, schemes: RecipeSchemes) -> None:
        self._info = header.model
        self._schemes = schemes
        packed = [tensor for tensor in header.tensors if _is_packed(tensor)]
        self._widths = tuple(sorted(_widths(packed, self._info)))
        self._are_too_many = max(len({tensor.shape[1] for tensor in packed}), len(self._widths)) > MOST_SIZES
        self._shapes = matrix_shapes(header)
        if not self._are_too_many:
            self._shapes = self._narrowed(packed)

    def stored(self, tensor: Tensor) -> StoredWeight:
        """Return how a packed matrix is stored."""
        panels, panel_bytes = tensor.shape
        scheme, columns = (UNKNOWN, 0) if self._are_too_many else self._found(tensor)
        if not columns:  # of a later pyc's scheme; the shapes beside it may tell
            known = self._shapes.inputs(_plain(tensor))
            columns = known[1][0] if known is not None and len(known[1]) == 1 else 0
        rows = self._shapes.rows(_plain(tensor), panels)
        if panels == ceil_div(self._info.vocab_size, LANES) and columns == self._info.hidden_size:
            rows = self._info.vocab_size if rows == panels * LANES else rows
        return StoredWeight(tensor.name, scheme, True, rows * columns, panels * panel_bytes, columns)

    def _found(self, tensor: Tensor) -> tuple[str, int]:
        """The name of the scheme of a matrix, and its columns."""
        panels, panel_bytes = tensor.shape
        groups = self._schemes.of(_plain(tensor))
        known = self._shapes.inputs(_plain(tensor))
        if known is not None and (fit := _within(panel_bytes, groups, known[1])) is not None:
            return fit
        hidden = self._info.hidden_size
        is_like_vocabulary = panels == ceil_div(self._info.vocab_size, LANES)
        if is_like_vocabulary and (fit := _within(panel_bytes, groups, range(hidden, hidden + 1))) is not None:
            return fit
        return _fitting(panel_bytes, groups, self._widths)

    def _narrowed(self, packed: Iterable[Tensor]) -> MatrixShapes:
        """The shapes, with what the matrices that read a size tell of it where those that make it leave it open."""
        found: dict[Size, set[int]] = {}
        for tensor in packed:
            known = self._shapes.inputs(_plain(tensor))
            if known is None or len(known[1]) < 2:
                continue
            fit = _within(tensor.shape[1], self._schemes.of(_plain(tensor)), known[1])
            found.setdefault(known[0], set()).add(0 if fit is None else fit[1])
        shapes = self._shapes
        for size, columns in found.items():
            if 0 not in columns:
                shapes = shapes.with_size(size, min(columns))
        return shapes


def _plain(tensor: Tensor) -> str:
    """The name of a weight, without that of the backend which has it so."""
    return tensor.name.partition("@")[0]


def _is_packed(tensor: Tensor) -> bool:
    return tensor.dtype == "u8" and len(tensor.shape) == 2


@lru_cache(maxsize=4096)
def _within(panel_bytes: int, groups: Groups, columns: range) -> tuple[str, int] | None:
    """The name of the scheme of such panels, and their columns, the most of those that fit; None: no scheme fits."""
    for schemes in groups:
        for scheme in schemes:
            fitting = next((each for each in reversed(columns) if _panel_bytes(scheme, each) == panel_bytes), None)
            if fitting is not None:
                return name_of([scheme, *schemes]), fitting
    return None


@lru_cache(maxsize=4096)
def _fitting(panel_bytes: int, groups: Groups, widths: tuple[int, ...]) -> tuple[str, int]:
    """The same where the columns are not known; `widths` are likely."""
    schemes = tuple(dict.fromkeys(scheme for group in groups for scheme in group))
    for scheme in schemes:
        for columns in widths:
            if _panel_bytes(scheme, columns) == panel_bytes:
                return name_of([scheme, *schemes]), columns
    fitting = {
        (name_of([scheme, *schemes]), columns) for scheme in schemes if (columns := _columns(scheme, panel_bytes))
    }
    return fitting.pop() if len(fitting) == 1 else (UNKNOWN, 0)


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


def _widths(packed: Iterable[Tensor], info: ModelInfo) -> frozenset[int]:
    """Numbers of columns that matrices of this model are likely to have: those of the hidden state, of what attention
    returns (its queries, without keys and values where they are stacked) and of a feed-forward's inner state (half of
    the rows where two are stacked)."""
    found = {info.hidden_size}
    for tensor in packed:
        rows = tensor.shape[0] * LANES
        found |= {rows, rows // 2, rows // 3}
        if info.kv_cache is not None:
            found.add(rows - 2 * info.kv_cache.heads * info.kv_cache.head_dim)
    return frozenset(width for width in found if 0 < width <= MOST_COLUMNS)
