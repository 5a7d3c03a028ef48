"""The matrices that take one scheme together, the schemes that each group may take, and the bytes of each.

What `stack_linear` makes one product of (queries, keys and values; gate and up) is a group, since a stack has one
scheme. A matrix whose scheme the recipe names is a group of its own, with that scheme alone. Bytes are those of the
tensors that the CPU's backend would store, padding included, whatever the recipe's targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pyc.backends.registry import backend_for
from pyc.compiler.files.cache import Cache
from pyc.compiler.ir import Module
from pyc.compiler.quantization import require_divisible
from pyc.compiler.recipe.types import Quantize, Target
from pyc.compiler.rewrite import weight_readers
from pyc.compiler.schemes import parse_scheme
from pyc.compiler.stacked_names import names_in_stack
from pyc.passes.assign_schemes import embeddings_of, quantizable
from pyc.passes.lower import lower
from pyc.passes.mixed_precision.measure_schemes import Group
from pyc.runtime.errors import QuantizeError

CANDIDATES = (
    "int4-g32",
    "int4-g64",
    "int4-g128",
    "int4-g32-asym",
    "int4-g64-asym",
    "int4-g128-asym",
    "lut5-g32",
    "lut5-g128",
    "lut4-g32",
    "lut4-g128",
    "lut3-g32",
    "lut3-g128",
    "lut2-g32",
    "lut2-g128",
    "int8",
    "int8-g32",
    "bf16",
)
"""What is chosen from, names of SCHEMES. Another loses less in the bytes of fp8 (int8), of mxfp4 and nvfp4 (lut4) and
of ternary (lut2). The first that a group can take and that loses something is the one that it is measured under."""

_LOOKUP = frozenset(name for name in CANDIDATES if name.startswith("lut"))
UNKNOWN_TO: Mapping[str, frozenset[str]] = {
    "onnx": _LOOKUP,
    "tensorrt": _LOOKUP | {"int8-g32"},
    "cuda": frozenset(name for name in _LOOKUP if name.startswith("lut5")),
}
"""Candidates that a backend has no product for, or that it stores in 8 bits."""

FALLBACK = "int8"
"""What takes any matrix."""


@dataclass(frozen=True, slots=True)
class MatrixGroup:
    """Matrices with one scheme: `candidates` are its names, `weights` how many numbers there are."""

    names: Group
    candidates: tuple[str, ...]
    weights: int
    is_embedding: bool
    is_fixed: bool


def matrix_groups(module: Module, quantize: Quantize, backends: Sequence[str]) -> tuple[MatrixGroup, ...]:
    """Return the groups of a module, its adapters fused and nothing stored, in the order in which it reads them."""
    matrices, embeddings = quantizable(module), embeddings_of(module)
    together: dict[tuple[str, ...], list[str]] = {}
    for function in module.graph.functions:
        for operation in function.operations:
            name = next(iter(operation.weights), "")
            if name not in matrices or any(name in names for names in together.values()):
                continue
            is_alone = _is_fixed(quantize, name, embeddings) or operation.kind != "linear"
            is_alone = is_alone or len(weight_readers(module.graph, name)) > 1
            key = (name,) if is_alone else (function.name, operation.operands[0], str(bool(operation.weights[1])))
            together.setdefault(key, []).append(name)
    missing = frozenset[str]().union(*(UNKNOWN_TO.get(backend, frozenset()) for backend in backends))
    return tuple(
        _group(module, quantize, tuple(names), embeddings, [name for name in CANDIDATES if name not in missing])
        for names in together.values()
    )


def _is_fixed(quantize: Quantize, name: str, embeddings: frozenset[str]) -> bool:
    by_kind = name in embeddings and quantize.embeddings != "auto"
    return by_kind or any(override.matches(name) for override in quantize.overrides)


def _group(
    module: Module, quantize: Quantize, names: Group, embeddings: frozenset[str], candidates: Sequence[str]
) -> MatrixGroup:
    shapes = [module.weights[name].shape for name in names]
    is_embedding, is_fixed = names[0] in embeddings, _is_fixed(quantize, names[0], embeddings)
    possible = tuple(name for name in candidates if all(_divides(name, shape[1]) for shape in shapes))
    if is_fixed:
        possible = (quantize.scheme_of(names[0], embedding=is_embedding).name,)
    return MatrixGroup(names, possible, sum(rows * columns for rows, columns in shapes), is_embedding, is_fixed)


def _divides(scheme: str, columns: int) -> bool:
    try:
        require_divisible(parse_scheme(scheme), columns)
    except QuantizeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """Bytes of each group under each of its candidates, and those of all that is no matrix."""

    of: Mapping[Group, Mapping[str, int]]
    others: int


def group_sizes(
    module: Module, groups: Sequence[MatrixGroup], stored: Callable[[Mapping[str, str]], Module]
) -> GroupSizes:
    """Return the sizes of groups of `module`, its adapters fused and nothing stored. `stored` returns what the common
    pipeline makes of it when weights have the schemes given by name.

    Tensors belong to groups by name: an adapter may have put other sources into a matrix, or the same into two.
    """
    owners = {name: group.names for group in groups for name in group.names}
    fixed = {name for group in groups if group.is_fixed for name in group.names}
    read = sorted(_norms(module), key=lambda pair: pair[0] not in fixed)  # a gain is of the group that decides on it
    norms = {weight: owners[matrix] for matrix, weight in read if matrix in owners}
    sizes: dict[Group, dict[str, int]] = {group.names: {} for group in groups}
    gains: dict[Group, dict[str, int]] = {group.names: {} for group in groups}
    others = 0
    for candidate in dict.fromkeys(name for group in groups for name in group.candidates):
        taken = {group.names: candidate if candidate in group.candidates else group.candidates[0] for group in groups}
        matrices, vectors, others = dict.fromkeys(taken, 0), dict.fromkeys(taken, 0), 0
        for name, size_bytes in tensor_bytes(stored({n: s for names, s in taken.items() for n in names})):
            parts = names_in_stack(name)
            if parts[0] in owners:
                rows = [module.weights[part].shape[0] for part in parts]
                for part, share in zip(parts, _shares(size_bytes, rows), strict=True):
                    matrices[owners[part]] += share
            elif name in norms:
                vectors[norms[name]] += size_bytes
            else:
                others += size_bytes
        for names, scheme in taken.items():
            sizes[names][scheme], gains[names][scheme] = matrices[names], vectors[names]
    for names, found in gains.items():
        least = min(found.values())
        others += least
        for scheme, size_bytes in found.items():
            sizes[names][scheme] += size_bytes - least
    return GroupSizes(sizes, others)


def _shares(size_bytes: int, rows: Sequence[int]) -> list[int]:
    """Return what each matrix of a stack takes of its bytes: a stack may join a group with matrices that the recipe
    gives the same scheme to."""
    ends = [size_bytes * end // sum(rows) for end in accumulate(rows, initial=0)]
    return [stop - start for start, stop in pairwise(ends)]


def _norms(module: Module) -> list[tuple[str, str]]:
    """Return each matrix of a product and a weight of what makes its operand: a gain is stored unless it is folded."""
    found: list[tuple[str, str]] = []
    for function in module.graph.functions:
        made = function.definitions()
        for operation in function.operations:
            before = made.get(operation.operands[0]) if operation.kind == "linear" else None
            if before is not None and before.kind != "linear":
                found += [(operation.weights[0], weight) for weight in before.weights if weight]
    return found


def tensor_bytes(module: Module) -> list[tuple[str, int]]:
    """Return the name and the bytes of each tensor that the CPU's backend makes of a common module."""
    backend = Target().backend
    lowered = lower(module, {backend: backend_for(backend, Cache(None))})
    return [(name, weight.tensor.size_bytes) for name, weight in lowered.weights().items()]
