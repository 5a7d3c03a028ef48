"""Choose how every weight is stored, rounding to the nearest value of its scheme.

Matrices of linear layers and the token embedding take the first override that matches their name, else the
recipe's scheme for their kind. Everything else (norm gains, biases, position tables) is stored as f32 or as it came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.compiler.ir import Module, Operation
from pyc.compiler.operators import OPERATORS, Role
from pyc.compiler.quantization import require_divisible
from pyc.compiler.recipe.types import Quantize
from pyc.compiler.schemes import Dense, Scheme
from pyc.compiler.weights import Expression, Stored, sources
from pyc.runtime.errors import QuantizeError, RecipeError

MAX_MATCHES = 1_000_000
"""Regular expressions of overrides, times matrices."""


@dataclass(frozen=True, slots=True)
class AssignSchemes:
    """Wraps every weight in `Stored` with the scheme that the recipe's quantize section gives its name."""

    quantize: Quantize
    name: ClassVar[str] = "assign_schemes"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ("stored",)

    def options(self) -> dict[str, str]:
        """The schemes, what activations become, and every override."""
        overrides = {f"override {o.match}": o.scheme for o in self.quantize.overrides}
        chosen = {"scheme": self.quantize.scheme, "embeddings": self.quantize.embeddings}
        return {**chosen, "activations": self.quantize.activations, **overrides}

    def run(self, module: Module) -> Module:
        """Return the module with Stored weights; QuantizeError when a group size does not divide."""
        matrices = quantizable(module)
        patterns = sum(override.match.startswith("re:") for override in self.quantize.overrides)
        if patterns * len(matrices) > MAX_MATCHES:
            raise RecipeError(
                f"quantize.overrides: {patterns} regular expressions for {len(matrices)} matrices are too many; "
                f"expected a product of at most {MAX_MATCHES}: name matrices, or join expressions with |"
            )
        for override in self.quantize.overrides:
            if not any(override.matches(name) for name in matrices):
                raise RecipeError(
                    f"quantize.overrides: {override.match!r} matches no weight; "
                    f"names look like {min(matrices, default='')!r}"
                )
        embeddings = embeddings_of(module)
        weights: dict[str, Expression] = {}
        for name, base in module.weights.items():
            scheme: Scheme = Dense("f32")
            if name in matrices:
                scheme = self.quantize.scheme_of(name, embedding=name in embeddings)
            if isinstance(scheme, Dense) and scheme.dtype is None:
                scheme = replace(scheme, dtype=source_dtype(base))
            weights[name] = Stored(base, self._checked(name, scheme, base))
        return module.with_graph(module.graph, weights)

    def _checked(self, name: str, scheme: Scheme, base: Expression) -> Scheme:
        if len(base.shape) == 2:
            try:
                require_divisible(scheme, base.shape[1])
            except QuantizeError as error:
                raise QuantizeError(f"{self.name}: {name}: {error}") from error
        return scheme


def source_dtype(expression: Expression) -> str:
    """Return the dtype that keeps the sources' precision: theirs when all agree on f16 or bf16, else f32."""
    kinds = {source.dtype for source in sources(expression)}
    return kinds.pop() if len(kinds) == 1 and kinds <= {"f16", "bf16"} else "f32"


def embeddings_of(module: Module) -> frozenset[str]:
    """Return the token embedding and the matrix of the logits."""
    names = {
        operation.weights[0]
        for function in module.graph.functions
        for operation in function.operations
        if _role(operation) == "lookup" or (_role(operation) == "matmul" and function.name == "logits")
    }
    return frozenset(names)


def quantizable(module: Module) -> frozenset[str]:
    """Return the names of the matrices that schemes apply to: linear weights and the token embedding."""
    names = {
        operation.weights[0]
        for function in module.graph.functions
        for operation in function.operations
        if _role(operation) == "matmul" or (_role(operation) == "lookup" and operation.operands == ("token_ids",))
    }
    return frozenset(names)


def _role(operation: Operation) -> Role:
    return OPERATORS[operation.kind].role
