"""Kernels over rows, [rows, features] f32: norms, elementwise work, what moves rows, rotary angles, pooling.

All read each number once and write it once, 16 bytes at a time where rows allow it. Names of arguments, in each
factory's docstring, are those of arrays that a launch takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pyc.backends.cuda.kernels.kernel import Lowered
from pyc.backends.cuda.kernels.rounded_rows import BLOCKS_OF_ROWS, AnyRows, Float8Rows, row_constants, threads_of_row
from pyc.backends.cuda.kernels.wrapper import launch, threads_for

READ, WRITTEN, ROUNDED = "const float", "float", "unsigned char"
INTEGERS = "const int"
_ELEMENTWISE = "elementwise.cuh"
_THREADS = 256
FUNCTIONS = {"silu": "Silu", "gelu": "Gelu", "gelu_tanh": "GeluTanh", "relu": "Relu", "relu2": "Relu2"}
"""Types of templates/cuda/include/elementwise.cuh by activation."""


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A norm of rows, with `adds` of the sum of two: `kind` rms may do without gain, layer has gain and bias. The
    result is f32, or `rounded`."""

    kind: str
    rows: int
    features: int
    epsilon: float
    has_gain: bool
    adds: bool
    rounded: AnyRows | None = None


@dataclass(frozen=True, slots=True)
class AddSpec:
    rows: int
    features: int


@dataclass(frozen=True, slots=True)
class AddRowSpec:
    """Row `index` of a table [n, features] added to every row."""

    rows: int
    features: int
    index: int


@dataclass(frozen=True, slots=True)
class ConcatSpec:
    """Rows of `left` features, then `right` more."""

    rows: int
    left: int
    right: int


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """Features [start, stop) of rows of `features`."""

    rows: int
    features: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ActivationSpec:
    rows: int
    features: int
    function: str


@dataclass(frozen=True, slots=True)
class GatedSpec:
    """function(gate) * up."""

    rows: int
    features: int
    function: str


@dataclass(frozen=True, slots=True)
class GatedPairSpec:
    """function(first half) * second half, to rows of `features`, f32 or `rounded`."""

    rows: int
    features: int
    function: str
    rounded: AnyRows | None = None


@dataclass(frozen=True, slots=True)
class SelectRowSpec:
    """One of `rows` rows of `features` numbers, of f32 or i32."""

    rows: int
    features: int
    dtype: str


@dataclass(frozen=True, slots=True)
class RopeAnglesSpec:
    """Cosines, then sines, of `rotary` / 2 angles a position; the rest as in the operator rope_angles."""

    rows: int
    rotary: int
    scale: float
    base: float
    factor: float
    original_context: float
    dynamic: bool


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A vector for each of `sequences`: mode "cls" the first row, "mean" the mean."""

    rows: int
    sequences: int
    features: int
    mode: str
    normalize: bool


def lower_norm(spec: NormSpec) -> Lowered:
    """Norm "x" [rows, features], or "x" + "addend", which goes to "total"; "gain" and "bias" [features]; "result"."""
    vectors = spec.features // vector_width(spec.features)
    threads = threads_for(-(-vectors // 2) if vectors > 512 else vectors)
    arrays = {
        "x": READ,
        "addend": READ if spec.adds else None,
        "gain": READ if spec.has_gain else None,
        "bias": READ if spec.kind == "layer" else None,
        "result": ROUNDED if spec.rounded else WRITTEN,
        "total": WRITTEN if spec.adds else None,
    }
    name = f"{'add_' if spec.adds else ''}{spec.kind}_norm_{spec.rows}x{spec.features}{_tail(spec.rounded)}"
    shape = f"{spec.rows}, {spec.features}, {threads}"
    function = f"norm<{_boolean(spec.kind == 'layer')}, {shape}, {row_constants(spec.rounded)}>"
    step = launch(
        name, "norm.cuh", function, arrays, constants=(spec.epsilon,), grid=(spec.rows, 1, 1), threads=threads
    )
    return Lowered((step,))


def lower_add(spec: AddSpec) -> Lowered:
    """Add "x" and "addend" [rows, features]: "result"."""
    arrays = {"x": READ, "addend": READ, "result": WRITTEN}
    return _elementwise("add", "add<{count}, {threads}, {width}>", spec.rows, spec.features, spec.features, arrays)


def lower_add_row(spec: AddRowSpec) -> Lowered:
    """Add a row of "table" [n, features] to each row of "x" [rows, features]: "result"."""
    arrays = {"x": READ, "table": READ, "result": WRITTEN}
    function = f"add_row<{{count}}, {spec.features}, {spec.index}, {{threads}}, {{width}}>"
    return _elementwise(f"add_row{spec.index}", function, spec.rows, spec.features, spec.features, arrays)


def lower_concat(spec: ConcatSpec) -> Lowered:
    """Put "left" [rows, left] and "right" [rows, right] side by side: "result"."""
    arrays = {"left": READ, "right": READ, "result": WRITTEN}
    function = f"concat<{{count}}, {spec.left}, {spec.right}, {{threads}}, {{width}}>"
    features = spec.left + spec.right
    return _elementwise(f"concat{spec.left}", function, spec.rows, features, spec.left | spec.right, arrays)


def lower_slice(spec: SliceSpec) -> Lowered:
    """Copy features [start, stop) of "x" [rows, features]: "result"."""
    width = spec.stop - spec.start
    function = f"slice<{{count}}, {width}, {spec.features}, {spec.start}, {{threads}}, {{width}}>"
    arrays = {"x": READ, "result": WRITTEN}
    return _elementwise(f"slice{spec.start}", function, spec.rows, width, spec.features | spec.start | width, arrays)


def lower_activation(spec: ActivationSpec) -> Lowered:
    """Apply a function to "x" [rows, features]: "result"."""
    function = f"activation<pyc::{FUNCTIONS[spec.function]}, {{count}}, {{threads}}, {{width}}>"
    arrays = {"x": READ, "result": WRITTEN}
    return _elementwise(spec.function, function, spec.rows, spec.features, spec.features, arrays)


def lower_gated(spec: GatedSpec) -> Lowered:
    """Apply a function to "gate" and multiply by "up", [rows, features]: "result"."""
    arrays = {"gate": READ, "up": READ, "result": WRITTEN}
    function = f"gated<pyc::{FUNCTIONS[spec.function]}, {{count}}, {{threads}}, {{width}}>"
    return _elementwise(f"gated_{spec.function}", function, spec.rows, spec.features, spec.features, arrays)


def lower_gated_pair(spec: GatedPairSpec) -> Lowered:
    """Apply a function to the first half of "x" [rows, 2 * features] and multiply by the second: "result"."""
    if isinstance(spec.rounded, Float8Rows):
        return _gated_pair_float8(spec)
    of_rows = f"{spec.rows}, {spec.features}, {{threads}}, {{width}}, {row_constants(spec.rounded)}"
    function = f"gated_pair<pyc::{FUNCTIONS[spec.function]}, {of_rows}>"
    arrays = {"x": READ, "result": ROUNDED if spec.rounded else WRITTEN}
    name = f"gated_pair_{spec.function}{_tail(spec.rounded)}"
    return _elementwise(name, function, spec.rows, spec.features, spec.features, arrays)


def _gated_pair_float8(spec: GatedPairSpec) -> Lowered:
    threads = threads_of_row(spec.features)
    step = launch(
        f"gated_pair_{spec.function}_{spec.rows}x{spec.features}{_tail(spec.rounded)}",
        _ELEMENTWISE,
        f"gated_pair_float8<pyc::{FUNCTIONS[spec.function]}, {spec.rows}, {spec.features}, {threads}>",
        {"x": READ, "result": ROUNDED},
        grid=(spec.rows, 1, 1),
        threads=threads,
        blocks=BLOCKS_OF_ROWS,
    )
    return Lowered((step,))


def lower_select_row(spec: SelectRowSpec) -> Lowered:
    """Copy row "row" i32 [1] of "x" [rows, features], or the nearest there is: "result" [1, features]."""
    assert spec.dtype in ("f32", "i32"), f"rows of {spec.dtype}"
    arrays = {"x": READ, "row": INTEGERS, "result": WRITTEN}
    function = f"select_row<{spec.rows}, {spec.features}, {{threads}}, {{width}}>"
    return _elementwise(f"select_row_of_{spec.rows}", function, 1, spec.features, spec.features, arrays)


def lower_rope_angles(spec: RopeAnglesSpec) -> Lowered:
    """Turn "positions" i32 [rows] by "inverse_frequencies" [rotary / 2]: "result" [rows, rotary]."""
    half = spec.rotary // 2
    threads = threads_for(spec.rows * half, _THREADS)
    step = launch(
        f"rope_angles_{spec.rows}x{half}",
        _ELEMENTWISE,
        f"rope_angles<{spec.rows}, {half}, {_boolean(spec.dynamic)}, {threads}>",
        {"positions": INTEGERS, "inverse_frequencies": READ, "result": WRITTEN},
        constants=(spec.scale,),
        doubles=(spec.base, spec.factor, spec.original_context),
        grid=(-(-spec.rows * half // threads), 1, 1),
        threads=threads,
    )
    return Lowered((step,))


def lower_pool(spec: PoolSpec) -> Lowered:
    """Pool rows ["seq_start", "seq_end") i32 [sequences] of "x" [rows, features]: "result" [sequences, features]."""
    threads = threads_for(spec.features // vector_width(spec.features))
    step = launch(
        f"pool_{spec.mode}_{spec.sequences}x{spec.features}",
        "pool.cuh",
        f"pool<{_boolean(spec.mode == 'mean')}, {_boolean(spec.normalize)}, {spec.features}, {threads}>",
        {"x": READ, "seq_start": INTEGERS, "seq_end": INTEGERS, "result": WRITTEN},
        grid=(spec.sequences, 1, 1),
        threads=threads,
    )
    return Lowered((step,))


def vector_width(features: int) -> Literal[1, 4]:
    """Return how many f32 a thread reads at once of rows of so many, or of anything that divides as they do."""
    return 1 if features % 4 else 4


def _tail(rounded: AnyRows | None) -> str:
    return rounded.tail if rounded else ""


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _elementwise(
    name: str, function: str, rows: int, features: int, alignment: int, arrays: Mapping[str, str | None]
) -> Lowered:
    """Return the launch of a function of which each thread makes a vector of the result [rows, features].

    Everything is read and written at multiples of `alignment`'s lowest bit.
    """
    width, count = vector_width(alignment), rows * features
    threads = threads_for(-(-count // width), _THREADS)
    step = launch(
        f"{name}_{rows}x{features}",
        _ELEMENTWISE,
        function.format(count=count, threads=threads, width=width),
        arrays,
        grid=(-(-count // (width * threads)), 1, 1),
        threads=threads,
    )
    return Lowered((step,))
