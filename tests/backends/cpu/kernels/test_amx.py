"""Kernels of the tile unit (AMX) against float64: on the CPU's tiles where it has them, else on emulated ones.

Emulated tiles need AVX-512 beside them, as the kernels use both. What is exact for one row is in test_kernels and
test_attention, which run on every instruction set.
"""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from kernel_machine import compile_kernels, emulated_kernels
from long_runs import IS_LONG, sample

from pyc.backends.cpu.isa import ISAS, Isa
from pyc.backends.cpu.kernels.attention import AttentionSpec, CacheSpec
from pyc.backends.cpu.kernels.linear import GatedSpec, KernelSpec, QuantizeSpec, SplitSpec
from pyc.backends.cpu.layouts import panel_layout, quantized_row_bytes
from pyc.backends.cpu.packing import pack_rows, unpack_rows
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.compiler.fp8 import TYPES
from pyc.compiler.quantization import QuantizedRows, store_rows
from pyc.compiler.schemes import Activations, Float8, parse_scheme
from pyc.runtime.artifact.format import KvCache
from pyc.runtime.executors.cpu.features import allow_tiles, cpu_features
from pyc.runtime.executors.cpu.kv_cache import head_bytes
from pyc.runtime.host.cache_folder import cache_directory

TILES = ISAS["amx-bf16"]
UNIT = 2.0**-24
CODES_POWER = 2.0**64
"""PYC_CODES_POWER of templates/cpu/include/pyc_amx_rows.h."""
OFTEN = [
    ("int4-g32", "int8", 45, 384, True),
    ("int4-g32", "int8", 37, 1120, True),  # three segments, the last of them short
    ("int4-g128-asym", "int8", 45, 384, True),
    ("lut5-g32", "int8", 37, 352, True),
    ("lut3-g128", "int8", 37, 1152, True),
    ("nvfp4", "int8", 45, 384, True),
    ("ternary", "int8", 18, 96, False),
    ("int8", "int8", 45, 77, True),
    ("int8-g32", "int8", 20, 160, True),
    ("bf16", "bf16", 45, 77, True),  # the last block is copied
    ("bf16", "bf16", 64, 96, False),  # the panel as it lies
    ("fp8", "bf16", 45, 77, True),
    ("fp8-b128", "bf16", 45, 384, True),
]
"""Each way that codes become bf16, short blocks and several segments."""
CASES = [
    *OFTEN,
    ("int4-g32", "int8", 5, 32, False),
    ("int4-g64", "int8", 33, 448, False),
    ("int4-g32-asym", "int8", 18, 96, False),
    ("lut4-g32", "int8", 45, 384, True),
    ("lut2-g32", "int8", 18, 96, False),
    ("mxfp4", "int8", 37, 1120, True),
    ("int8", "int8", 16, 352, False),
    ("fp8", "bf16", 33, 1120, False),
    ("fp8-e5m2", "bf16", 18, 96, False),
]
EXACT = {"int4-g32", "int4-g64", "int8", "bf16", "fp8", "fp8-e5m2", "mxfp4", "nvfp4", "ternary"}
"""Weights that are bf16 without rounding, but for what multiplies the sum."""


def by_amx(name: str, outputs: int, inputs: int, x: Activations | None = None, bias: bool = False) -> KernelSpec:
    return KernelSpec("linear", outputs, inputs, parse_scheme(name, x or "int8"), bias, amx=True)


SPECS = tuple(by_amx(name, n, k, x, bias) for name, x, n, k, bias in sample(CASES, *OFTEN))
LONG = by_amx("int4-g32", 4096, 64)
GATED = (
    GatedSpec(by_amx("int4-g32", 128, 96), "silu", "interleaved"),
    GatedSpec(by_amx("bf16", 192, 64, "bf16"), "gelu_tanh", "bf16"),
    GatedSpec(by_amx("int8", 64, 64), "silu", "float_scale"),
    GatedSpec(by_amx("fp8", 192, 64, "bf16"), "silu", "bf16"),
)
SPLIT = (
    *(by_amx("bf16", n, k, None, bias) for n, k, bias in ((45, 77, True), (64, 96, False), (37, 1120, True))),
    *(by_amx(name, n, k, "f32", True) for name in ("fp8", "fp8-e5m2") for n, k in ((45, 77), (37, 1120))),
)
"""Activations f32 as three numbers of bf16 each."""
CACHES = (
    CacheSpec(4, 2, 32, 20, 0, "f16", 0.2, rounded=True),
    CacheSpec(3, 1, 64, 20, 100, "f16", 0.125, rounded=True),
    CacheSpec(2, 1, 96, 20, 0, "int8", 0.1),
    CacheSpec(3, 1, 64, 20, 100, "fp8", 0.1),
)
MATMULS = (*SPECS, LONG, *(spec.matmul for spec in GATED))
SPLITTERS = tuple(SplitSpec(spec.inputs) for spec in SPLIT)
QUANTIZERS = tuple(QuantizeSpec(spec.inputs, spec.row_format) for spec in MATMULS if spec.row_format)
ATTENTION = tuple(AttentionSpec(cache, into, amx=True) for cache in CACHES for into in (None, "interleaved", "bf16"))
KERNELS = (*MATMULS, *GATED, *SPLIT, *QUANTIZERS, *SPLITTERS, *ATTENTION)


class Library:
    """The kernels on the CPU's tiles or on emulated ones; an array ends where it does, not at a page."""

    def __init__(self, path: Path, isa: Isa) -> None:
        self.isa = isa
        self._library = ctypes.CDLL(str(path))

    def call(self, symbol: str, arrays: list[np.ndarray], *integers: int, parts: int = 1) -> None:
        """`integers` are those before the part: m, and of attention the number of threads."""
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        for part in range(parts):
            assert getattr(self._library, symbol)(*pointers, *map(ctypes.c_int32, (*integers, part, parts))) == 0

    def quantized(self, spec: QuantizeSpec, x: np.ndarray) -> np.ndarray:
        room = aligned((len(x), quantized_row_bytes(spec.inputs, spec.row_format)), np.uint8)
        self.call(spec.symbol, [x, room], len(x), parts=3)
        return room


HAS_TILES = set(TILES.features) <= cpu_features() and allow_tiles()
CAN_EMULATE = set(ISAS["avx512-vnni"].features) <= cpu_features()


@pytest.fixture(
    scope="module",
    params=["emulated", "amx"] if IS_LONG else ["emulated"] if CAN_EMULATE and not HAS_TILES else ["amx"],
)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    toolchain = Toolchain(cache_directory())
    candidates = (ISAS["avx512-bf16"], ISAS["avx512-vnni"])
    best = next((isa for isa in candidates if set(isa.features) <= cpu_features()), None)
    if request.param == "emulated":
        if best is None:
            pytest.skip("this CPU lacks AVX-512 VNNI, which the kernels use beside tiles")
        isa, compiled = best, emulated_kernels(KERNELS, TILES, best, toolchain)
    else:
        isa, compiled = TILES, compile_kernels(KERNELS, TILES, toolchain)
        if not HAS_TILES:
            pytest.skip("compiled, not run: this CPU has no tiles")
    path = tmp_path_factory.mktemp(request.param) / "kernels.so"
    path.write_bytes(toolchain.link_shared(compiled, isa, path.name))
    return Library(path, isa)


def aligned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """An array at a multiple of 64 bytes that is not zero before it is written."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full(size + 64, 0x7F, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(dtype).reshape(shape)


def placed(values: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    array = aligned(values.shape, dtype)
    array[...] = values
    return array


def bf16(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def unpacked(quantized: np.ndarray, m: int, inputs: int, *, codes: bool) -> np.ndarray:
    """The numbers [m, K] in quantized rows as templates/cpu/include/pyc_amx_rows.h lays them out."""
    blocks = -(-inputs // 32)
    pairs = quantized.reshape(-1)[: m * blocks * 64].view(np.uint16)
    found = []
    for start in range(0, m, 32):
        rows = min(32, m - start)
        tile = pairs[start * blocks * 32 : (start + rows) * blocks * 32].reshape(blocks, rows, 32)
        found.append(tile.transpose(1, 0, 2).reshape(rows, -1))
    values = (np.concatenate(found).astype(np.uint32) << 16).view(np.float32)
    assert not values[:, inputs:].any()
    if codes:
        values = values.reshape(m, -1, 4)[:, :, [0, 2, 1, 3]].reshape(m, -1) / np.float32(CODES_POWER)
    return values[:, :inputs]


def weights_of(spec: KernelSpec) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([spec.outputs, spec.inputs])
    rows = rng.standard_normal((spec.outputs, spec.inputs)) * np.exp2(rng.integers(-3, 3, (spec.outputs, 1)))
    layout = panel_layout(spec.scheme, spec.inputs)
    panels = pack_rows(store_rows(rows.astype(np.float32), spec.scheme), layout)
    return placed(panels, np.uint8), unpack_rows(panels, layout, spec.outputs).astype(np.float64)


@pytest.mark.parametrize("m", [32, 33, 47, 64, 80, 131])
@pytest.mark.parametrize("spec", QUANTIZERS, ids=lambda spec: spec.symbol)
def test_records_are_rounded_to_nearest_even(library: Library, spec: QuantizeSpec, m: int) -> None:
    rng = np.random.default_rng(m)
    x = placed(rng.standard_normal((m, spec.inputs)) * 10.0 ** rng.integers(-9, 9, (m, 1)))
    x[5] = 1 + (2 * rng.integers(0, 64, spec.inputs) + 1) * 2.0**-8  # ties
    quantized = library.quantized(spec, x)
    np.testing.assert_array_equal(unpacked(quantized, m, spec.inputs, codes=spec.row_format != "bf16"), bf16(x))


@pytest.mark.parametrize(("m", "parts"), [(32, 1), (33, 1), (47, 2), (64, 1), (131, 1), (131, 3), (131, 64), (600, 5)])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.symbol)
def test_matmuls_agree_with_float64(library: Library, spec: KernelSpec, m: int, parts: int) -> None:
    rng = np.random.default_rng(3)
    x = placed(rng.standard_normal((m, spec.inputs)) * 10.0 ** rng.integers(-3, 3, (m, 1)))
    panels, w = weights_of(spec)
    bias = placed(rng.standard_normal(spec.outputs))
    y = aligned((m, spec.outputs), np.float32)
    assert spec.row_format is not None
    quantized = library.quantized(QuantizeSpec(spec.inputs, spec.row_format), x)
    given = [quantized, panels, *([bias] if spec.has_bias else []), y]
    library.call(spec.symbol, given, m, parts=parts)
    values = bf16(x).astype(np.float64)
    magnitudes = np.abs(values) @ np.abs(w.T)
    # Sums of n terms err by n unit roundoffs of the magnitudes; 2 more a pair, whose sum is rounded; and of the bias.
    bound = (2 * spec.inputs + 8) * UNIT * (magnitudes + np.abs(bias) * spec.has_bias)
    if spec.scheme.name not in EXACT:
        bound += 2.0**-8 * magnitudes
    error = np.abs(y - (values @ w.T + (bias if spec.has_bias else 0)))
    assert (error <= bound).all(), (error / bound).max()
    # The worst case is far away: rounding is random.
    assert (error.max(axis=1) <= (0.05 if spec.scheme.name in EXACT else 0.7) * bound.max(axis=1)).all()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.symbol)
def test_a_row_depends_on_nothing_around_it(library: Library, spec: KernelSpec) -> None:
    rng = np.random.default_rng(4)
    x, bias = rng.standard_normal((131, spec.inputs)), placed(rng.standard_normal(spec.outputs))
    x[77, 3] = np.nan
    panels, _ = weights_of(spec)
    assert spec.row_format is not None

    def matmul(start: int, stop: int, parts: int) -> np.ndarray:
        y = aligned((stop - start, spec.outputs), np.float32)
        quantized = library.quantized(QuantizeSpec(spec.inputs, spec.row_format), placed(x[start:stop]))
        library.call(spec.symbol, [quantized, panels, *([bias] if spec.has_bias else []), y], stop - start, parts=parts)
        return y

    whole = matmul(0, 131, 1)
    np.testing.assert_array_equal(matmul(0, 131, 7), whole)
    for start, stop in ((0, 32), (1, 34), (50, 131), (64, 97)):
        np.testing.assert_array_equal(matmul(start, stop, 1), whole[start:stop])
    assert np.isnan(whole[77]).all()
    assert np.isfinite(np.delete(whole, 77, axis=0)).all()


@pytest.mark.parametrize(("m", "parts"), [(32, 1), (33, 2), (47, 1), (131, 3), (600, 5)])
@pytest.mark.parametrize("spec", SPLIT, ids=lambda spec: spec.symbol)
def test_split_activations_multiply_exactly(library: Library, spec: KernelSpec, m: int, parts: int) -> None:
    rng = np.random.default_rng(8)
    x = placed(rng.standard_normal((m, spec.inputs)) * 10.0 ** rng.integers(-6, 6, (m, 1)))
    x[3] = 0
    panels, w = weights_of(spec)
    bias = placed(rng.standard_normal(spec.outputs))
    split = SplitSpec(spec.inputs)
    quantized = aligned((m, split.row_bytes), np.uint8)
    library.call(split.symbol, [x, quantized], m, parts=3)
    y = aligned((m, spec.outputs), np.float32)
    library.call(spec.symbol, [quantized, panels, *([bias] if spec.has_bias else []), y], m, parts=parts)
    magnitudes = np.abs(x.astype(np.float64)) @ np.abs(w.T)
    # Three matmuls an input, which are exact, and sums as above: nothing of x is rounded.
    bound = (6 * spec.inputs + 8) * UNIT * (magnitudes + np.abs(bias) * spec.has_bias)
    error = np.abs(y - (x.astype(np.float64) @ w.T + (bias if spec.has_bias else 0)))
    assert (error <= bound).all(), (error / bound).max()
    assert (error.max(axis=1) <= 0.05 * bound.max(axis=1) + 1e-30).all()


@pytest.mark.parametrize("spec", [spec for spec in SPLIT if isinstance(spec.scheme, Float8)], ids=lambda s: s.symbol)
def test_every_code_of_8_bit_floating_point_is_its_number(library: Library, spec: KernelSpec) -> None:
    values = TYPES[spec.scheme.format].values
    numbers = np.flatnonzero(np.isfinite(values)).astype(np.uint8)
    codes = numbers[np.arange(spec.outputs * spec.inputs).reshape(spec.outputs, spec.inputs) * 7 % len(numbers)]
    assert len(set(codes.flat)) == len(numbers)
    scale = np.exp2(np.arange(spec.outputs) % 9).astype(np.float32)[:, None]
    panels = pack_rows(QuantizedRows(codes, scale, None), panel_layout(spec.scheme, spec.inputs))
    x, split = placed(np.eye(spec.inputs)), SplitSpec(spec.inputs)
    pieces, y = aligned((spec.inputs, split.row_bytes), np.uint8), aligned((spec.inputs, spec.outputs), np.float32)
    library.call(split.symbol, [x, pieces], spec.inputs)
    library.call(spec.symbol, [pieces, placed(panels, np.uint8), placed(np.zeros(spec.outputs)), y], spec.inputs)
    np.testing.assert_array_equal(y, (values[codes] * scale).T)


def test_three_numbers_of_bf16_are_one_of_f32(library: Library) -> None:
    split = SplitSpec(77)
    x = placed(np.random.default_rng(9).standard_normal((47, 77)) * 10.0 ** np.arange(-23, 24)[:, None])
    quantized = aligned((47, split.row_bytes), np.uint8)
    library.call(split.symbol, [x, quantized], 47)
    numbers = unpacked(quantized, 47, 3 * 96, codes=False).reshape(47, 3, 3, 32)
    found = numbers.astype(np.float64).sum(axis=2).reshape(47, 96)
    np.testing.assert_array_equal(found[:, :77], x)
    assert not found[:, 77:].any()


def test_what_is_streamed_past_the_caches_is_the_same(library: Library) -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((96, LONG.inputs))
    panels, _ = weights_of(LONG)
    found = []
    for start, stop in ((0, 96), (0, 48)):  # 1.5 MB and 0.75 MB
        y = aligned((stop - start, LONG.outputs), np.float32)
        assert LONG.row_format is not None
        quantized = library.quantized(QuantizeSpec(LONG.inputs, LONG.row_format), placed(x[start:stop]))
        library.call(LONG.symbol, [quantized, panels, y], stop - start)
        found.append(y)
    np.testing.assert_array_equal(found[0][:48], found[1])


@pytest.mark.parametrize(("m", "parts"), [(32, 1), (61, 3), (131, 64)])
@pytest.mark.parametrize("spec", GATED, ids=lambda spec: spec.symbol)
def test_gated_products(library: Library, spec: GatedSpec, m: int, parts: int) -> None:
    rng = np.random.default_rng(6)
    x = placed(2 * rng.standard_normal((m, spec.matmul.inputs)))
    x[3] *= 40  # gates far from 0
    panels, w = weights_of(spec.matmul)
    assert spec.matmul.row_format is not None
    quantized = library.quantized(QuantizeSpec(spec.matmul.inputs, spec.matmul.row_format), x)
    width = spec.matmul.outputs // 2
    out = aligned((m, quantized_row_bytes(width, spec.row_format)), np.uint8)
    library.call(spec.symbol, [quantized, panels, out], m, parts=parts)
    found = unpacked(out, m, width, codes=spec.row_format != "bf16")
    gate, value = np.split(bf16(x).astype(np.float64) @ w.T, 2, axis=1)
    inner = gate if spec.function == "silu" else 1.5957691216057308 * (gate + 0.044715 * gate**3)
    with np.errstate(over="ignore"):
        wanted = gate / (1 + np.exp(-inner)) * value
    # Half a unit of bf16, and what f32 sums and the exponential are off by, times what they multiply.
    error = np.abs(found - wanted)
    assert (error <= 2.0**-8 * np.abs(wanted) + 1e-5 * np.abs(value) + 1e-5).all(), error.max()


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("into", ["interleaved", "bf16"])
@pytest.mark.parametrize("cache", CACHES, ids=lambda cache: cache.name)
def test_attention_into_records_is_attention_rounded(library: Library, cache: CacheSpec, into: str, parts: int) -> None:
    rng = np.random.default_rng(8)
    size = head_bytes(KvCache(1, cache.kv_heads, cache.head_dim, cache.dtype, 64))
    memory = aligned((40, 2, cache.kv_heads, size), np.uint8)
    if cache.dtype in ("int8", "fp8"):
        memory[...] = rng.integers(1, 256, memory.shape)
        memory[..., -256:] = placed(rng.uniform(0.01, 0.02, (40, 2, cache.kv_heads, 64))).view(np.uint8)
    else:
        bits = bf16(rng.standard_normal((40, 2, cache.kv_heads, size // 2))).view(np.uint32) >> 16
        half = rng.standard_normal(bits.shape).astype(np.float16).view(np.uint16)
        memory[...] = (bits.astype(np.uint16) if "avx512_bf16" in library.isa.features else half).view(np.uint8)
    positions = placed(np.array([*range(1000, 1060), -1, -1, *range(33)]), np.int32)
    sequences = placed(np.array([0] * 62 + [1] * 33), np.int32)
    table = placed(rng.permutation(40).reshape(2, 20), np.int32)
    m, width = len(positions), cache.heads * cache.head_dim
    queries = placed(2 * rng.standard_normal((m, width)))
    rows = aligned((m, width), np.float32)
    arrays = [queries, positions, sequences, table, memory]
    library.call(AttentionSpec(cache, amx=True).symbol, [*arrays, rows], m, 1)
    assert not rows[60:62].any()
    quantized = aligned((m, quantized_row_bytes(width, into)), np.uint8)  # type: ignore[arg-type]
    library.call(AttentionSpec(cache, into, amx=True).symbol, [*arrays, quantized], m, 2, parts=parts)  # type: ignore[arg-type]
    np.testing.assert_array_equal(unpacked(quantized, m, width, codes=into != "bf16"), bf16(rows))
    few, split = aligned((16, width), np.float32), aligned((16, width), np.float32)  # so few tokens share stretches
    last = [array[44:60] for array in (queries, positions, sequences)]
    library.call(AttentionSpec(cache, amx=True).symbol, [*last, table, memory, few], 16, 1)
    library.call(AttentionSpec(cache, amx=True).symbol, [*last, table, memory, split], 16, 5, parts=parts)
    np.testing.assert_array_equal(split, few)


def test_the_library_has_tile_instructions() -> None:
    for spec in (SPECS[0], ATTENTION[-1]):
        (compiled,) = compile_kernels((spec,), TILES, Toolchain(cache_directory()))
        assert b"\xc4\xe2\x4a\x5c\xc4" in compiled  # tdpbf16ps tmm0, tmm4, tmm6
