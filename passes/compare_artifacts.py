"""What is different in a second artifact: what it was made of, what it holds, and how far its matrices have moved.

Records are compared by their digests, so equal tensors are not read. Of those that differ, and that both artifacts have
in the same shape, with A and B what their bytes stand for, by ROWS_AT_A_TIME rows in f64:

    distance = sqrt(sum (B - A)^2 / sum A^2)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from pyc.backends.stored_values import is_stored_as, stored_values
from pyc.backends.stored_weights import StoredWeight, stored_weights
from pyc.compiler.schemes import SCHEMES, Dense, Scheme
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import Blob, Chunk, Header, Provenance, Span, Tensor
from pyc.runtime.artifact.program_only import is_program_only
from pyc.runtime.artifact.reader import Artifact

ROWS_AT_A_TIME = 4096
MOST_DEPTH = 64

Advance = Callable[[int, int], None]
"""Is told how many bytes have been compared, of how many."""


@dataclass(frozen=True, slots=True)
class Change:
    """A thing by its name, as text before and after; None where it was not there, or is there no more."""

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor; `distance` is None where the two cannot be subtracted, as of other shapes, or of schemes unknown."""

    name: str
    before: str | None
    after: str | None
    bytes_before: int
    bytes_after: int
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The changes from one artifact to another, in groups; `equal_tensors` have the same bytes in both."""

    bytes_before: int
    bytes_after: int
    groups: Mapping[str, tuple[Change, ...]]
    tensors: tuple[TensorChange, ...]
    equal_tensors: int
    equal_bytes: int
    is_same: bool


def compare_artifacts(
    before: Artifact, after: Artifact, advance: Advance = lambda done, total: None, *, measures: bool = True
) -> Comparison:
    """Return what is different in `after`. Without `measures` no tensor is read. Raises ArtifactError for damaged
    bytes."""
    first, second = before.header, after.header
    has_weights = not (is_program_only(first) or is_program_only(second))
    groups = {
        "model": struct_changes(first.model, second.model),
        **provenance_changes(first.provenance, second.provenance),
        "generation": struct_changes(first.generation, second.generation),
        "programs": _changes(_programs(first), _programs(second)),
        "files": _changes(_files(first), _files(second)),
    }
    tensors, equal, equal_bytes = _tensors(before, after, advance if measures and has_weights else None)
    return Comparison(
        before.size_bytes,
        after.size_bytes,
        {name: changes for name, changes in groups.items() if changes},
        tensors,
        equal,
        equal_bytes,
        is_same=before.prelude.header_sha256 == after.prelude.header_sha256,
    )


def provenance_changes(before: Provenance, after: Provenance) -> dict[str, tuple[Change, ...]]:
    """Return what is different in what an artifact was made of: recipe, sources, tools and passes; empty: the same."""
    return {
        "recipe": _documents(_recipe(before), _recipe(after)),
        "sources": _changes(_sources(before), _sources(after)),
        "tools": _changes(
            {tool.name: tool.version for tool in before.tools}, {tool.name: tool.version for tool in after.tools}
        ),
        "passes": _changes(_passes(before), _passes(after)),
    }


def struct_changes(before: msgspec.Struct, after: msgspec.Struct) -> tuple[Change, ...]:
    """Return the fields that are different in a second record, by where they stand."""
    return _documents(msgspec.to_builtins(before), msgspec.to_builtins(after))


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Change, ...]:
    names = [*before, *(name for name in after if name not in before)]
    return tuple(
        Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    )


def _documents(before: object, after: object) -> tuple[Change, ...]:
    return _changes(dict(_leaves(before, "", MOST_DEPTH)), dict(_leaves(after, "", MOST_DEPTH)))


def _leaves(value: object, place: str, depth: int) -> Iterable[tuple[str, str]]:
    """Yield each value of a JSON document by where it stands, such as "quantize.overrides[0].scheme"."""
    if depth and isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{place}.{name}".lstrip("."), depth - 1)
    elif depth and isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{place}[{index}]", depth - 1)
    else:
        yield place, json.dumps(value, ensure_ascii=False)


def _recipe(provenance: Provenance) -> object:
    """The recipe; its text where it is no JSON."""
    try:
        return json.loads(provenance.recipe)
    except (ValueError, RecursionError):
        return provenance.recipe


def _sources(provenance: Provenance) -> dict[str, str]:
    return {each.name: f"{each.size_bytes:,} bytes, {each.blake3[:12]}" for each in provenance.sources}


def _passes(provenance: Provenance) -> dict[str, str]:
    found: dict[str, str] = {}
    for record in provenance.passes:
        name = record.name
        while name in found:
            name += "'"
        found[name] = f"version {record.version} {record.options}"
    return found


def _programs(header: Header) -> dict[str, str]:
    blobs = {blob.name: blob for blob in header.blobs}
    found = {}
    for program in header.programs:
        buckets = sorted({function.tokens for function in program.functions})
        code = _content(header, blobs[program.library]) if program.library in blobs else ""
        name = f"{program.backend} {program.isa} {program.arch}"
        found[name] = f"{len(program.functions)} functions for {', '.join(map(str, buckets))} tokens, code {code}"
    return found


def _files(header: Header) -> dict[str, str]:
    libraries = {program.library for program in header.programs}
    return {blob.name: _content(header, blob) for blob in header.blobs if blob.name not in libraries}


def _content(header: Header, blob: Blob) -> str:
    """A blob's size and a name for its bytes: of the digest of its chunk, or of those of its chunks."""
    digests = "".join(chunk.blake3 for chunk in _chunks(header, blob.span))
    name = blake3(digests.encode()).hexdigest()[:12] if len(digests) > 64 else digests[:12]
    return f"{blob.raw_bytes:,} bytes, {name}"


def _chunks(header: Header, span: Span) -> tuple[Chunk, ...]:
    return header.chunks[span.first_chunk : span.first_chunk + span.chunk_count]


def _tensors(
    before: Artifact, after: Artifact, advance: Advance | None
) -> tuple[tuple[TensorChange, ...], int, int]:
    first, second = ({tensor.name: tensor for tensor in each.header.tensors} for each in (before, after))
    known = [{weight.name: weight for weight in stored_weights(each.header)} for each in (before, after)]
    equal = equal_bytes = 0
    differing: list[str] = []
    for name in [*first, *(name for name in second if name not in first)]:
        if name in first and name in second and _is_equal(before.header, first[name], after.header, second[name]):
            equal += 1
            equal_bytes += _size(second[name])
        else:
            differing.append(name)
    total = sum(_size(first[name]) for name in differing if name in first and name in second)
    done = 0
    found = []
    for name in differing:
        one, two = first.get(name), second.get(name)
        distance = None
        if advance is not None and one is not None and two is not None:
            distance = _distance(before, after, name, known[0][name], known[1][name])
            done += _size(one)
            advance(done, total)
        found.append(
            TensorChange(
                name,
                None if one is None else _form(one, known[0][name]),
                None if two is None else _form(two, known[1][name]),
                0 if one is None else _size(one),
                0 if two is None else _size(two),
                distance,
            )
        )
    return tuple(found), equal, equal_bytes


def _is_equal(one: Header, a: Tensor, two: Header, b: Tensor) -> bool:
    """Whether two tensors have the same bytes: their chunks are cut alike, as the same writer cuts them.

    Where one artifact has no weights, the same type and shape.
    """
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if is_program_only(one) or is_program_only(two):
        return True
    return [chunk.blake3 for chunk in _chunks(one, a.span)] == [chunk.blake3 for chunk in _chunks(two, b.span)]


def _size(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize


def _form(tensor: Tensor, weight: StoredWeight) -> str:
    scheme = "" if weight.scheme == tensor.dtype else f" {weight.scheme}"
    return f"{tensor.dtype} {list(tensor.shape)}{scheme}"


def _distance(
    before: Artifact, after: Artifact, name: str, one: StoredWeight, two: StoredWeight
) -> float | None:
    """How far a tensor has moved; None where that cannot be said."""
    first, second = before.tensor(name), after.tensor(name)
    if first.ndim != 2 or second.ndim != 2:
        if first.shape != second.shape or first.dtype != second.dtype or first.dtype == np.uint8:
            return None
        return _root(*_squares(_numbers(first), _numbers(second)))
    schemes = _scheme(one), _scheme(two)
    columns = one.columns, two.columns
    if None in schemes or columns[0] != columns[1] or not columns[0]:
        return None
    rows = min(one.rows, two.rows)
    if one.rows != two.rows or not rows:
        return None
    pairs = list(zip((first, second), schemes, strict=True))
    if not all(scheme is not None and is_stored_as(array, scheme, rows, columns[0]) for array, scheme in pairs):
        return None
    moved = square = 0.0
    for start in range(0, rows, ROWS_AT_A_TIME):
        stop = min(start + ROWS_AT_A_TIME, rows)
        a, b = (
            stored_values(array, scheme, columns[0], start, stop) for array, scheme in pairs if scheme is not None
        )
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
