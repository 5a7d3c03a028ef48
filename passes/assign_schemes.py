"""Choose how every weight is stored, rounding to the nearest value of its scheme.

Matrices of linear layers and the token embedding take the first override that matches their name, else the
recipe's scheme for their kind. Everything else (norm gains, biases, position tables) is stored as f32 or as it came.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from pyc.compiler.codes import Codes
from pyc.compiler.evaluate_codes import kept_scheme
from pyc.compiler.ir import Module, Operation
from pyc.compiler.operands import children
from pyc.compiler.operators import OPERATORS, Role
from pyc.compiler.quantization import require_divisible
from pyc.compiler.recipe.types import Algorithm, Quantize
from pyc.compiler.rewrite import weight_readers
from pyc.compiler.schemes import (
    KEEP_CODES,
    KEEP_TYPES,
    Dense,
    Float8,
    Scheme,
    activations_beside,
    activations_beside_float8,
)
from pyc.compiler.weights import Expression, Source, Stored
from pyc.runtime.artifact.format import PassRecord
from pyc.runtime.errors import QuantizeError, RecipeError

MAX_MATCHES = 1_000_000
"""Regular expressions of overrides, times matrices."""


@dataclass(frozen=True, slots=True)
class AssignSchemes:
    """Wraps every weight in `Stored` with the scheme that the recipe's quantize section gives its name.

    `places` says of overrides, the first ones, where they were written, for messages.
    """

    quantize: Quantize
    places: tuple[str, ...] = ()
    name: ClassVar[str] = "assign_schemes"
    version: ClassVar[int] = 2
    requires: ClassVar[tuple[str, ...]] = ()
    provides: ClassVar[tuple[str, ...]] = ("stored",)

    def options(self) -> dict[str, str]:
        """The schemes, what activations become, and every override."""
        overrides = {
            f"override {o.match}": o.scheme + (f" by {o.algorithm}" if o.algorithm else "")
            for o in self.quantize.overrides
        }
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
        for index, override in enumerate(self.quantize.overrides):
            if not any(override.matches(name) for name in matrices):
                raise RecipeError(
                    f"{self._place(index)}.match: {override.match!r} matches no weight; "
                    f"names look like {min(matrices, default='')!r}{_as_expression(override.match, matrices)}"
                )
        embeddings = embeddings_of(module)
        weights: dict[str, Expression] = {}
        codes: Counter[str] = Counter()
        types: Counter[str] = Counter()
        for name, base in module.weights.items():
            scheme: Scheme = Dense("f32")
            if name in matrices:
                scheme = self.quantize.scheme_of(name, embedding=name in embeddings)
            if isinstance(scheme, Dense) and scheme.dtype is None and (kept := self._kept(base)) is not None:
                scheme = kept
                codes[kept.name] += 1
            elif isinstance(scheme, Dense) and scheme.dtype is None:
                scheme = replace(scheme, dtype=source_dtype(base))
                types[scheme.name] += 1
            algorithm = self._algorithm(module, name, base, scheme) if name in matrices else None
            weights[name] = Stored(base, self._checked(name, scheme, base), algorithm)
        made = module.with_graph(module.graph, weights)
        records = tuple(
            PassRecord(record, self.version, json.dumps(counts, sort_keys=True))
            for record, counts in ((KEEP_CODES, codes), (KEEP_TYPES, types))
            if counts
        )
        return replace(made, passes=(*made.passes, *records)) if records else made

    def _place(self, index: int) -> str:
        """Return what messages call an override: where it was written, and the key."""
        written = f"{self.places[index]}: " if index < len(self.places) else ""
        return f"{written}quantize.overrides[{index}]"

    def _algorithm(self, module: Module, name: str, base: Expression, scheme: Scheme) -> Algorithm | None:
        """Return the algorithm that an override names for a matrix. Raises RecipeError where it has nothing to do."""
        algorithm = self.quantize.algorithm_of(name)
        if algorithm in (None, "rtn"):
            return algorithm
        index = next(index for index, override in enumerate(self.quantize.overrides) if override.matches(name))
        got = f"{self._place(index)}: algorithm {algorithm} for {name}"
        if isinstance(scheme, Dense):
            raise RecipeError(f"{got}: {scheme.name} has no codes to choose; take its algorithm out")
        if (kept := kept_scheme(base) if isinstance(base, Codes) else None) is not None and kept.name == scheme.name:
            raise RecipeError(f"{got}: the checkpoint's own codes are kept; take its algorithm out")
        roles = {_role(reader) for reader in weight_readers(module.graph, name)}
        if "lookup" in roles and algorithm not in (("rtn", "imatrix") if "matmul" in roles else ("rtn",)):
            what = "looked up as well as multiplied with, expected rtn or imatrix" if "matmul" in roles else "looked up"
            raise RecipeError(
                f"{got}: it is {what}{'' if 'matmul' in roles else ', expected rtn'}; put an override for it with "
                "another algorithm in front"
            )
        return algorithm

    def _kept(self, base: Expression) -> Scheme | None:
        """Return the scheme of a checkpoint's own codes, which "none" keeps."""
        kept = kept_scheme(base) if isinstance(base, Codes) else None
        if isinstance(kept, Float8):
            return replace(kept, activations=activations_beside_float8(self.quantize.activations))
        return None if kept is None else replace(kept, activations=activations_beside(self.quantize.activations))

    def _checked(self, name: str, scheme: Scheme, base: Expression) -> Scheme:
        if len(base.shape) == 2:
            try:
                require_divisible(scheme, base.shape[1])
            except QuantizeError as error:
                raise QuantizeError(f"{self.name}: {name}: {error}") from error
        return scheme


def source_dtype(expression: Expression) -> str:
    """Return the dtype that keeps the sources' precision: theirs when all agree on f16 or bf16, else f32."""
    kinds = dtypes_of(expression)
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= {"f16", "bf16"} else "f32"


def dtypes_of(expression: Expression) -> frozenset[str]:
    """Return the types of what an expression is made of; codes count as what they stand for."""
    if isinstance(expression, Source | Codes):
        return frozenset((expression.dtype,))
    return frozenset().union(*map(dtypes_of, children(expression)))


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


def _as_expression(match: str, names: Iterable[str]) -> str:
    """What to write for a part of names, or a pattern of a shell: a regular expression."""
    part = match.strip("*.")
    if match.startswith("re:") or not part or not any(part in name for name in names):
        return ""
    return f"; of names that have it, write 're:.*{re.escape(part)}.*'"
