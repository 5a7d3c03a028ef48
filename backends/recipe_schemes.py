"""The schemes that the matrices of an artifact may have, by their names: what the recipe in its header says.

Scheme, embeddings and overrides name one for each matrix, but for `none`, which keeps what the checkpoint has: codes
of a quantized one, by the record `keep_codes`, and types by `keep_types`, which older artifacts do not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec

from pyc.backends.matrix_shapes import place_of
from pyc.compiler.recipe.types import Override, Quantize
from pyc.compiler.schemes import (
    ALIASES,
    KEEP_CODES,
    KEEP_TYPES,
    SCHEMES,
    Dense,
    Float8,
    Int8Channel,
    Scheme,
)
from pyc.compiler.stacked_names import names_in_stack
from pyc.runtime.artifact.format import Header
from pyc.runtime.errors import RecipeError

HALF = "16-bit"
"""The name for f16 and bf16 where the artifact does not tell which: their panels have one form."""
BYTES = "8-bit"
"""The name for codes of a byte by a scale for each row, int8 or floating point, where the artifact does not tell which
they are: their panels have one form."""
UNKNOWN = "packed"
"""The name for what no scheme of the recipe fits."""

MOST_PATTERNS = 32
MOST_LETTERS = 1 << 21
"""Regular expressions of overrides, and their number times letters of names: a file may be anybody's."""

_FLOAT32 = Dense("f32")
_HALVES = (Dense("bf16"), Dense("f16"))


class RecipeSchemes:
    """Says which schemes a matrix may have. It raises nothing, whatever the header says."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._quantize = _quantize(header)
        overrides = self._quantize.overrides if self._quantize is not None else ()
        self._patterns = [(place, one) for place, one in enumerate(overrides) if one.match.startswith("re:")]
        self._named: dict[str, int] = {}
        for place, one in enumerate(overrides):
            self._named.setdefault(one.match, place)
        letters = sum(len(tensor.name) for tensor in header.tensors if tensor.dtype == "u8")
        self._matches = len(self._patterns) <= MOST_PATTERNS and len(self._patterns) * letters <= MOST_LETTERS

    def of(self, name: str) -> tuple[tuple[Scheme, ...], ...]:
        """Return groups of schemes, the likeliest first: those of the first group in which one fits are meant.

        `name` is that of the weight, or of the stack of them, without the part and the backend at its end.
        """
        if self._quantize is None:
            return ()
        first = names_in_stack(name)[0]
        place = place_of(first)
        if place is None or not self._matches:
            return (self.all,)
        if place[0] == "positions":
            return ((_FLOAT32,), self.all)
        try:
            scheme = self._scheme_of(self._quantize, first, is_embedding=place[0] == "vocabulary")
        except RecipeError:
            self._matches = False
            return (self.all,)
        if scheme is None:
            return ()
        return (self.kept if scheme == Dense() else (scheme,), self.all)

    def _scheme_of(self, quantize: Quantize, name: str, *, is_embedding: bool) -> Scheme | None:
        """What `Quantize.scheme_of` returns, without looking at each override; None: one of a later pyc."""
        overrides = quantize.overrides
        found = min(self._named.get(each, len(overrides)) for each in (name, name.rpartition(".")[0]))
        found = next((place for place, one in self._patterns if place < found and one.matches(name)), found)
        if found < len(overrides):
            return _known(overrides[found].scheme)
        return _known(quantize.embeddings if is_embedding and quantize.embeddings != "auto" else quantize.scheme)

    @cached_property
    def all(self) -> tuple[Scheme, ...]:
        """All that the recipe names, in the order in which they are likely, and f32, which tables of positions have."""
        if self._quantize is None:
            return ()
        names = (self._quantize.scheme, self._quantize.embeddings)
        named = (_scheme(name) for name in (*names, *(one.scheme for one in self._quantize.overrides)))
        found: list[Scheme] = []
        for scheme in named:
            found += self.kept if scheme == Dense() else [scheme]
        return tuple(dict.fromkeys([*found, _FLOAT32]))

    @cached_property
    def kept(self) -> tuple[Scheme, ...]:
        """What "none" may be, as in the checkpoint (`passes.assign_schemes`)."""
        codes, types = (_counted(self._header, record) for record in (KEEP_CODES, KEEP_TYPES))
        dense = tuple(scheme for scheme in (*_HALVES, _FLOAT32) if not types or scheme.dtype in types)
        return (*(scheme for name, scheme in SCHEMES.items() if name in codes), *dense)


def name_of(fitting: Sequence[Scheme]) -> str:
    """Return the name of the first of some schemes, or that of all of them with its form."""
    first = fitting[0]
    for name, schemes in _SHARED.items():
        if first in schemes and sum(scheme in schemes for scheme in set(fitting)) > 1:
            return name
    return first.name


_SHARED: dict[str, frozenset[Scheme]] = {
    HALF: frozenset(_HALVES),
    BYTES: frozenset(
        scheme
        for scheme in SCHEMES.values()
        if isinstance(scheme, Int8Channel) or (isinstance(scheme, Float8) and scheme.scaling != "block")
    ),
}
"""Schemes whose panels have one form, by what they are called together."""


def _scheme(name: str) -> Scheme:
    return SCHEMES.get(ALIASES.get(name, name), Dense())


def _known(name: str) -> Scheme | None:
    return _scheme(name) if ALIASES.get(name, name) in SCHEMES else None


def _counted(header: Header, name: str) -> frozenset[str]:
    """What a record of that name counts."""
    records = [record.options for record in header.provenance.passes if record.name == name]
    try:
        return frozenset(kind for options in records for kind in msgspec.json.decode(options, type=dict[str, int]))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return frozenset()


class _AnyOverride(msgspec.Struct):
    match: str
    scheme: str


class _AnyQuantize(msgspec.Struct):
    scheme: str = "none"
    embeddings: str = "auto"
    overrides: tuple[_AnyOverride, ...] = ()


class _AnyRecipe(msgspec.Struct):
    """What names schemes in a recipe. That of a later pyc has keys and values that this one does not know."""

    quantize: _AnyQuantize = msgspec.field(default_factory=_AnyQuantize)


def _quantize(header: Header) -> Quantize | None:
    """That of the recipe, of which what names no scheme is left out; None where it is none."""
    try:
        said = msgspec.json.decode(header.provenance.recipe, type=_AnyRecipe).quantize
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    overrides = tuple(Override(match=one.match, scheme=one.scheme) for one in said.overrides)
    return Quantize(scheme=said.scheme, embeddings=said.embeddings, overrides=overrides)
