"""Choose how every weight is stored, rounding to the nearest value of its scheme.

Matrices of linear layers and the token embedding take the first override that matches their name, else the
recipe's scheme. Everything else (norm gains, biases, position tables) is stored as f32 or as it came.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from pyc.compiler.ir import Module
from pyc.compiler.schemes import Dense, Int4Group, Scheme
from pyc.compiler.weights import Expression, Stored
from pyc.runtime.errors import QuantizeError, RecipeError

_LINEAR = ("linear", "linear_quantized")


@dataclass(frozen=True, slots=True)
class SchemeOverride:
    """`match` is a weight's or module's exact name, or "re:" and a regular expression for its whole name."""

    match: str
    scheme: Scheme

    def fits(self, name: str) -> bool:
        """Say whether the override applies to the weight `name`."""
        module = name.removesuffix(".weight")
        if not self.match.startswith("re:"):
            return self.match in (name, module)
        pattern = self.match.removeprefix("re:")
        return any(re.fullmatch(pattern, text) is not None for text in (name, module))


@dataclass(frozen=True, slots=True)
class QuantizeRoundToNearest:
    """Wraps every weight in `Stored` with its scheme; the first override that matches wins."""

    scheme: Scheme
    overrides: tuple[SchemeOverride, ...] = ()
    name: ClassVar[str] = "quantize_round_to_nearest"
    version: ClassVar[int] = 1
    requires: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ("stored",)

    def options(self) -> dict[str, str]:
        """The scheme and every override."""
        overrides = {f"override {o.match}": o.scheme.name for o in self.overrides}
        return {"scheme": self.scheme.name, **overrides}

    def run(self, module: Module) -> Module:
        """Return the module with Stored weights; QuantizeError when a group size does not divide."""
        matrices = quantizable(module)
        unused = [o.match for o in self.overrides if not any(o.fits(name) for name in matrices)]
        if unused:
            raise RecipeError(
                f"quantize.overrides: {unused[0]!r} matches no weight; names look like {next(iter(matrices), '')!r}"
            )
        weights = {name: self._stored(name, base, name in matrices) for name, base in module.weights.items()}
        return module.with_graph(module.graph, weights)

    def _stored(self, name: str, base: Expression, is_matrix: bool) -> Stored:
        if not is_matrix:
            return Stored(base, Dense("f32"))
        scheme = next((o.scheme for o in self.overrides if o.fits(name)), self.scheme)
        if isinstance(scheme, Int4Group) and base.shape[1] % scheme.group_size:
            width = base.shape[1]
            fits = [size for size in (32, 64, 128) if width % size == 0]
            remedy = f"choose a group of {' or '.join(map(str, fits))}" if fits else "override it with int8 or none"
            raise QuantizeError(
                f"{self.name}: {name}: in_features={width} is not divisible by group_size={scheme.group_size}; {remedy}"
            )
        return Stored(base, scheme)


def quantizable(module: Module) -> frozenset[str]:
    """Return the names of the matrices that schemes apply to: linear weights and the token embedding."""
    names = {
        operation.weights[0]
        for function in module.graph.functions
        for operation in function.operations
        if operation.kind in _LINEAR or (operation.kind == "embedding" and operation.operands == ("token_ids",))
    }
    return frozenset(names)
