"""Weight expressions: what each stored tensor is made of, without its values.

Passes rewrite expressions; only `compiler.evaluate` turns rows of one into numbers. Every node has a `shape`
([out, in] for matrices, [n] for vectors) and is frozen, so it can be sent to a worker and hashed for the cache.
The row is the unit of work: each node can produce rows [start, stop) without producing the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyc.compiler.schemes import Scheme

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of a safetensors file: `size_bytes` bytes at absolute `offset`, row-major, little-endian."""

    path: str
    tensor: str
    dtype: str
    shape: Shape
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Constant:
    """Small computed f32 values, such as rotary frequencies."""

    values: tuple[float, ...]

    @property
    def shape(self) -> Shape:
        """[n]."""
        return (len(self.values),)


@dataclass(frozen=True, slots=True)
class Transposed:
    """The transpose of a small matrix (adapter factors): evaluated whole."""

    base: Expression

    @property
    def shape(self) -> Shape:
        """[in, out] of the base."""
        return self.base.shape[::-1]


@dataclass(frozen=True, slots=True)
class LowRank:
    """base + scale * (b @ a), with a [rank, in] and b [out, rank] (LoRA, arXiv:2106.09685)."""

    base: Expression
    a: Expression
    b: Expression
    scale: float

    @property
    def shape(self) -> Shape:
        """[out, in] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """diag(vector) @ base, vector [out] (IA3 on keys and values, arXiv:2205.05638); also vectors elementwise."""

    base: Expression
    vector: Expression

    @property
    def shape(self) -> Shape:
        """[out, in] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class ScaledColumns:
    """base @ diag(vector), vector [in] (a norm's gain, IA3 on a feed-forward input)."""

    base: Expression
    vector: Expression

    @property
    def shape(self) -> Shape:
        """[out, in] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class Blended:
    """1 + weight * (base - 1) on a vector of factors: an IA3 adapter applied at part of its strength."""

    base: Expression
    weight: float

    @property
    def shape(self) -> Shape:
        """[n] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class Stacked:
    """The parts one under another: rows of the first, then of the next."""

    parts: tuple[Expression, ...]

    @property
    def shape(self) -> Shape:
        """[sum of out, in]."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])


@dataclass(frozen=True, slots=True)
class Stored:
    """base as it is stored: cast or quantized by `scheme` (see `compiler.schemes`)."""

    base: Expression
    scheme: Scheme

    @property
    def shape(self) -> Shape:
        """[out, in] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class Rounded:
    """Codes of `scheme` that were chosen before the build evaluates weights: calibration (`passes.calibrate`).

    `codes` u8 [out, in], `scale` and `zero` (None: there are none) as in `quantization.QuantizedRows`; they are read as
    they are.
    """

    codes: Source
    scale: Source
    zero: Source | None
    scheme: Scheme

    @property
    def shape(self) -> Shape:
        """[out, in] of the codes."""
        return self.codes.shape


@dataclass(frozen=True, slots=True)
class Packed:
    """base (Stored, Rounded, or Stacked of Stored) as the bytes that kernels read, in a layout of a backend's.

    `layout` is its name. Backends that call a layout alike store the same bytes, and share them in an artifact.
    """

    base: Expression
    layout: str

    @property
    def shape(self) -> Shape:
        """Shape of the base, [out, in], not of the bytes."""
        return self.base.shape


Expression = (
    Source
    | Constant
    | Transposed
    | LowRank
    | ScaledRows
    | ScaledColumns
    | Blended
    | Stacked
    | Stored
    | Rounded
    | Packed
)


def children(expression: Expression) -> tuple[Expression, ...]:
    """Return the direct operands of an expression, in order."""
    match expression:
        case Source() | Constant():
            return ()
        case Transposed(base) | Blended(base) | Stored(base) | Packed(base):
            return (base,)
        case LowRank(base, a, b):
            return (base, a, b)
        case ScaledRows(base, vector) | ScaledColumns(base, vector):
            return (base, vector)
        case Stacked(parts):
            return parts
        case Rounded(codes, scale, zero):
            return (codes, scale) if zero is None else (codes, scale, zero)


def sources(expression: Expression) -> tuple[Source, ...]:
    """Return every Source below an expression, in order, with repetitions."""
    if isinstance(expression, Source):
        return (expression,)
    return tuple(found for child in children(expression) for found in sources(child))
