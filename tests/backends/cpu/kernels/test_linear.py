"""The C kernels against float64 numpy, on every instruction set that this machine runs or emulates."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
from kernel_machine import KERNEL_ISAS, Machine, cache_directory, compile_kernels, machine_of
from long_runs import IS_LONG, sample
from mxfp8_reference import float8_rows, mxfp8
from numpy.typing import NDArray

from pyc.backends.cpu.constants import TILE_TOKENS
from pyc.backends.cpu.isa import ISAS
from pyc.backends.cpu.kernels.linear import KernelSpec, QuantizeSpec, RoundSpec
from pyc.backends.cpu.layouts import activation_layout, panel_layout, quantized_row_bytes
from pyc.backends.cpu.packing import pack_rows, unpack_rows
from pyc.backends.cpu.row_formats import RowFormat
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.compiler.fp8 import TYPES
from pyc.compiler.lookup import codebook_of
from pyc.compiler.quantization import QuantizedRows, store_rows
from pyc.compiler.schemes import (
    SCHEMES,
    Activations,
    Float8,
    Int4Group,
    Int8Channel,
    Int8Group,
    LookupGroup,
    Scheme,
    parse_scheme,
)

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]

UNIT = 2.0**-24
"""Unit roundoff of f32."""

INT4 = [name for name in SCHEMES if name.startswith("int4")]
LOOKUP = [name for name, scheme in SCHEMES.items() if isinstance(scheme, LookupGroup)]
TABLES = [name for name in LOOKUP if name == "lut4-g128" or not (name.startswith("int") or name.endswith("g128"))]
"""By f32, where other tables and groups of 128 are other constants in the same code; test_quantized has all of them."""
OWN_SCALES = ("mxfp4", "nvfp4", "ternary")
FP8 = [name for name in SCHEMES if name.startswith("fp8")]
UNPUBLISHED = {"int8-g64": 64, "int8-g128": 128}
"""Group sizes that the kernels take and no scheme of a recipe uses."""

TOKENS = 19
INTERLEAVED_LEAST = 96
"""Rows are in tiles from so many on, where scales are folded: PYC_INTERLEAVED_LEAST of pyc_interleaved_rows.h."""

SCALES: tuple[RowFormat, ...] = ("float_scale", "power_of_two", "interleaved")
ZERO = {"float_scale": 128, "power_of_two": 8, "interleaved": 8}
"""What a row's zero-point corrections are the negative multiple of."""


class Case(NamedTuple):
    """A matmul: N and K are no multiples of anything where the scheme allows it."""

    scheme: str
    activations: Activations
    outputs: int
    inputs: int
    bias: bool

    @property
    def spec(self) -> KernelSpec:
        group = UNPUBLISHED.get(self.scheme)
        scheme = parse_scheme(self.scheme, self.activations) if group is None else Int8Group(group, self.activations)
        return KernelSpec("linear", self.outputs, self.inputs, scheme, self.bias)

    def __str__(self) -> str:
        return "-".join(map(str, self))


KINDS: tuple[Activations, ...] = ("int8", "f32")
"""What quantized matmuls multiply with."""
FLOATS: tuple[Activations, ...] = ("f32", "bf16")
"""What those by floating point of 8 bits do."""

LINEAR = [
    *[Case(name, "f32", 45, 77, True) for name in ("f32", "f16", "bf16")],
    *[Case(name, "f32", 7, 1, False) for name in ("f32", "bf16")],
    *[Case("bf16", "bf16", *shape) for shape in ((45, 77, True), (45, 384, False), (18, 30, True), (7, 1, False))],
    *[Case("int8", kind, 45, 77, True) for kind in KINDS],
    *[Case("int8", kind, 3, 5, False) for kind in KINDS],
    *[Case("int8-g32", kind, 45, 77, True) for kind in KINDS],
    *[Case("int8-g32", kind, 3, 5, False) for kind in KINDS],
    *[Case("int8-g32", kind, 45, 384, kind == "int8") for kind in KINDS],
    Case("int8-g32", "int8", 3, 16416, False),  # a header too large to copy
    *[Case("int8-g64", kind, 45, 384, False) for kind in KINDS],
    *[Case("int8-g128", kind, 18, 254, False) for kind in KINDS],
    *[Case(name, "int8", 45, 384, False) for name in INT4 + LOOKUP],
    *[Case(name, "f32", 45, 384, True) for name in INT4 + TABLES],
    *[Case(name, "f32", 45, 77, True) for name in FP8],
    *[Case(name, "bf16", 45, 77, True) for name in ("fp8", "fp8-e5m2")],
    *[Case(name, kind, 5, 1, False) for name in ("fp8", "fp8-e5m2") for kind in FLOATS],
    *[Case("fp8-b128", kind, *shape) for shape in ((45, 384, False), (18, 254, True)) for kind in FLOATS],
    *[Case("fp8", "bf16", 18, inputs, False) for inputs in (30, 79)],
    Case("int4-g32", "int8", 5, 32, True),
    *[Case(name, "int8", 37, 1120, True) for name in ("lut5-g32", "lut4-g32", "lut3-g32", "lut2-g32")],
    Case("int4-g32", "int8", 37, 1120, True),
    Case("int4-g128", "int8", 37, 1280, False),
]
EXTREME = [
    *[Case(name, "int8", 18, 256, False) for name in ("int8", "int8-g32")],
    *[Case(name, "int8", 45, 384, False) for name in ("int4-g32-asym", "lut5-g32", "lut4-g32", "int2-g32", "nvfp4")],
]
"""Of those at 45 x 384 LINEAR has the kernels."""
EMBEDDING = [
    *[(name, 45, 77) for name in ("f32", "f16", "bf16", "int8", "int8-g32", *FP8)],
    ("fp8-b128", 45, 384),
    *[(name, 45, 384 if name in OWN_SCALES else 256) for name in INT4 + LOOKUP],
]
WIDTHS = sorted({case.inputs for case in LINEAR + EXTREME})
SPECS = (
    *[case.spec for case in LINEAR + EXTREME],
    *[KernelSpec("embedding", outputs, inputs, SCHEMES[name]) for name, outputs, inputs in EMBEDDING],
    *[QuantizeSpec(inputs, row_format) for inputs in WIDTHS for row_format in (*SCALES, "bf16")],
    *[RoundSpec(inputs, kind) for inputs in WIDTHS for kind in ("round_fp8", "round_mxfp8")],
)

SAMPLE = (
    *[Case(*case).spec for case in (("bf16", "f32", 45, 77, True), ("fp8", "bf16", 45, 77, True))],
    *[Case(*case).spec for case in (("int8", "f32", 3, 5, False), ("lut4-g32", "f32", 45, 384, True))],
    KernelSpec("embedding", 45, 77, SCHEMES["int8-g32"]),
    *[RoundSpec(77, "round_fp8"), QuantizeSpec(77, "bf16"), QuantizeSpec(77, "float_scale")],
)
"""Of what multiplies no integers."""


def multiplies_integers(spec: object) -> bool:
    return isinstance(spec, KernelSpec) and spec.row_format in SCALES


@dataclass(frozen=True)
class Runner:
    """Kernels of one instruction set. A process is started for each call where they are emulated: fewer of them."""

    machine: Machine
    symbols: frozenset[str]

    @property
    def token_counts(self) -> tuple[int, ...]:
        return (1, 7) if self.machine.emulated else (1, 2, 3, 4, 5, 6, 7, 8, 9)

    def in_pairs(self, rows: int) -> bool:
        """Whether so many quantized rows are bf16 for the tile unit (test_amx): other bits, and not row by row."""
        return self.machine.isa.has_amx and rows >= TILE_TOKENS

    def call(self, symbol: str, arrays: list[Array], part: int = 0, parts: int = 1) -> Array:
        """Return the last array as `part` of `parts` leaves it; there are as many tokens as it has rows."""
        if symbol not in self.symbols:
            pytest.skip("machine code of armv8, which `make test-long` runs, or which is in no sample")
        written = [array.copy() for array in arrays]
        self.machine.call(symbol, written, [len(written[-1]), part, parts])
        return written[-1]

    def quantize(
        self, x: Floats, scales: RowFormat
    ) -> tuple[Bytes, Floats, NDArray[np.int32], NDArray[np.int8]]:
        """Return the quantized rows of x [m, K], and their scales, zero-point corrections and values (of interleaved
        ones: as they are alone)."""
        rows, inputs = x.shape
        layout = activation_layout(inputs)
        room = quantized_row_bytes(inputs, scales) if self.in_pairs(rows) else layout.row_bytes
        quantized = self.call(QuantizeSpec(inputs, scales).symbol, [x, np.full((rows, room), 0xAA, np.uint8)])
        one_by_one = quantized
        if self.in_pairs(rows) or (scales == "interleaved" and rows >= INTERLEAVED_LEAST):
            few = (x[start : start + TILE_TOKENS - 1] for start in range(0, rows, TILE_TOKENS - 1))
            symbol = QuantizeSpec(inputs, "float_scale" if scales == "float_scale" else "power_of_two").symbol
            one_by_one = np.concatenate(
                [self.call(symbol, [part, np.full((len(part), layout.row_bytes), 0xAA, np.uint8)]) for part in few]
            )
        return (
            quantized,
            layout.scales.view(one_by_one).astype(np.float32),
            layout.corrections.view(one_by_one).astype(np.int32),
            layout.data.view(one_by_one).astype(np.int8),
        )

    def round(self, x: Floats) -> tuple[Bytes, Floats]:
        """Return the bf16 rows of x [m, K] and the numbers in them."""
        rows, inputs = x.shape
        out = np.full((rows, quantized_row_bytes(inputs, "bf16")), 0xAA, np.uint8)
        quantized = self.call(QuantizeSpec(inputs, "bf16").symbol, [x, out])
        if "avx512_bf16" not in self.machine.isa.features:
            return quantized, quantized[:, : 4 * inputs].copy().view(np.float32)
        pairs = quantized[:, : 2 * inputs].copy().view(np.uint16).astype(np.uint32)
        return quantized, (pairs << 16).view(np.float32)

    def quantized(self, spec: KernelSpec, x: Floats) -> tuple[Array, Doubles]:
        """Return what a matmul reads for x [m, K], and the numbers that it stands for."""
        if spec.row_format is None:
            return x, x.astype(np.float64)
        if spec.row_format == "bf16":
            quantized, values = self.round(x)
            return quantized, values.astype(np.float64)
        quantized, scale, _, data = self.quantize(x, spec.row_format)
        blocks = data.reshape(len(x), -1, 32) * scale.astype(np.float64)[:, :, None]
        return quantized, blocks.reshape(len(x), -1)[:, : spec.inputs]

    def matmul(self, spec: KernelSpec, x: Array, w: Bytes, bias: Floats, part: int = 0, parts: int = 1) -> Floats:
        """Return y [m, N]; what was not written is NaN."""
        y = np.full((x.shape[0], spec.outputs), np.nan, np.float32)
        given = replace(spec, amx=self.in_pairs(len(x)) and spec.row_format is not None)
        return self.call(given.symbol, [x, w, *([bias] if spec.has_bias else []), y], part, parts)


@pytest.fixture(scope="module", params=KERNEL_ISAS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    isa = ISAS[request.param]
    by_amx = (replace(spec, amx=True) for spec in SPECS if isinstance(spec, KernelSpec) and spec.row_format)
    specs = (*SPECS, *by_amx) if isa.has_amx else SPECS
    if isa.name in ("armv8-dotprod", "x86-64-v3"):
        others = [spec for spec in SPECS if not multiplies_integers(spec)]
        if isa.name == "armv8-dotprod":  # they are as of armv8, which a long run has
            others = [spec for spec in others if isinstance(spec, QuantizeSpec) or (spec in SAMPLE and not IS_LONG)]
        specs = (*sample(filter(multiplies_integers, SPECS)), *others)
    symbols = frozenset(spec.symbol for spec in specs)
    return Runner(machine_of(isa, specs, tmp_path_factory.mktemp(isa.name)), symbols)


def test_products_of_bytes_change_nothing_else() -> None:
    """So those of the second instruction set for aarch64 are enough."""
    toolchain = Toolchain(cache_directory())
    first, second = (compile_kernels(SAMPLE, ISAS[name], toolchain) for name in ("armv8", "armv8-dotprod"))
    assert first == second


def weights(scheme: Scheme, outputs: int, inputs: int) -> tuple[Bytes, Doubles]:
    """Random panels and the weights [N, K] that they stand for."""
    rng = np.random.default_rng([outputs, inputs])
    rows = rng.standard_normal((outputs, inputs)) * np.exp2(rng.integers(-3, 3, (outputs, 1)))
    layout = panel_layout(scheme, inputs)
    panels = pack_rows(store_rows(rows.astype(np.float32), scheme), layout)
    return panels, unpack_rows(panels, layout, outputs).astype(np.float64)


@pytest.mark.parametrize("case", LINEAR, ids=str)
def test_linear_agrees_with_float64(run: Runner, case: Case) -> None:
    spec = case.spec
    assert spec.scheme is not None
    rng = np.random.default_rng(5)
    x = rng.standard_normal((TOKENS, spec.inputs)).astype(np.float32)
    bias = rng.standard_normal(spec.outputs).astype(np.float32)
    panels, w = weights(spec.scheme, spec.outputs, spec.inputs)
    given, values = run.quantized(spec, x)
    y = run.matmul(spec, given, panels, bias)
    reference = values @ w.T + (bias if spec.has_bias else 0)
    # Recursive summation of n terms errs by at most n unit roundoffs of the sum of magnitudes (Higham, Accuracy
    # and Stability, 4.2); 8 more for scales, bias, and matmuls where there is no fused multiply-add. Integer
    # kernels sum exactly within a block: they have fewer terms.
    magnitudes = np.abs(values) @ np.abs(w.T) + np.abs(bias)
    bound = (spec.inputs + 8) * UNIT * magnitudes
    assert (np.abs(y - reference) <= bound).all()

    for count in run.token_counts:
        np.testing.assert_array_equal(run.matmul(spec, given[:count], panels, bias), y[:count])
        last = given[TOKENS - count :]
        np.testing.assert_array_equal(run.matmul(spec, last, panels, bias), y[TOKENS - count :])
    for panel in range(panels.shape[0]):
        rows = np.arange(spec.outputs) // 16 == panel
        piece = run.matmul(spec, given, panels, bias, panel, panels.shape[0])
        np.testing.assert_array_equal(piece[:, rows], y[:, rows])
        assert np.isnan(piece[:, ~rows]).all()


@pytest.mark.parametrize(
    "case",
    [
        Case("int4-g32", "int8", 45, 384, False),
        Case("int4-g32", "int8", 37, 1120, True),  # two segments of a folded panel
        Case("int4-g128", "int8", 37, 1280, False),
        Case("int4-g32-asym", "int8", 45, 384, False),
        Case("f16", "f32", 45, 77, True),
        Case("bf16", "bf16", 45, 77, True),
        Case("fp8", "f32", 45, 77, True),
        Case("fp8-e5m2", "bf16", 45, 77, True),
        Case("fp8-b128", "bf16", 45, 384, False),
    ],
    ids=str,
)
def test_parts_of_a_long_matmul_are_the_whole_once(run: Runner, case: Case) -> None:
    spec, m = case.spec, 270  # several chunks, and tokens that are left behind the last tile
    rng = np.random.default_rng(9)
    values = rng.standard_normal((m, spec.inputs)).astype(np.float32)
    x = run.quantized(spec, values)[0]
    bias = rng.standard_normal(spec.outputs).astype(np.float32)
    panels, _ = weights(spec.scheme, spec.outputs, spec.inputs)
    step = 90 if run.in_pairs(m) else 30  # other places in tiles
    few = [run.quantized(spec, values[start : start + step])[0] for start in range(0, m, step)]
    rows = [run.matmul(spec, quantized, panels, bias) for quantized in few]
    for parts in (5,) if run.machine.emulated else (1, 5, 64):
        found = [run.matmul(spec, x, panels, bias, part, parts) for part in range(parts)]
        np.testing.assert_array_equal(np.isfinite(found).sum(axis=0), np.ones((m, spec.outputs)))
        np.testing.assert_array_equal(np.nansum(found, axis=0), np.concatenate(rows))


@pytest.mark.parametrize("activations", FLOATS)
@pytest.mark.parametrize("name", ["fp8", "fp8-e5m2", "fp8-b128"])
def test_every_code_of_8_bit_floating_point_is_its_number(run: Runner, name: str, activations: Activations) -> None:
    """Each input alone, by rows that hold every code at every place of a word, among them the smallest numbers."""
    scheme = SCHEMES[name]
    assert isinstance(scheme, Float8)
    values = TYPES[scheme.format].values
    numbers = np.flatnonzero(np.isfinite(values)).astype(np.uint8)
    inputs = 384 if name == "fp8-b128" else 77
    codes = numbers[np.arange(45 * inputs).reshape(45, inputs) * 7 % len(numbers)]
    assert set(codes.flat) == set(numbers.tolist())
    groups = inputs // 128 if scheme.scaling == "block" else 1
    scale = np.exp2(np.arange(45 * groups) % 9).astype(np.float32).reshape(45, groups)
    exact = values[codes] * np.repeat(scale, inputs // groups, axis=1)
    panels = pack_rows(QuantizedRows(codes, scale, None), panel_layout(scheme, inputs))
    spec = Case(name, activations, 45, inputs, inputs == 77).spec
    for start in range(0, inputs, TILE_TOKENS - 1):
        x, _ = run.quantized(spec, np.eye(inputs, dtype=np.float32)[start : start + TILE_TOKENS - 1])
        y = run.matmul(spec, x, panels, np.zeros(45, np.float32))
        np.testing.assert_array_equal(y, exact.T[start : start + TILE_TOKENS - 1])
    table = KernelSpec("embedding", 45, inputs, scheme)
    ids = np.arange(45, dtype=np.int32)
    rows = run.call(table.symbol, [ids, panels, np.full((45, inputs), np.nan, np.float32)])
    np.testing.assert_array_equal(rows, exact)


@pytest.mark.parametrize("case", EXTREME, ids=str)
def test_extreme_codes_do_not_overflow(run: Runner, case: Case) -> None:
    spec = case.spec
    assert spec.scheme is not None
    rng = np.random.default_rng(6)
    layout = panel_layout(spec.scheme, spec.inputs)
    ends = (0, 15) if isinstance(spec.scheme, Int4Group) else (1, 255)
    if isinstance(spec.scheme, LookupGroup):
        entries = codebook_of(spec.scheme).entries
        ends = (entries.index(min(entries)), entries.index(max(entries)))
    codes = rng.choice(np.array(ends, np.uint8), (spec.outputs, spec.inputs))
    codes[0], codes[1] = ends
    x = rng.choice(np.array([-127, 127], np.float32), (6, spec.inputs))
    x[0], x[1] = -127, 127
    x[2], x[3] = np.where(codes[2] == ends[0], -127, 127), np.where(codes[2] == ends[0], 127, -127)
    if isinstance(spec.scheme, Int8Channel):
        stored = QuantizedRows(codes, np.ones((spec.outputs, 1), np.float32), None)
        signed = codes.astype(np.int64) - 128
    elif isinstance(spec.scheme, Int8Group):
        stored = QuantizedRows(codes, np.ones((spec.outputs, spec.inputs // 32), np.float16), None)
        signed = codes.astype(np.int64) - 128
    elif isinstance(spec.scheme, LookupGroup):
        codebook, groups = codebook_of(spec.scheme), spec.inputs // spec.scheme.group_size
        is_shifted = 1 << codebook.bits if codebook.shift else 0
        shifted = rng.choice(np.array([0, is_shifted], np.uint8), (spec.outputs, groups))
        codes = codes | np.repeat(shifted, spec.scheme.group_size, axis=1)
        factor = np.ones((spec.outputs, 1), np.float32) if spec.scheme.has_row_factors else None
        stored = QuantizedRows(codes, np.ones((spec.outputs, groups), np.float32), None, factor)
        signed = codebook.values[stored.codes].astype(np.int64)
    else:
        groups = spec.inputs // 32
        zero = rng.choice(np.array([0, 15], np.uint8), (spec.outputs, groups))
        stored = QuantizedRows(codes, np.ones((spec.outputs, groups), np.float16), zero)
        signed = codes.astype(np.int64) - np.repeat(zero.astype(np.int64), 32, axis=1)
    panels = pack_rows(stored, layout)
    assert spec.row_format is not None
    quantized, _, _, data = run.quantize(x, spec.row_format)
    np.testing.assert_array_equal(data, x)
    y = run.matmul(spec, quantized, panels, np.empty(0, np.float32))
    # All scales are 1 and every partial sum is an integer below 2^24, so f32 is exact.
    np.testing.assert_array_equal(y, x.astype(np.int64) @ signed.T)


@pytest.mark.parametrize("activations", KINDS)
@pytest.mark.parametrize("name", OWN_SCALES)
def test_every_code_and_scale_of_a_byte_is_its_number(run: Runner, name: str, activations: Activations) -> None:
    """Each input alone: every code at every place of a block, and every scale, among them the smallest of e4m3."""
    scheme, inputs = SCHEMES[name], 384
    assert isinstance(scheme, LookupGroup)
    group = scheme.group_size
    codes = (np.arange(45 * inputs).reshape(45, inputs) * 7 % (3 if name == "ternary" else 16)).astype(np.uint8)
    number = np.arange(45 * inputs // group).reshape(45, -1)
    tables = {
        "mxfp4": np.ldexp(np.float32(0.5), number % 180 - 90),
        "nvfp4": TYPES["e4m3"].values[number % 0x7F],
        "ternary": np.ones(number.shape, np.float32),
    }
    scale = tables[name].astype(np.float32)
    outer = None if name == "mxfp4" else np.exp2(np.arange(45) % 7 - 3).astype(np.float32)[:, None]
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = np.array([-1, 0, 1]) if name == "ternary" else 2 * np.concatenate([e2m1, -e2m1])
    exact = values[codes] * np.repeat(scale, group, axis=1) * (1 if outer is None else outer)
    panels = pack_rows(QuantizedRows(codes, scale, None, outer), panel_layout(scheme, inputs))
    np.testing.assert_array_equal(unpack_rows(panels, panel_layout(scheme, inputs), 45), exact)
    spec, bias = Case(name, activations, 45, inputs, activations == "f32").spec, np.zeros(45, np.float32)
    for start in range(0, inputs, 128):
        chosen = np.eye(inputs, dtype=np.float32)[start : start + 128 : 19] * np.float32(64)
        x, _ = run.quantized(spec, chosen)
        np.testing.assert_array_equal(run.matmul(spec, x, panels, bias), chosen @ exact.T)
    ids = np.arange(45, dtype=np.int32)
    table = KernelSpec("embedding", 45, inputs, scheme)
    rows = run.call(table.symbol, [ids, panels, np.full((45, inputs), np.nan, np.float32)])
    np.testing.assert_array_equal(rows, exact)


def quantize_reference(x: Floats, scales: RowFormat) -> tuple[Floats, NDArray[np.int64]]:
    """Scales [m, G] and codes [m, 32 G], in f32 arithmetic and the kernel's order of operations."""
    blocks = np.zeros((x.shape[0], -(-x.shape[1] // 32) * 32), np.float32)
    blocks[:, : x.shape[1]] = x
    grouped = blocks.reshape(x.shape[0], -1, 32)
    largest = np.abs(grouped).max(axis=2)
    if scales != "float_scale":
        _, exponent = np.frexp(largest / np.float32(127))
        power = np.ldexp(np.float32(1), exponent)
        power[np.ldexp(np.float32(0.5), exponent) == largest / np.float32(127)] /= 2
        codes = np.rint(grouped / power[:, :, None])
        codes[largest < 1e-28] = 0
        power[largest < 1e-28] = 1
        return power, codes.astype(np.int64).reshape(blocks.shape)
    largest[largest < 1e-35] = 0
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(grouped * inverse[:, :, None])
    return largest / np.float32(127), codes.astype(np.int64).reshape(blocks.shape)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("inputs", WIDTHS)
def test_quantize_rows_is_exact(run: Runner, inputs: int, scales: RowFormat) -> None:
    rng = np.random.default_rng(inputs)
    x = (rng.standard_normal((9, inputs)) * 10.0 ** rng.integers(-8, 8, (9, 1))).astype(np.float32)
    x[1] = 0
    x[2, 0] = 1e-36
    x[3] = 3e-36
    x[4, :] = np.round(x[4, :])  # integers, and a scale of exactly 1: ties
    x[4, 0] = 127
    x[4, 1:8] = (np.arange(7) + 0.5)[: max(0, min(7, inputs - 1))]
    x[7], x[8] = 3e-29, 9e29  # next to what binary scales take
    quantized, found, starts, data = run.quantize(x, scales)
    reference_scales, reference_codes = quantize_reference(x, scales)
    np.testing.assert_array_equal(found, reference_scales)
    np.testing.assert_array_equal(data, reference_codes)
    np.testing.assert_array_equal(starts, -ZERO[scales] * reference_codes.reshape(9, -1, 32).sum(axis=2))
    layout = activation_layout(inputs)
    padding = np.ones(layout.row_bytes, bool)
    for section in (layout.scales, layout.corrections, layout.data):
        padding[section.offset : section.end] = False
    assert not quantized[:, padding].any()


@pytest.mark.parametrize("inputs", WIDTHS)
def test_rounding_to_bf16_is_to_nearest_even(run: Runner, inputs: int) -> None:
    rng = np.random.default_rng(inputs)
    x = (rng.standard_normal((9, inputs)) * 10.0 ** rng.integers(-30, 30, (9, 1))).astype(np.float32)
    x[1] = 0
    x[2] = 1 + (2 * rng.integers(0, 64, inputs) + 1) * 2.0**-8  # ties
    x[3] = -x[2]
    x[4] = 3.4e38  # beyond the largest bf16, 3.39e38
    found = run.round(x)[1]
    fraction, exponent = np.frexp(x.astype(np.float64))
    reference = np.ldexp(np.rint(np.ldexp(fraction, 8)), exponent - 8)
    reference[4] = np.inf
    np.testing.assert_array_equal(found, reference)
    x[5], x[6] = np.nan, -np.inf
    found = run.round(x)[1]
    assert np.isnan(found[5]).all()
    assert (found[6] == -np.inf).all()


def numbers_to_round(inputs: int) -> np.ndarray:
    rng = np.random.default_rng(inputs)
    x = (rng.standard_normal((9, inputs)) * 10.0 ** rng.integers(-37, 37, (9, 1))).astype(np.float32)
    x[1], x[2] = 0, rng.choice([3e38, 448 * 2.0**119, 1e33, -0.0], inputs)
    x[3] = rng.integers(0, 1024, inputs) * 0.5  # ties, and numbers near 448
    x[4] = rng.integers(0, 40, inputs) * 2.0**-10  # subnormal numbers where the largest is 448
    x[4, 0] = 448
    x[5] = rng.integers(-99, 99, inputs) * 2.0**-149
    return x


@pytest.mark.parametrize("inputs", WIDTHS)
def test_rounding_rows_to_fp8_is_to_the_nearest_number(run: Runner, inputs: int) -> None:
    x, symbol = numbers_to_round(inputs), RoundSpec(inputs, "round_fp8").symbol
    np.testing.assert_array_equal(run.call(symbol, [x, np.full_like(x, 7)]), float8_rows(x))
    x[6, inputs - 1], x[7, 0] = np.nan, -np.inf
    found = run.call(symbol, [x, np.full_like(x, 7)])
    assert np.isnan(found[6:8]).all()
    assert not np.isnan(found[[0, 1, 2, 3, 4, 5, 8]]).any()


@pytest.mark.parametrize("inputs", WIDTHS)
def test_rounding_to_mxfp8_is_to_the_nearest_number(run: Runner, inputs: int) -> None:
    x, symbol = numbers_to_round(inputs), RoundSpec(inputs, "round_mxfp8").symbol
    np.testing.assert_array_equal(run.call(symbol, [x, np.full_like(x, 7)]), mxfp8(x))
    x[6, inputs - 1], x[7, 0] = np.nan, -np.inf
    found = run.call(symbol, [x, np.full_like(x, 7)])
    assert np.isnan(found[6, (inputs - 1) // 32 * 32 :]).all()
    assert np.isnan(found[7, :32]).all()
    np.testing.assert_array_equal(np.isnan(found).sum(axis=1)[:6], 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_fault_in_bf16_records_reaches_every_output_of_its_token(run: Runner, bad: float) -> None:
    spec = Case("bf16", "bf16", 45, 77, True).spec
    x = np.ones((11, 77), np.float32)
    x[7, 76] = bad
    panels, _ = weights(spec.scheme, 45, 77)
    y = run.matmul(spec, run.round(x)[0], panels, np.ones(45, np.float32))
    assert not np.isfinite(y[7]).any()
    assert np.isfinite(np.delete(y, 7, axis=0)).all()


def test_quantize_rows_keeps_to_its_rows(run: Runner) -> None:
    x = np.ones((5, 77), np.float32)
    layout = activation_layout(77)
    out = np.full((5, layout.row_bytes), 0xAA, np.uint8)
    quantized = run.call(QuantizeSpec(77, "float_scale").symbol, [x, out], 1, 3)
    assert (quantized[[0, 3, 4]] == 0xAA).all()
    np.testing.assert_array_equal(quantized[1], run.quantize(x, "float_scale")[0][0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_fault_in_the_activations_shows(run: Runner, bad: float) -> None:
    x = np.ones((2, 384), np.float32)
    x[1, 40] = bad
    _, scales, _, data = run.quantize(x, "float_scale")
    assert np.isnan(scales[1]).tolist() == [False, True, *[False] * 10]
    assert not data[1, 32:64].any()
    assert np.isfinite(scales[0]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1.1e30])
@pytest.mark.parametrize("name", INT4)
def test_a_fault_in_binary_records_reaches_every_output_of_its_token(run: Runner, name: str, bad: float) -> None:
    spec = Case(name, "int8", 45, 384, False).spec
    assert spec.row_format is not None
    panels, _ = weights(SCHEMES[name], 45, 384)
    for tokens in (11, INTERLEAVED_LEAST):
        x = np.ones((tokens, 384), np.float32)
        x[7, 300] = bad
        y = run.matmul(spec, run.quantize(x, spec.row_format)[0], panels, np.empty(0, np.float32))
        assert (~np.isfinite(y[7]) if run.in_pairs(tokens) else np.isnan(y[7])).all()
        assert np.isfinite(np.delete(y, 7, axis=0)).all()


def test_groups_of_zeros_stay_zero_whatever_the_activations(run: Runner) -> None:
    spec = Case("int4-g32", "int8", 45, 384, False).spec
    panels = pack_rows(store_rows(np.zeros((45, 384), np.float32), SCHEMES["int4-g32"]), panel_layout(spec.scheme, 384))
    for tokens in (1, INTERLEAVED_LEAST):
        largest = 1e19 if run.in_pairs(tokens) else 9e29
        x = np.geomspace(1e-27, largest, 12).repeat(32).astype(np.float32)[None].repeat(tokens, axis=0)
        y = run.matmul(spec, run.quantize(x, "interleaved")[0], panels, np.empty(0, np.float32))
        np.testing.assert_array_equal(y, np.zeros((tokens, 45), np.float32))


@pytest.mark.parametrize("inputs", WIDTHS)
def test_records_of_many_tokens_are_in_tiles_where_panels_are_folded(run: Runner, inputs: int) -> None:
    rng = np.random.default_rng(inputs)
    x = (rng.standard_normal((101, inputs)) * 10.0 ** rng.integers(-8, 8, (101, 1))).astype(np.float32)
    x[3, inputs // 2] = np.inf
    if run.in_pairs(len(x)):
        pytest.skip("so many quantized rows are bf16: test_amx")
    quantized, scales, starts, values = run.quantize(x, "interleaved")
    one_by_one = run.quantize(x, "power_of_two")[0]
    if "avx512_vnni" not in run.machine.isa.features:
        np.testing.assert_array_equal(quantized, one_by_one)
        return
    np.testing.assert_array_equal(quantized[96:], one_by_one[96:])
    blocks = -(-inputs // 32)
    tiles = quantized[:96].reshape(12, -1)[:, : blocks * 320].reshape(12, blocks, 320).transpose(0, 2, 1).copy()
    parts = [np.ascontiguousarray(p.transpose(0, 2, 1)) for p in np.split(tiles, (256, 288), axis=1)]
    np.testing.assert_array_equal(
        parts[0].view(np.int8).reshape(12, blocks, 8, 32).transpose(0, 2, 1, 3).reshape(96, -1), values[:96]
    )
    np.testing.assert_array_equal(parts[1].view(np.int32).transpose(0, 2, 1).reshape(96, -1), 16 * starts[:96])
    np.testing.assert_array_equal(parts[2].view(np.float32).transpose(0, 2, 1).reshape(96, -1), np.log2(scales[:96]))


@pytest.mark.parametrize("negative", [False, True])
def test_the_largest_folded_codes_do_not_overflow(run: Runner, negative: bool) -> None:
    spec = Case("int4-g32", "int8", 45, 384, False).spec
    rng = np.random.default_rng(8)
    codes = rng.choice(np.array([0, 15], np.uint8), (45, 384))
    scale = np.full((45, 12), -1.875 if negative else 1.875, np.float32)  # fifteen eighths: all bits of a fraction
    panels = pack_rows(QuantizedRows(codes, scale, None), panel_layout(spec.scheme, 384))
    x = rng.choice(np.array([-127, 127], np.float32), (INTERLEAVED_LEAST, 384))
    y = run.matmul(spec, run.quantize(x, "interleaved")[0], panels, np.empty(0, np.float32))
    # Every partial sum is a multiple of an eighth below 2^21: f32 is exact.
    np.testing.assert_array_equal(y, x.astype(np.float64) @ ((codes.astype(np.float64) - 8) * scale[0, 0]).T)


@pytest.mark.parametrize(("name", "outputs", "inputs"), EMBEDDING)
def test_embedding_gathers_rows(run: Runner, name: str, outputs: int, inputs: int) -> None:
    panels, w = weights(SCHEMES[name], outputs, inputs)
    ids = np.array([0, 44, 15, 16, 31, 7, 7, -1, outputs, 2**31 - 1, -(2**31)], np.int32)
    y = np.full((len(ids), inputs), np.nan, np.float32)
    symbol = KernelSpec("embedding", outputs, inputs, SCHEMES[name]).symbol
    found = run.call(symbol, [ids, panels, y])
    for part in range(3):
        piece = run.call(symbol, [ids, panels, y], part, 3)
        rows = slice(len(ids) * part // 3, len(ids) * (part + 1) // 3)
        np.testing.assert_array_equal(piece[rows], found[rows])
        assert np.isnan(np.delete(piece, np.r_[rows], axis=0)).all()
    np.testing.assert_array_equal(found[:7], w[ids[:7]])
    assert not found[7:].any()


@pytest.mark.parametrize(("name", "middle"), [("int4-g64", 8), ("int8-g64", 128)])
def test_subnormal_scales_count(run: Runner, name: str, middle: int) -> None:
    spec = Case(name, "int8", 45, 384, False).spec
    assert isinstance(spec.scheme, Int4Group | Int8Group)
    codes = np.full((45, 384), middle + 1, np.uint8)
    scale = np.full((45, 6), 2.0**-24 * 3, np.float16)
    scale[:, 3:] *= -1
    panels = pack_rows(QuantizedRows(codes, scale, None), panel_layout(spec.scheme, 384))
    x = np.zeros((1, 384), np.float32)
    x[:, :192] = 127
    assert spec.row_format is not None
    quantized = run.quantize(x, spec.row_format)[0]
    y = run.matmul(spec, quantized, panels, np.empty(0, np.float32))
    np.testing.assert_array_equal(y, np.float32(192 * 127 * 3 * 2.0**-24))
