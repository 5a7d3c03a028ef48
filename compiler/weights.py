"""Weight expressions: what each stored tensor is made of, without its values.

Passes rewrite expressions; only `compiler.evaluate` turns rows of one into numbers. Every node has a `shape`
([out, in] for matrices, [n] for vectors) and is frozen, so it can be sent to a worker and hashed for the cache.
The row is the unit of work: each node can produce rows [start, stop) without producing the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pyc.compiler.codes import Codes
from pyc.compiler.schemes import Algorithm, Scheme
from pyc.compiler.sources import Shape as Shape
from pyc.compiler.sources import Source as Source


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
class Added:
    """base + scale * update, of one shape (LoHa, LoKr, merged adapters)."""

    base: Expression
    update: Expression
    scale: float

    @property
    def shape(self) -> Shape:
        """[out, in] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class Directed:
    """Rows of base brought to the lengths in magnitude [out] (DoRA, arXiv:2402.09353)."""

    base: Expression
    magnitude: Expression

    @property
    def shape(self) -> Shape:
        """[out, in] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class Replaced:
    """base with the rows `indices` taken from `rows` [n, in], one for each of them (PEFT's trainable tokens)."""

    base: Expression
    rows: Source
    indices: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        """[out, in] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class MatMul:
    """first @ second, [n, k] and [k, m]."""

    first: Expression
    second: Expression

    @property
    def shape(self) -> Shape:
        """[n, m]."""
        return (self.first.shape[0], self.second.shape[1])


@dataclass(frozen=True, slots=True)
class Hadamard:
    """first * second, element by element (LoHa, arXiv:2108.06098)."""

    first: Expression
    second: Expression

    @property
    def shape(self) -> Shape:
        """Shape of both."""
        return self.first.shape


@dataclass(frozen=True, slots=True)
class Kronecker:
    """Kronecker product of first [a, b] and second [c, d] (LoKr, arXiv:2212.10650)."""

    first: Expression
    second: Expression

    @property
    def shape(self) -> Shape:
        """[a c, b d]."""
        (a, b), (c, d) = self.first.shape, self.second.shape
        return (a * c, b * d)


@dataclass(frozen=True, slots=True)
class Leading:
    """The first `rows` rows and `columns` columns of base (VeRA's shared matrices, arXiv:2310.11454)."""

    base: Expression
    rows: int
    columns: int

    @property
    def shape(self) -> Shape:
        """[rows, columns]."""
        return (self.rows, self.columns)


@dataclass(frozen=True, slots=True)
class Rotations:
    """Blocks [count, size, size] (I - S) (I + S)^-1 of skew-symmetric S: the Cayley transform.

    `generators` are rows of S's upper triangle [n, size (size - 1) / 2] (OFT), or matrices [n, size, size] of which S
    is the skew half (BOFT); one row stands for all blocks. `terms` is the length of the Neumann series that takes the
    inverse's place; 0: the inverse. A positive `limit`, over sqrt(n), is the norm that S of each block is held to.
    """

    generators: Expression
    count: int
    size: int
    terms: int
    limit: float

    @property
    def shape(self) -> Shape:
        """[count, size, size]."""
        return (self.count, self.size, self.size)


@dataclass(frozen=True, slots=True)
class Rotated:
    """base @ M^T, M the block diagonal of rotations (OFT, arXiv:2306.07280).

    Where `groups` is positive, columns are permuted before, and back behind: BOFT's butterfly of so many groups
    (arXiv:2311.06243).
    """

    base: Expression
    rotations: Rotations
    groups: int

    @property
    def shape(self) -> Shape:
        """[out, in] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class Mixed:
    """Tensors of one shape as one, element by element: the weighted sum of what pruning and a vote on signs leave.

    Pruning keeps `density` of each part: the largest magnitudes, or a draw by its entry of `seeds`, whose survivors are
    divided by `density` (DARE, arXiv:2311.03099). Under a `vote` (TIES, arXiv:2306.01708), elements of the minority's
    sign drop out and the rest is averaged; the sign is that of the parts' sum ("total") or of most ("frequency").
    """

    parts: tuple[Expression, ...]
    weights: tuple[float, ...]
    density: float = 1.0
    seeds: tuple[int, ...] = ()
    vote: Literal["", "total", "frequency"] = ""

    @property
    def shape(self) -> Shape:
        """Shape of every part."""
        return self.parts[0].shape


@dataclass(frozen=True, slots=True)
class Truncated:
    """The nearest matrix of rank `rank` to base: its largest singular values."""

    base: Expression
    rank: int

    @property
    def shape(self) -> Shape:
        """[out, in] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class Between:
    """The point at `position` (0: first, 1: second) of the arc from `first` to `second`, two products (SLERP).

    Angles are those of the whole matrices; where they are nearly parallel, or one is zero, the arc is a line.
    """

    first: MatMul
    second: MatMul
    position: float

    @property
    def shape(self) -> Shape:
        """Shape of both."""
        return self.first.shape


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
    """base as it is stored: cast or quantized by `scheme` (see `compiler.schemes`).

    `algorithm` is how calibration is to choose codes where the recipe names one for this weight; values are those of
    rounding to nearest all the same, so that it is no part of the digest.
    """

    base: Expression
    scheme: Scheme
    algorithm: Algorithm | None = field(default=None, metadata={"no value": True})

    @property
    def shape(self) -> Shape:
        """[out, in] of the base."""
        return self.base.shape


@dataclass(frozen=True, slots=True)
class Rounded:
    """Codes of `scheme` that were chosen before the build evaluates weights: calibration (`passes.calibrate`).

    `codes` u8 [out, in], `scale`, `zero` and `outer` (None: there are none) as in `quantization.QuantizedRows`; they
    are read as they are.
    """

    codes: Source
    scale: Source
    zero: Source | None
    scheme: Scheme
    outer: Source | None = None

    @property
    def parts(self) -> tuple[Source, ...]:
        """Every tensor of them."""
        return tuple(part for part in (self.codes, self.scale, self.zero, self.outer) if part is not None)

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
    | Codes
    | Constant
    | Transposed
    | LowRank
    | Added
    | Directed
    | Replaced
    | MatMul
    | Hadamard
    | Kronecker
    | Leading
    | Rotations
    | Rotated
    | Mixed
    | Truncated
    | Between
    | ScaledRows
    | ScaledColumns
    | Blended
    | Stacked
    | Stored
    | Rounded
    | Packed
)
