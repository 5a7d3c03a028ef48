"""Products by the tile unit against products by vectors: bit for bit, on emulated tiles where the CPU has none."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from pyc.backends.isa import ISAS
from pyc.backends.kernels import KernelSpec, QuantizeSpec, compile_kernels, headers, kernels_source
from pyc.backends.toolchain import Toolchain
from pyc.compiler.cache import cache_directory
from pyc.compiler.layouts import activation_layout, pack_rows, panel_layout
from pyc.compiler.quantization import store_rows
from pyc.compiler.schemes import parse_scheme
from pyc.runtime.cpu import cpu_features

VECTORS, TILES = ISAS["avx512-vnni"], ISAS["amx-int8"]
UNTOUCHED = np.float32(1e37)  # no sum of these tests
EMULATE = "#define PYC_EMULATE_TILES 1\n"
CASES = [
    ("int4-g32", 45, 384, True),
    ("int4-g32", 5, 32, False),
    ("int4-g64", 33, 448, False),
    ("int4-g128-asym", 45, 384, True),
    ("int4-g32-asym", 18, 96, False),
    ("int8", 45, 77, True),
    ("int8", 16, 352, False),
]
SPECS = tuple(KernelSpec("linear", n, k, parse_scheme(name), bias) for name, n, k, bias in CASES)
QUANTIZERS = tuple(QuantizeSpec(spec.inputs, spec.records) for spec in SPECS if spec.records)


@pytest.fixture(scope="module")
def toolchain():
    return Toolchain(cache_directory())


@pytest.fixture(scope="module")
def libraries(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """The kernels by vectors, and by emulated tiles."""
    lacking = set(VECTORS.features) - cpu_features()
    if lacking:
        pytest.skip(f"this CPU lacks {', '.join(sorted(lacking))}, which the kernels use beside tiles")
    folder = tmp_path_factory.mktemp("tiles")
    source = kernels_source((*SPECS, *QUANTIZERS), VECTORS)
    found = []
    for name, text in (("vectors", source), ("tiles", EMULATE + source)):
        path: Path = folder / f"{name}.so"
        compiled = toolchain.compile_object(text, VECTORS, headers())
        path.write_bytes(toolchain.link_shared([compiled], VECTORS, path.name))
        found.append(ctypes.CDLL(str(path)))
    return found[0], found[1]


def call(library: ctypes.CDLL, symbol: str, *arguments: np.ndarray | int) -> None:
    converted = [
        ctypes.c_int32(a) if isinstance(a, int) else ctypes.c_void_p(a.ctypes.data) for a in arguments
    ]
    assert getattr(library, symbol)(*converted) == 0


@pytest.mark.parametrize(("m", "parts"), [(64, 1), (16, 1), (17, 1), (80, 1), (80, 3), (131, 2)])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.symbol)
def test_tiles_give_the_same_bits(libraries, spec: KernelSpec, m: int, parts: int) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((m, spec.inputs)) * 10.0 ** rng.integers(-3, 3, (m, 1))).astype(np.float32)
    x[11, 0] = np.nan
    assert spec.records is not None
    quantize = QuantizeSpec(spec.inputs, spec.records).symbol
    w = rng.standard_normal((spec.outputs, spec.inputs)).astype(np.float32)
    panels = pack_rows(store_rows(w, spec.scheme), panel_layout(spec.scheme, spec.inputs))
    bias = rng.standard_normal(spec.outputs).astype(np.float32)
    results = []
    for library in libraries:
        records = np.zeros((m, activation_layout(spec.inputs).row_bytes), np.uint8)
        call(library, quantize, x, records, m, 0, 1)
        y = np.full((m, spec.outputs), UNTOUCHED, np.float32)
        given = [records, panels, *([bias] if spec.has_bias else []), y]
        for part in range(parts):
            call(library, spec.symbol, *given, m, part, parts)
        results.append(y)
    np.testing.assert_array_equal(results[1], results[0])
    assert np.isnan(results[1][11]).any()
    assert np.isfinite(np.delete(results[1], 11, axis=0)).all()
    assert (results[1] != UNTOUCHED).all()


def test_the_tile_variant_compiles_to_tile_instructions(toolchain: Toolchain) -> None:
    tiles = compile_kernels(SPECS, TILES, toolchain)
    assert b"\xc4\xe2\x4b\x5e\xc4" in tiles  # tdpbssd tmm0, tmm4, tmm6
