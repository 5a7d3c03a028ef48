"""What weight expressions are made of: their operands, and the tensors of files below them."""

from __future__ import annotations

from pyc.compiler.codes import Float4Codes, Float8Codes, IntegerCodes, TableCodes, TernaryCodes
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
    Rounded,
    ScaledColumns,
    ScaledRows,
    Source,
    Stacked,
    Stored,
    Transposed,
    Truncated,
)


def children(expression: Expression) -> tuple[Expression, ...]:
    """Return the direct operands of an expression, in order."""
    match expression:
        case Source() | Constant():
            return ()
        case IntegerCodes() | Float8Codes() | TableCodes() | Float4Codes() | TernaryCodes():
            return expression.sources
        case Transposed(base) | Blended(base) | Stored(base) | Packed(base) | Leading(base) | Truncated(base):
            return (base,)
        case Rotations(generators):
            return (generators,)
        case Replaced(base, rows):
            return (base, rows)
        case LowRank(base, a, b):
            return (base, a, b)
        case ScaledRows(base, vector) | ScaledColumns(base, vector):
            return (base, vector)
        case Added(base, other) | Directed(base, other) | Rotated(base, other):
            return (base, other)
        case MatMul(first, second) | Hadamard(first, second) | Kronecker(first, second) | Between(first, second):
            return (first, second)
        case Stacked(parts) | Mixed(parts):
            return parts
        case Rounded():
            return expression.parts


def sources(expression: Expression) -> tuple[Source, ...]:
    """Return every Source below an expression, in order, with repetitions."""
    if isinstance(expression, Source):
        return (expression,)
    return tuple(found for child in children(expression) for found in sources(child))
