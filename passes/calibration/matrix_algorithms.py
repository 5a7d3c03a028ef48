"""Which algorithm rounds each matrix: the one that an override names, or else the recipe's.

The recipe's is for matrices of products alone. A table that is looked up and multiplied with, too (a token embedding
that is the output head), takes `imatrix` where an override says so: scales by squared inputs change codes for both uses
alike, while codes that make up for each other's errors are for products. One that is only looked up has no inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyc.compiler.evaluate import is_rounded, stored_scheme
from pyc.compiler.ir import Module
from pyc.compiler.operators import OPERATORS
from pyc.compiler.recipe.types import Algorithm
from pyc.compiler.rewrite import weight_readers
from pyc.compiler.schemes import Quantized
from pyc.compiler.weights import Expression, Stacked, Stored
from pyc.passes.calibration.rounding import ROUNDINGS
from pyc.passes.calibration.scale_channels import Method, sites_for

OF_TABLES = ("rtn", "imatrix")
"""Algorithms of a table that is looked up and multiplied with."""


def is_quantized(expression: Expression) -> bool:
    """Whether an algorithm has something to choose: a matrix [N, K] of a scheme with codes, none of them chosen yet."""
    if len(expression.shape) != 2 or not isinstance(stored_scheme(expression), Quantized):
        return False
    return not is_rounded(expression)


def is_product(module: Module, name: str) -> bool:
    """Whether a weight is multiplied with, and not looked up."""
    return all(OPERATORS[reader.kind].role == "matmul" for reader in weight_readers(module.graph, name))


def algorithm_of(module: Module, name: str, default: Algorithm) -> Algorithm:
    """Return the algorithm of a matrix that `is_quantized`, of a recipe whose own is `default`."""
    weight = module.weights[name]
    stored = weight.parts[0] if isinstance(weight, Stacked) else weight
    named = stored.algorithm if isinstance(stored, Stored) else None
    return named or (default if is_product(module, name) else "rtn")


def calibrated(
    module: Module, default: Algorithm, imported: Collection[str] | None = None
) -> Mapping[str, Algorithm]:
    """Return the algorithms of the matrices of a module, whose passes are the common ones, that are calibrated.

    `imported` are those that a file has importance for, None without one: `imatrix` is for no other then.
    """
    found: dict[str, Algorithm] = {}
    for name, weight in module.weights.items():
        if is_quantized(weight):
            algorithm = algorithm_of(module, name, default)
            is_left_out = algorithm == "imatrix" and imported is not None and name not in imported
            if algorithm != "rtn" and not is_left_out:
                found[name] = algorithm
    return found


def scaled(chosen: Mapping[str, Algorithm]) -> tuple[Method | None, frozenset[str]]:
    """Return how channels are scaled, None: not at all, and the matrices that want it. A recipe has one way of it."""
    methods = {name: ROUNDINGS[algorithm].scaling for name, algorithm in chosen.items()}
    wanted = {method for method in methods.values() if method is not None}
    assert len(wanted) <= 1, wanted
    return next(iter(wanted), None), frozenset(name for name, method in methods.items() if method is not None)


def scaled_gains_bytes(module: Module, default: Algorithm) -> int:
    """Return the bytes of f32 gains that norms get which had none, those before matrices whose channels are scaled."""
    method, names = scaled(calibrated(module, default))
    if method is None:
        return 0
    function = next(f for f in module.graph.functions if f.name in ("forward", "embed"))
    norms = [site.maker for site in sites_for(method, names, module, function) if site.maker.kind == "rms_norm"]
    return sum(4 * int(norm.result.type.shape[1]) for norm in norms if not any(norm.weights))


def rounded(chosen: Mapping[str, Algorithm]) -> Mapping[str, Algorithm]:
    """Return those whose codes are chosen; SmoothQuant rounds to nearest."""
    return {name: algorithm for name, algorithm in chosen.items() if ROUNDINGS[algorithm].prepare is not None}
