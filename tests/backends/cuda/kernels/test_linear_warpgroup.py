"""Linear layers by the matrix instructions of warpgroups, on the emulated GPU, against float64."""

import os
from dataclasses import replace
from functools import cache
from math import prod

import pytest
from cuda_emulation import CudaError
from cuda_linear import INPUTS, OUTPUTS, check, matrix, spec_of
from cuda_matrices import STORED, in_one_program

from pyc.backends.cuda.archs import find_arch
from pyc.backends.cuda.kernels.linear import lower_linear
from pyc.backends.cuda.kernels.warpgroup_tiles import WarpgroupTiles, suits_warpgroups, warpgroup_tiles
from pyc.backends.cuda.toolchain.nvrtc import headers

WIDE = [name for name in STORED if name in ("f32", "f16")]
SUITED = [name for name in STORED if name not in WIDE]
IS_LONG = os.environ.get("PYC_CUDA") == "all"
"""In make test-long: more schemes and rows."""
SHAPES = ((9, 17, 64), (33, 70, 160), (70, 130, 384))
"""Rows, outputs and inputs: less than a block of each, and several, the last of them cut."""
TILES = (
    WarpgroupTiles(256, 2, 4),
    WarpgroupTiles(128, 2, 4, splits=2),
    WarpgroupTiles(64, 1, 5),
    WarpgroupTiles(64, 1, 4, sharing=2, splits=2),
    WarpgroupTiles(32, 1, 4, sharing=4),
    WarpgroupTiles(32, 2, 8),
    WarpgroupTiles(32, 1, 6, splits=4),
)
"""Of 384 inputs four splits are more than there are tiles for."""


def warpgroups(spec):
    return lower_linear(spec, has_warpgroups=True)


@cache
def lowered(specs):
    return dict(zip(specs, in_one_program([warpgroups(spec) for spec in specs]), strict=True))


def every_scheme(rows):
    return tuple(spec_of(name, rows, OUTPUTS, INPUTS, has_bias=True, activations="bf16") for name in SUITED)


@pytest.mark.parametrize("rows", [12, 40] if IS_LONG else [40])
@pytest.mark.parametrize("name", SUITED)
def test_every_scheme(name, rows):
    specs = every_scheme(rows)
    spec = specs[SUITED.index(name)]
    assert "warpgroup" in lowered(specs)[spec].steps[-1].kernel.symbol
    check(matrix(name, OUTPUTS, INPUTS), spec, lowered(specs)[spec], seeds=(0, 1))


@pytest.mark.parametrize("name", ["bf16", "fp8", "int4-g32-asym", "lut5-g32"])
def test_blocks_that_are_cut(name):
    specs = tuple(spec_of(name, *shape, activations="bf16") for shape in SHAPES if name != "ternary" or shape[2] == 384)
    for spec in specs:
        check(matrix(name, spec.outputs, spec.inputs), spec, lowered(specs)[spec], seeds=(0, 1))


DIVIDED_SCHEMES = ("bf16", "fp8", "int4-g128-asym", "lut4-g32") if IS_LONG else ("bf16", "int4-g128-asym")
DIVIDED = [(name, tiles) for name in DIVIDED_SCHEMES for tiles in TILES]
"""Registers for sums of 256 rows are not there twice, for those of groups and of all."""
DIVIDED = [(name, tiles) for name, tiles in DIVIDED if tiles.rows < 256 or name in ("bf16", "fp8")]


@pytest.mark.parametrize(("name", "tiles"), DIVIDED, ids=str)
def test_any_division(name, tiles, monkeypatch):
    spec = spec_of(name, 270, 150, 384, activations="bf16")
    monkeypatch.setattr("pyc.backends.cuda.kernels.linear.warpgroup_tiles", lambda _: tiles)
    check(matrix(name, 150, 384), spec, warpgroups(spec), seeds=(2,))


@pytest.mark.parametrize("name", ["fp8", "int4-g32", "bf16"])
def test_activations_rounded_to_mxfp8(name):
    spec = spec_of(name, 20, 70, 96, activations="mxfp8")
    check(matrix(name, 70, 96), spec, warpgroups(spec))


@pytest.mark.parametrize("name", ["bf16", "fp8", "int8", "int4-g128-asym", "lut4-g32"])
def test_activations_of_two_bf16(name):
    for tiles in (None, WarpgroupTiles(128, 2, 4), WarpgroupTiles(32, 1, 4, sharing=2, splits=2)):
        spec = spec_of(name, 40, 150, 384, activations="f32")
        with pytest.MonkeyPatch.context() as patch:
            if tiles:
                patch.setattr("pyc.backends.cuda.kernels.linear.warpgroup_tiles", lambda _, tiles=tiles: tiles)
            check(matrix(name, 150, 384), spec, warpgroups(spec))


def test_integers_are_multiplied_as_bf16():
    """Which is finer than activations in int8, and as fast."""
    spec = spec_of("int8", 20, 40, 96, activations="int8")
    assert warpgroups(spec) == warpgroups(replace(spec, activations="bf16"))


def test_what_it_does_not_take_goes_to_other_kernels():
    """Weights that are two bf16, and rows of bf16 that begin between 16 bytes."""
    others = [
        spec_of("bf16", 20, 40, 100, activations="bf16"),
        *(spec_of(name, 20, 40, 96, activations="bf16") for name in WIDE),
    ]
    assert len(others) == 3
    for spec in others:
        assert not suits_warpgroups(spec)
        assert warpgroups(spec) == lower_linear(spec)


@pytest.mark.parametrize("outputs", [2048, 4096, 12288, 28672])
def test_few_blocks_of_a_gemv_are_spread(outputs):
    """Launches begin early where others have left: without more shared memory those left first get the most blocks."""
    spec = spec_of("bf16", 8, outputs, 4096, activations="bf16")
    (spread,), (plain,) = warpgroups(spec).steps, lower_linear(spec).steps
    assert spread.kernel.source == plain.kernel.source
    each = -(-spread.kernel.grid[0] // 132)
    if each > 4:
        assert spread.kernel.shared_bytes == plain.kernel.shared_bytes
    else:
        assert find_arch("sm_90a").shared_bytes // (spread.kernel.shared_bytes + 1024) <= each  # which each block takes
        assert spread.kernel.shared_bytes <= 227 << 10


@pytest.mark.parametrize("name", ["bf16", "int4-g32", "nvfp4", "fp8", "lut5-g32", "lut3-g32", "int2-g128"])
def test_divisions_suit_the_shape(name):
    """Shared memory and registers that the GPU has, and enough blocks where there are outputs and rows enough."""
    arch = find_arch("sm_90a")
    for outputs, inputs in ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (960, 960)):
        for rows in (9, 16, 64, 128, 512, 2048):
            spec = spec_of(name, rows, outputs, inputs, activations="bf16")
            tiles, kernel = warpgroup_tiles(spec), warpgroups(spec).steps[-1].kernel
            assert kernel.shared_bytes <= arch.shared_bytes_of_block
            assert tiles.stages >= 4
            assert tiles.rows <= 128 or not spec.matrix.group or spec.matrix.folds
            assert prod(kernel.grid) >= 64 or outputs < 4096, tiles


GEMM, MMA = "linear_gemm_warpgroup.cuh", "warpgroup_mma.cuh"
BUGS = {
    "no fence behind copies": (GEMM, "            show_copies_to_products();\n", "", "without a fence behind"),
    "no fence before products": (GEMM, "            begin_products();\n", "", "without a fence before"),
    "no barrier": (GEMM, "            __syncthreads(); /* the tile", "/* the tile", "race|uninitialized|fence behind"),
    "sums that are read too soon": (GEMM, "    wait_for_products<0>();\n    keep", "    keep", None),
    "copies over what is multiplied": (GEMM, "= STAGES - 2", "= STAGES - 1", "a race|uninitialized|different"),
    "no wait for the launch before": (GEMM, "    wait_for_earlier_launches();\n", "", "wait|race|uninitialized"),
    "a row that is not swizzled": (MMA, "shared + swizzled(row, chunk)", "shared + row * 128 + chunk * 16", None),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, monkeypatch):
    """In the kernel for weights of bf16."""
    header, old, new, error = BUGS[bug]
    changed = dict(headers())
    assert old in changed[header]
    changed[header] = changed[header].replace(old, new)
    monkeypatch.setattr("cuda_emulation.headers", lambda: changed)
    monkeypatch.setattr("pyc.backends.cuda.kernels.linear.warpgroup_tiles", lambda _: WarpgroupTiles(32, 2, 3))
    number = 11 + list(BUGS).index(bug)  # a kernel of a name of its own
    spec = spec_of("bf16", number, 130, 512, activations="bf16")
    with pytest.raises(CudaError if error else AssertionError, match=error):
        check(matrix("bf16", 130, 512), spec, warpgroups(spec), seeds=(0, 1, 2, 3))


FLOAT8 = ("fp8", "fp8-e5m2", "fp8-tensor", "fp8-b128")


@pytest.mark.parametrize("name", FLOAT8)
def test_floating_point_of_8_bits_by_the_same(name):
    """Rows of e4m3, by a power of two each; sums of 128 inputs apart, an odd number of them and an even one."""
    shapes = ((12, 40, 384), (70, 130, 160), (33, 17, 16), (140, 200, 1040))
    specs = tuple(spec_of(name, *shape, activations="fp8", has_bias=True) for shape in shapes)
    for spec in specs:
        assert lowered(specs)[spec].steps[-1].kernel.symbol.startswith("gemm_float8_fp8")
        check(matrix(name, spec.outputs, spec.inputs), spec, lowered(specs)[spec], seeds=(0, 1))


@pytest.mark.parametrize("tiles", [WarpgroupTiles(128, 2, 4), WarpgroupTiles(64, 1, 3)], ids=("128", "64"))
def test_any_division_of_floating_point_of_8_bits(tiles, monkeypatch):
    spec = spec_of("fp8", 140, 150, 400, activations="fp8")
    monkeypatch.setattr("pyc.backends.cuda.kernels.linear.float8_tiles", lambda _: tiles)
    check(matrix("fp8", 150, 400), spec, warpgroups(spec), seeds=(2,))


def test_other_layers_multiply_finer_activations_than_fp8():
    """Few rows, rows of no whole 16 bytes, and GPUs without warpgroups: by bf16."""
    for spec, has_warpgroups in (
        (spec_of("fp8", 8, 40, 96, activations="fp8"), True),
        (spec_of("fp8", 20, 40, 100, activations="fp8"), True),
        (spec_of("fp8", 20, 40, 96, activations="fp8"), False),
    ):
        as_bf16 = replace(spec, activations="bf16")
        assert lower_linear(spec, has_warpgroups=has_warpgroups) == lower_linear(as_bf16, has_warpgroups=has_warpgroups)
