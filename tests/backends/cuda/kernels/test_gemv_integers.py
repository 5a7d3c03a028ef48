"""Linear layers of one row by products of integers, on the emulated GPU, against float64."""

import numpy as np
import pytest
from cuda_emulation import run_kernel, same_in_every_order
from cuda_linear import arrays_of, matrix, spec_of
from cuda_matrices import ROUNDING, bf16, in_one_program, int8
from long_runs import sample

from pyc.backends.cuda.kernels import gemv_integers
from pyc.backends.cuda.kernels.gemv import lower_gemv_integers
from pyc.backends.cuda.kernels.gemv_integers import integer_tiles, suits_integers

SCHEMES = (
    *("int8", "int8-g32", "int4-g32", "int4-g64-asym", "int4-g128", "int4-g128-asym", "lut5-g32", "lut4-g32", "mxfp4"),
    *("lut3-g128", "int3-g32", "lut2-g32", "int2-g128", "ternary"),
)
SAMPLE = ("int8", "int8-g32", "int4-g32", "int4-g64-asym", "lut5-g32", "lut3-g128", "ternary")
SHAPES = ((40, 384), (17, 128), (300, 1408), (33, 5120))
"""Outputs and inputs: lanes without a piece; groups of outputs that are cut; several chunks, the last one cut."""


def int16(x):
    """Return f32 numbers [rows, K] rounded to integers of two bytes by blocks of 32, as f64."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    codes = np.rint(blocks * (np.float32(32512) / largest)).astype(np.float64)
    return (codes * (largest / np.float32(32512))).reshape(x.shape)


@pytest.mark.parametrize("name", sample(SCHEMES, *SAMPLE))
def test_every_scheme(name, monkeypatch):
    """Products of integers are exact; what is rounded are their scales and sums."""
    monkeypatch.setattr(gemv_integers, "_MOST_WARPS", 32 if name in SCHEMES[::2] else 16)
    specs = [spec_of(name, 1, *shape, activations="int8", has_bias=shape[0] % 2 == 0) for shape in SHAPES]
    for spec, launches in zip(specs, in_one_program([lower_gemv_integers(spec) for spec in specs]), strict=True):
        assert suits_integers(spec) and len(launches.steps) == 1
        stored = matrix(name, spec.outputs, spec.inputs)
        arrays = arrays_of(stored, spec)
        found = same_in_every_order(launches, arrays, {"result": ((1, spec.outputs), np.float32)}, (0, 1))["result"]
        x = int8(arrays["x"]) if spec.is_integer else int16(arrays["x"])
        bias = arrays.get("bias", np.zeros(spec.outputs))
        expected, magnitude = x @ stored.values.T + bias, np.abs(x) @ np.abs(stored.values).T + np.abs(bias)
        pieces = -(-spec.inputs // 16 // 32)
        bound = (pieces + 5 + 8) * ROUNDING * magnitude
        assert (np.abs(found - expected) <= bound).all(), np.max(np.abs(found - expected) / bound)


def test_two_bytes_err_less_than_bf16():
    """Of numbers of any magnitudes, and of one that all others are small beside."""
    rng = np.random.default_rng(0)
    for x in (rng.standard_normal((64, 512)), rng.standard_normal((64, 512)) ** 9):
        numbers = x.astype(np.float32)
        weights = rng.standard_normal((512, 40))
        exact = numbers.astype(np.float64) @ weights
        errors = [np.abs(rounded(numbers) @ weights - exact).max() for rounded in (int16, bf16)]
        assert errors[0] < errors[1] / 8


@pytest.mark.parametrize("name", ["int8", "int4-g128"])
def test_faults_show_and_zeros_stay(name):
    spec = spec_of(name, 1, 16, 256, activations="int8")
    launches = lower_gemv_integers(spec)
    results = {"result": ((1, 16), np.float32)}
    for wrong in (np.inf, -np.inf, np.nan):
        arrays = {"x": np.ones((1, 256), np.float32), **matrix(name, 16, 256).arrays}
        arrays["x"][0, 200] = wrong
        assert np.isnan(run_kernel(launches, arrays, results)["result"]).all()
    for small in (0, 1e-38, -1e-42):
        arrays["x"][:] = small
        assert not run_kernel(launches, arrays, results)["result"].any()


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("int4-g32", (2, 64, 64), {"activations": "int8"}),
        ("int4-g32", (1, 64, 64), {"activations": "f32"}),
        ("int4-g32", (1, 64, 64), {"activations": "mxfp8"}),
        ("int8", (1, 64, 48), {"activations": "int8"}),
        ("nvfp4", (1, 64, 64), {"activations": "int8"}),
        ("fp8", (1, 64, 64), {"activations": "bf16"}),
        ("bf16", (1, 64, 64), {"activations": "bf16"}),
    ],
)
def test_others_do_not(name, shape, options):
    """Several rows, activations that have to be finer, parts of blocks, smaller groups, codes that are no integers."""
    assert not suits_integers(spec_of(name, *shape, **options))


@pytest.mark.parametrize("warps", [16, 32])
def test_divisions_suit_the_shape(warps, monkeypatch):
    """A block for each multiprocessor of an H100 where there are outputs enough, and 32 KB on their way to each."""
    monkeypatch.setattr(gemv_integers, "_MOST_WARPS", warps)
    for outputs, inputs in ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (2048, 2048), (16384, 2048)):
        spec = spec_of("int4-g128", 1, outputs, inputs, activations="int8")
        tiles = integer_tiles(spec)
        assert 120 <= tiles.grid[0] <= 132 and tiles.shared_bytes <= 48 << 10
        loaded = tiles.warps * 32 * 16 * tiles.pieces * tiles.outputs
        assert loaded >= 32 << 10 or outputs * inputs // 2 <= 132 * 2 * loaded
