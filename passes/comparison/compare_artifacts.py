"""What is different in a second artifact: what it was made of, what it holds, and how far its matrices have moved.

Records are compared by their digests, so equal tensors are not read. Of those that differ `tensor_distance` says how
far they have moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from pyc.backends.stored_weights import StoredWeight, stored_weights
from pyc.passes.comparison.changes import Change, by_name, changes_of, order_changes
from pyc.passes.comparison.compare_programs import chunks_of, file_changes, program_changes
from pyc.passes.comparison.tensor_distance import tensor_distance
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import Header, Provenance, Tensor
from pyc.runtime.artifact.program_only import is_program_only
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.text.json_text import json_text, parse_json

MOST_DEPTH = 64

Advance = Callable[[int, int], None]
"""Is told how many bytes have been compared, of how many."""


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor; `distance` is None where nothing was measured, and `why_no_distance` says why the two cannot be
    subtracted, where that is why."""

    name: str
    before: str | None
    after: str | None
    bytes_before: int
    bytes_after: int
    distance: float | None = None
    why_no_distance: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The changes from one artifact to another, in groups; `equal_tensors` have the same bytes in both, or the same
    type and shape where one has no weights: `equal_bytes` is 0 then."""

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
        "programs": program_changes(first, second),
        "files": file_changes(first, second),
        "header": _header_changes(before, after),
    }
    tensors, equal, equal_bytes = _tensors(before, after, advance if measures and has_weights else None)
    digests = [each.prelude.header_sha256.hex() for each in (before, after)]
    is_same = digests[0] == digests[1]
    if not (is_same or tensors or any(groups.values())):  # how the same content is laid out
        groups["header"] = (Change("SHA-256 of the header", *digests),)
    return Comparison(
        before.size_bytes,
        after.size_bytes,
        {name: changes for name, changes in groups.items() if changes},
        tensors,
        equal,
        equal_bytes,
        is_same=is_same,
    )


def provenance_changes(before: Provenance, after: Provenance) -> dict[str, tuple[Change, ...]]:
    """Return what is different in what an artifact was made of: recipe, sources, tools and passes; empty: the same."""
    return {
        "recipe": _documents(_recipe(before), _recipe(after)),
        "sources": _named(
            *(
                [(each.name, f"{each.size_bytes:,} bytes, {each.blake3[:12]}") for each in made.sources]
                for made in (before, after)
            )
        ),
        "tools": _named(*([(tool.name, tool.version) for tool in made.tools] for made in (before, after))),
        "passes": _named(
            *(
                [(each.name, f"version {each.version} {each.options}") for each in made.passes]
                for made in (before, after)
            )
        ),
    }


def struct_changes(before: msgspec.Struct, after: msgspec.Struct) -> tuple[Change, ...]:
    """Return the fields that are different in a second record, by where they stand."""
    return _documents(msgspec.to_builtins(before), msgspec.to_builtins(after))


def _documents(before: object, after: object) -> tuple[Change, ...]:
    return changes_of(*(by_name(_leaves(each, "", MOST_DEPTH)) for each in (before, after)))


def _leaves(value: object, place: str, depth: int) -> Iterable[tuple[str, str]]:
    """Yield each value of a JSON document by where it stands, such as "quantize.overrides[0].scheme"."""
    if depth and isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{place}.{name}".lstrip("."), depth - 1)
    elif depth and isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{place}[{index}]", depth - 1)
    else:
        yield place, json_text(value, ensure_ascii=False)


def _recipe(provenance: Provenance) -> object:
    """The recipe; its text where it is no JSON."""
    try:
        return parse_json(provenance.recipe)
    except (ValueError, RecursionError):
        return provenance.recipe


def _named(before: Sequence[tuple[str, str]], after: Sequence[tuple[str, str]]) -> tuple[Change, ...]:
    first, second = by_name(before), by_name(after)
    return (*changes_of(first, second), *order_changes("order", list(first), list(second)))


def _header_changes(before: Artifact, after: Artifact) -> tuple[Change, ...]:
    """What a reader has to know."""
    facts = [
        {
            "version": f"{each.prelude.major}.{each.prelude.minor}",
            "requires": ", ".join(each.header.requires),
        }
        for each in (before, after)
    ]
    return changes_of(*facts)


def _tensors(
    before: Artifact, after: Artifact, advance: Advance | None
) -> tuple[tuple[TensorChange, ...], int, int]:
    first, second = ({tensor.name: tensor for tensor in each.header.tensors} for each in (before, after))
    known = [{weight.name: weight for weight in stored_weights(each.header)} for each in (before, after)]
    equal = equal_bytes = 0
    is_partial = is_program_only(before.header) or is_program_only(after.header)
    differing: list[str] = []
    for name in [*first, *(name for name in second if name not in first)]:
        if name in first and name in second and _is_equal(before.header, first[name], after.header, second[name]):
            equal += 1
            equal_bytes += 0 if is_partial else _size(second[name])
        else:
            differing.append(name)
    total = sum(_size(first[name]) for name in differing if name in first and name in second)
    done = 0
    found = []
    for name in differing:
        one, two = first.get(name), second.get(name)
        distance, why_not = None, None
        if advance is not None and one is not None and two is not None:
            measured = tensor_distance((before, after), (one, two), (known[0][name], known[1][name]))
            distance, why_not = (None, measured) if isinstance(measured, str) else (measured, None)
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
                why_not,
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
    return [chunk.blake3 for chunk in chunks_of(one, a.span)] == [chunk.blake3 for chunk in chunks_of(two, b.span)]


def _size(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize


def _form(tensor: Tensor, weight: StoredWeight) -> str:
    scheme = "" if weight.scheme == tensor.dtype else f" {weight.scheme}"
    return f"{tensor.dtype} {list(tensor.shape)}{scheme}"
