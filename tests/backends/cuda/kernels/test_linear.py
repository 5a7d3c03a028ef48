"""Linear layers and embeddings on the emulated GPU, against float64, for every scheme."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from cuda_emulation import CudaError, run_kernel
from cuda_linear import INPUTS, OUTPUTS, check, matrix, spec_of
from cuda_matrices import ROUNDING, STORED, in_one_program, stored_matrix
from long_runs import sample
from mxfp8_reference import mxfp8

from pyc.backends.cuda.kernels.linear import EmbeddingSpec, lower_embedding, lower_linear
from pyc.backends.cuda.kernels.linear_tiles import GemmTiles, gemm_tiles, gemv_tiles
from pyc.backends.cuda.kernels.matrix import matrix_format
from pyc.compiler.schemes import SCHEMES

ANY_INPUTS = ("f32", "f16", "bf16", "int8", "int8-g32", "fp8", "fp8-b128")
"""Schemes for any number of inputs."""
ODD = ((1, 17, 45), (2, 48, 33), (8, 1, 7), (9, 33, 75), (16, 7, 100), (33, 65, 33))
"""Rows, outputs and inputs."""
TABLES = ((1, 17, 32), (2, 40, 96), (8, 33, 160), (9, 33, 32), (17, 65, 224))
"""Of tables of 3 and 2 bits: rows of whole blocks of 32 codes, which are copied by 4, 8 or 16 bytes."""
LARGE = {
    "bf16": ((128, 130, 72),),
    "int4-g32": ((72, 70, 160),),
    "lut4-g32": ((130, 40, 96),),
    "int3-g32": ((130, 40, 128), (70, 300, 192)),
    "ternary": ((130, 40, 128), (70, 300, 192)),
}
"""Several blocks."""
MIXED = ((1, 17), (3, 40), (8, 48), (9, 17), (12, 40), (33, 130), (130, 65))
"""Rows and outputs of GEMVs and GEMMs."""
EXTREMES = np.array(
    [
        *(0, 1, 448, 449, 464, 447, 1.0625, 1.1875, 2.0**-9, 2.0**-10, 3 * 2.0**-10, 17 * 2.0**-10, 2.0**-7, 2.0**-117),
        *(2.0**-126, 2.0**-127, 2.0**-149, 3 * 2.0**-126, 2.0**-124, 5 * 2.0**-126, 1e-35, 1e30, 3e38),
    ]
)
"""Ties, subnormal numbers of e4m3 and of f32, numbers near the largest."""
OLDER = "#define PYC_FLOAT8_BY_BF16\n"
"""In front of a source: what GPUs do that have no instruction for floating point of 8 bits."""


@cache
def lowered(specs):
    """The launches of each spec, compiled together."""
    return dict(zip(specs, in_one_program([lower_linear(spec) for spec in specs]), strict=True))


def every_scheme(rows):
    return tuple(spec_of(name, rows, OUTPUTS, INPUTS, has_bias=True) for name in STORED)


@pytest.mark.parametrize("rows", [3, 9])
@pytest.mark.parametrize("name", STORED)
def test_every_scheme(name, rows):
    specs = every_scheme(rows)
    spec = specs[STORED.index(name)]
    check(matrix(name, OUTPUTS, INPUTS), spec, lowered(specs)[spec], seeds=(0, 1))


@pytest.mark.parametrize("name", ANY_INPUTS)
def test_any_shape(name):
    specs = tuple(spec_of(name, *shape) for shape in ODD)
    for spec in specs:
        check(matrix(name, spec.outputs, spec.inputs), spec, lowered(specs)[spec])


@pytest.mark.parametrize("name", ["lut5-g32", "lut3-g32", "lut2-g32", "ternary"])
def test_any_number_of_blocks(name):
    specs = tuple(spec_of(name, *shape) for shape in TABLES)
    for spec in specs:
        check(matrix(name, spec.outputs, spec.inputs), spec, lowered(specs)[spec], seeds=(0, 1))


@pytest.mark.parametrize("activations", ["f32", "bf16"])
@pytest.mark.parametrize(
    "name", ["int4-g32", "int4-g64", "int4-g128", "int4-g64-asym", "int4-g128-asym", "lut4-g128", "int8-g32"]
)
def test_groups_of_several_blocks(name, activations):
    """Rows of several tiles for each warp, of stages that are used again, and a last tile that is cut."""
    group = matrix_format(SCHEMES[name]).group
    shapes = ((2, 24, 16 * 128), (2, 16, 1280 + group), (8, 40, 9 * 128))
    specs = tuple(spec_of(name, *shape, activations=activations) for shape in shapes)
    for spec in specs:
        check(matrix(name, spec.outputs, spec.inputs), spec, lowered(specs)[spec], seeds=(0, 1))


@pytest.mark.parametrize("name", LARGE)
def test_many_rows(name):
    specs = tuple(spec_of(name, *shape) for shape in LARGE[name])
    for spec in specs:
        check(matrix(name, spec.outputs, spec.inputs), spec, lowered(specs)[spec], seeds=(3,))


@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_activations_rounded_to_bf16(name):
    specs = tuple(spec_of(name, rows, 24, 96, activations="bf16") for rows in (2, 24))
    for spec in specs:
        check(matrix(name, 24, 96), spec, lowered(specs)[spec])


@pytest.mark.parametrize("name", ["int8", "int8-g32"])
def test_activations_rounded_to_int8(name):
    shapes = ((1, 17, 45), (3, 40, 384), (8, 48, 33), (9, 17, 45), (12, 40, 384), (33, 130, 75), (130, 65, 31))
    specs = tuple(spec_of(name, *shape, activations="int8", has_bias=True) for shape in shapes)
    for spec in specs:
        check(matrix(name, spec.outputs, spec.inputs), spec, lowered(specs)[spec], seeds=(0, 1))


@pytest.mark.parametrize(
    "name",
    sample(
        ["fp8", "fp8-e5m2", "fp8-tensor", "fp8-b128", "int8", "int4-g32", "lut3-g32", "nvfp4"],
        *("fp8-e5m2", "fp8-b128", "int4-g32", "nvfp4"),
    ),
)
def test_activations_rounded_to_mxfp8(name):
    """By matrix instructions over bytes and floating point of 8 bits, and by those of bf16 over all others."""
    inputs = (45, 384, 33, 75, 31) if name.startswith(("fp8", "int8")) else (96, 384, 32, 64, 128)
    shapes = tuple((rows, outputs, inputs[i % 5]) for i, (rows, outputs) in enumerate(MIXED))
    specs = tuple(spec_of(name, *shape, activations="mxfp8", has_bias=True) for shape in shapes)
    for spec in specs:
        check(matrix(name, spec.outputs, spec.inputs), spec, lowered(specs)[spec], seeds=(0, 1))


@pytest.mark.parametrize("name", ["fp8", "fp8-e5m2", "fp8-b128"])
def test_bytes_by_bf16(name):
    specs = tuple(spec_of(name, *shape, activations="mxfp8") for shape in ((12, 40, 384), (33, 70, 75)))
    for spec in specs:
        launches = lowered(specs)[spec]
        steps = [replace(s, kernel=replace(s.kernel, source=OLDER + s.kernel.source)) for s in launches.steps]
        check(matrix(name, spec.outputs, spec.inputs), spec, replace(launches, steps=tuple(steps)))


@pytest.mark.parametrize("name", ["fp8", "bf16", "int8"])
@pytest.mark.parametrize("rows", [3, 12])
def test_rounding_to_mxfp8_is_exact(name, rows):
    """Odd numbers, by products with the unit matrix: results are the rounded numbers, bit for bit."""
    numbers = np.concatenate([EXTREMES, -EXTREMES]).astype(np.float32)
    x = np.random.default_rng(rows).choice(numbers, (rows, 96))
    x[:, 32:64] = np.where(np.abs(x[:, 32:64]) < 1e-30, x[:, 32:64], 0)
    x[1, 64:] *= x[1, 64:] < 1e-37
    spec = spec_of(name, rows, 96, 96, activations="mxfp8")
    arrays = {"x": x, **stored_matrix(np.eye(96, dtype=np.float32), name).arrays}
    if name != "bf16":
        zero, one = {"fp8": (0, 0x38), "int8": (128, 129)}[name]
        codes = np.where(np.eye(96), one, zero).astype(np.uint8).reshape(arrays["weight.codes"].shape)
        arrays |= {"weight.codes": codes, "weight.scales": np.ones((96, 1), np.float32)}
    found = run_kernel(lower_linear(spec), arrays, {"result": ((rows, 96), np.float32)})["result"]
    np.testing.assert_array_equal(found, mxfp8(x))


@pytest.mark.parametrize("name", ["fp8", "int4-g32"])
@pytest.mark.parametrize("rows", [8, 10])
def test_faults_in_activations_show_in_mxfp8(name, rows):
    spec = spec_of(name, rows, 16, 64, activations="mxfp8")
    arrays = {"x": np.ones((rows, 64), np.float32), **matrix(name, 16, 64).arrays}
    arrays["x"][3, 40], arrays["x"][5, 2], arrays["x"][7] = np.inf, np.nan, 0
    found = run_kernel(lower_linear(spec), arrays, {"result": ((rows, 16), np.float32)})["result"]
    assert np.isnan(found).all(axis=1).tolist() == [row in (3, 5) for row in range(rows)]
    assert np.isfinite(found).all(axis=1).tolist() == [row not in (3, 5) for row in range(rows)]
    assert not found[7].any()


@pytest.mark.parametrize("rows", [8, 10])
def test_faults_in_activations_show(rows):
    """Infinity and NaN in a block of activations make its row NaN, and no other."""
    spec = spec_of("int8-g32", rows, 16, 64, activations="int8")
    arrays = {"x": np.ones((rows, 64), np.float32), **matrix("int8-g32", 16, 64).arrays}
    arrays["x"][3, 40], arrays["x"][5, 2], arrays["x"][7] = np.inf, np.nan, 0
    found = run_kernel(lower_linear(spec), arrays, {"result": ((rows, 16), np.float32)})["result"]
    assert np.isnan(found).all(axis=1).tolist() == [row in (3, 5) for row in range(rows)]
    assert np.isnan(found).any(axis=1).tolist() == [row in (3, 5) for row in range(rows)]
    assert not found[7].any()


@pytest.mark.parametrize(
    ("name", "tiles"),
    [
        ("bf16", GemmTiles(4, 8, 4, 2, 1, 32, 2)),
        ("int8-g32", GemmTiles(2, 8, 4, 2, 1, 32, 3)),
        ("int8-g32", GemmTiles(1, 4, 4, 2, 1, 64, 4)),
        ("int4-g32-asym", GemmTiles(2, 4, 1, 2, 2, 64, 2)),
    ],
)
def test_any_division(name, tiles, monkeypatch):
    """Blocks larger than the matrix, and several of them."""
    spec = spec_of(name, 72, 136, 96)
    monkeypatch.setattr("pyc.backends.cuda.kernels.linear.gemm_tiles", lambda _: tiles)
    check(matrix(name, 136, 96), spec, lower_linear(spec))


@pytest.mark.parametrize("tile_k", [32, 64])
@pytest.mark.parametrize("name", ["int4-g128", "int4-g64-asym", "int4-g128-asym", "int2-g128", "fp8-b128"])
def test_tiles_smaller_than_a_group(name, tile_k, monkeypatch):
    """Several tiles read the scales, and the zero points, of one group."""
    spec = spec_of(name, 10, 20, 384)
    monkeypatch.setattr("pyc.backends.cuda.kernels.linear.gemm_tiles", lambda _: GemmTiles(1, 2, 2, 1, 1, tile_k, 2))
    check(matrix(name, 20, 384), spec, lower_linear(spec))


def with_scales(change):
    """A matrix whose scales are changed, and what it is multiplied by."""
    stored = matrix("int4-g32", OUTPUTS, INPUTS)
    specs = every_scheme(3)
    spec = specs[STORED.index("int4-g32")]
    scales = change(stored.arrays["weight.scales"].copy())
    return replace(stored, arrays={**stored.arrays, "weight.scales": scales}), spec, lowered(specs)[spec]


def test_a_wrong_scale_is_seen():
    """The bound is narrow enough: one scale of a group that is off by its last bit fails."""

    def change(scales):
        scales[7, 3] ^= 0x10
        return scales

    with pytest.raises(AssertionError):
        check(*with_scales(change))


def test_missing_scales_are_seen():
    with pytest.raises(CudaError, match="out of bounds"):
        check(*with_scales(lambda scales: scales[:-1]))


@cache
def embeddings():
    specs = [EmbeddingSpec(5, 11, INPUTS, matrix_format(SCHEMES[name])) for name in STORED]
    return dict(zip(STORED, in_one_program([lower_embedding(spec) for spec in specs]), strict=True))


@pytest.mark.parametrize("name", STORED)
def test_embedding(name):
    stored = matrix(name, 11, INPUTS)
    ids = np.array([3, 10, -1, 0, 11], np.int32)
    results = {"result": ((5, INPUTS), np.float32)}
    found = run_kernel(embeddings()[name], {"ids": ids, **stored.arrays}, results)["result"]
    expected = np.where((ids >= 0)[:, None] & (ids < 11)[:, None], stored.values[ids % 11], 0)
    # a scale, a factor
    np.testing.assert_allclose(found, expected, rtol=2.1 * ROUNDING, atol=0)


@pytest.mark.parametrize("name", ["bf16", "f32", "int4-g32", "nvfp4", "fp8", "lut5-g32", "lut3-g32", "int2-g128"])
@pytest.mark.parametrize("activations", ["f32", "bf16", "int8", "mxfp8"])
def test_divisions_suit_the_shape(name, activations):
    """Enough blocks where there are outputs and rows enough; shared memory that every GPU has."""
    for outputs, inputs in ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (960, 960)):
        for rows in (1, 4, 8, 16, 64, 128, 512, 2048):
            spec = spec_of(name, rows, outputs, inputs, activations=activations)
            kernel = lower_linear(spec).steps[-1].kernel
            assert kernel.shared_bytes <= 99 << 10
            blocks = kernel.grid[0] * kernel.grid[1]
            if rows <= 8:
                assert blocks * kernel.threads // 32 >= 512 or outputs < 4096, gemv_tiles(spec)
            else:
                assert blocks >= 64 or outputs < 4096, gemm_tiles(spec)
