"""Lower the common module for every backend of a recipe, and say which weights their programs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyc.backends.protocol import Backend
from pyc.backends.registry import backend_for
from pyc.compiler.files.cache import Cache
from pyc.compiler.ir import Module
from pyc.compiler.manager import Observer, run_passes
from pyc.compiler.operators import OPERATORS
from pyc.compiler.recipe.types import Recipe
from pyc.compiler.rewrite import map_functions, rename_weights
from pyc.compiler.storage import StoredTensor
from pyc.compiler.weights import Expression
from pyc.passes.pipeline import HOLDS
from pyc.runtime.artifact.format import PassRecord


@dataclass(frozen=True, slots=True)
class Part:
    """The module of one backend."""

    backend: Backend
    module: Module


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of the artifact: what it is made of, what it is stored as, and who computes its bytes."""

    expression: Expression
    tensor: StoredTensor
    backend: Backend


@dataclass(frozen=True, slots=True)
class Lowered:
    """What is emitted: the module that all targets have in common, and what each backend made of it."""

    common: Module
    parts: tuple[Part, ...]

    def part(self, backend: str) -> Part:
        """Return that of the backend called so."""
        return next(part for part in self.parts if part.backend.name == backend)

    def weights(self) -> dict[str, Weight]:
        """Return every weight that a program reads, by name, in the order of first use."""
        found: dict[str, Weight] = {}
        for part in self.parts:
            for name in part.module.graph.weight_names():
                if name not in found:
                    expression = part.module.weights[name]
                    found[name] = Weight(expression, part.backend.stored(expression), part.backend)
        return found

    def passes(self) -> tuple[PassRecord, ...]:
        """Return the log of what ran: the common passes, then those of each backend."""
        own = (record for part in self.parts for record in part.module.passes[len(self.common.passes) :])
        return (*self.common.passes, *own)


def backends_of(recipe: Recipe, cache: Cache) -> dict[str, Backend]:
    """Return the backends of a recipe's targets by name, in its order; raises LowerError."""
    return {name: backend_for(name, cache) for name in dict.fromkeys(target.backend for target in recipe.targets)}


def lower(
    module: Module, backends: Mapping[str, Backend], observe: Observer = lambda name, module: None
) -> Lowered:
    """Return what the passes of each backend make of a module of logical operators.

    A weight that two backends store alike has one name. Where one stores it as none before it does, that is called
    `name@backend`. `observe` is told each pass, as backend-pass, and its module.
    """
    stored: dict[str, list[tuple[Expression, str]]] = {}
    parts: list[Part] = []
    for backend in backends.values():
        own = run_passes(
            module,
            backend.passes(),
            operators={**OPERATORS, **backend.operators},
            holds=HOLDS,
            observe=lambda name, after, of=backend.name: observe(f"{of}-{name}", after),  # type: ignore[misc]
        )
        names = {
            name: _name(name, expression, backend.name, stored.setdefault(name, []))
            for name, expression in own.weights.items()
        }
        parts.append(Part(backend, _renamed(own, {name: given for name, given in names.items() if name != given})))
    return Lowered(module, tuple(parts))


def _name(name: str, expression: Expression, backend: str, stored: list[tuple[Expression, str]]) -> str:
    """Return what a weight is called. `stored` has what backends before this one call `name`, and gets what is new."""
    found = next((given for known, given in stored if known == expression), None)
    if found is None:
        found = f"{name}@{backend}" if stored else name
        stored.append((expression, found))
    return found


def _renamed(module: Module, renames: Mapping[str, str]) -> Module:
    if not renames:
        return module
    graph = map_functions(
        module.graph,
        lambda function: replace(
            function, operations=tuple(rename_weights(operation, renames) for operation in function.operations)
        ),
    )
    return module.with_graph(graph, {renames.get(name, name): weight for name, weight in module.weights.items()})
