"""A module as text: the graph as `compiler.text` prints it, then each weight's expression."""

from __future__ import annotations

from pyc.compiler.codes import Float8Codes, IntegerCodes, TableCodes
from pyc.compiler.ir import Module
from pyc.compiler.schemes import Dense, activations_of
from pyc.compiler.text import print_graph
from pyc.compiler.weights import (
    Added,
    Between,
    Blended,
    Constant,
    Directed,
    Expression,
    Hadamard,
    Kronecker,
    Leading,
    LowRank,
    MatMul,
    Mixed,
    Packed,
    Replaced,
    Rotated,
    Rotations,
    ScaledColumns,
    ScaledRows,
    Source,
    Stacked,
    Stored,
    Transposed,
    Truncated,
)


def module_text(module: Module) -> str:
    """Return graph and weights as text, without paths and offsets."""
    lines = [f"{name} = {expression_text(weight)}" for name, weight in module.weights.items()]
    return print_graph(module.graph) + "\n\nweights\n" + "".join(f"  {line}\n" for line in lines)


def expression_text(expression: Expression) -> str:
    """Return one expression on one line."""
    match expression:
        case Source(_, tensor, dtype):
            short = tensor.removeprefix("base_model.model.").replace("language_model.", "")
            return f"{short}:{dtype}"
        case IntegerCodes() | Float8Codes() | TableCodes():
            return "codes(" + ", ".join(map(expression_text, expression.sources)) + ")"
        case Constant(values):
            return f"constant[{len(values)}]"
        case Transposed(base):
            return f"transposed({expression_text(base)})"
        case LowRank(base, a, b, scale):
            return f"{expression_text(base)} + {scale:g} * {expression_text(b)} @ {expression_text(a)}"
        case Added(base, update, scale):
            return f"{expression_text(base)} + {scale:g} * {expression_text(update)}"
        case Directed(base, magnitude):
            return f"lengths({expression_text(base)}, {expression_text(magnitude)})"
        case Replaced(base, rows, indices):
            return f"{expression_text(base)} with {len(indices)} rows of {expression_text(rows)}"
        case MatMul(first, second):
            return f"{expression_text(first)} @ {expression_text(second)}"
        case Hadamard(first, second):
            return f"({expression_text(first)}) * ({expression_text(second)})"
        case Kronecker(first, second):
            return f"kron({expression_text(first)}, {expression_text(second)})"
        case Leading(base, rows, columns):
            return f"{expression_text(base)}[:{rows}, :{columns}]"
        case Rotations(generators, count, size):
            return f"cayley({expression_text(generators)}, {count} x {size})"
        case Rotated(base, rotations):
            return f"rotated({expression_text(base)}, {expression_text(rotations)})"
        case Mixed(parts, factors):
            each = zip(factors, parts, strict=True)
            return "mix(" + ", ".join(f"{factor:g} * {expression_text(part)}" for factor, part in each) + ")"
        case Truncated(base, rank):
            return f"rank{rank}({expression_text(base)})"
        case Between(first, second, position):
            return f"arc({expression_text(first)}, {expression_text(second)}, {position:g})"
        case ScaledRows(base, vector):
            return f"rows({expression_text(base)}, {expression_text(vector)})"
        case ScaledColumns(base, vector):
            return f"columns({expression_text(base)}, {expression_text(vector)})"
        case Blended(base, weight):
            return f"blended({expression_text(base)}, {weight:g})"
        case Stacked(parts):
            return "stack(" + ", ".join(expression_text(part) for part in parts) + ")"
        case Stored(base, scheme, algorithm):
            usual = isinstance(scheme, Dense) and activations_of(scheme) == "f32"
            activations = "" if usual else f", {scheme.activations}"
            chosen = f" by {algorithm}" if algorithm else ""
            return f"{scheme.name}({expression_text(base)}{activations}){chosen}"
        case Packed(base, layout):
            return f"{layout}({expression_text(base)})"
    raise AssertionError(expression)
