"""Gates in the epilogues of GEMMs, on the emulated GPU, against float64."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_emulation import run_kernel, same_in_every_order
from cuda_linear import arrays_of, expected_of, matrix, spec_of
from cuda_matrices import in_one_program
from long_runs import sample

from pyc.backends.cuda.kernels.linear import lower_linear, rounded_for
from pyc.backends.cuda.kernels.linear_spec import Epilogue
from pyc.backends.cuda.kernels.warpgroup_tiles import WarpgroupTiles

LAYERS = (
    *(("bf16", "bf16", True), ("int4-g32", "bf16", True), ("int4-g128-asym", "bf16", True), ("lut3-g32", "bf16", True)),
    *(("fp8-b128", "bf16", True), ("fp8", "fp8", True), ("fp8-b128", "fp8", True), ("int8", "f32", True)),
    *(("bf16", "f32", False), ("f32", "f32", False), ("int4-g32-asym", "bf16", False), ("lut4-g32", "f32", False)),
    *(("int8-g32", "int8", False), ("fp8", "mxfp8", False), ("nvfp4", "bf16", False)),
)
"""Scheme, activations, and whether by warpgroups: each GEMM, with scales of rows, of groups and of tiles."""
SHAPES = ((20, 112, 384), (70, 304, 256))
"""Rows, outputs and inputs: less than a block, and several, cut."""
DIVISIONS = (
    WarpgroupTiles(64, 1, 4, sharing=2, splits=2),
    WarpgroupTiles(128, 2, 4),
    WarpgroupTiles(32, 1, 6, splits=4),
)


def gated(spec, function="silu"):
    return replace(spec, epilogue=Epilogue(gate=function))


def check_gate(stored, spec, launches, seeds=(0,)):
    arrays = arrays_of(stored, spec)
    shape = (spec.rows, spec.outputs // 2)
    found = same_in_every_order(launches, arrays, {"result": (shape, np.float32)}, seeds)["result"]
    total, bound = expected_of(stored, spec, arrays)
    gates, values = np.split(total, 2, axis=1)
    gate_bound, value_bound = np.split(bound, 2, axis=1)
    with np.errstate(over="ignore"):
        function = gates / (1 + np.exp(-gates))
    gate_bound = 1.13 * gate_bound + 64 * 2.0**-24 * np.abs(gates)
    expected = function * values
    most = np.abs(function) * value_bound + np.abs(values) * gate_bound + gate_bound * value_bound
    most += 2.0**-24 * np.abs(expected)
    assert (np.abs(found - expected) <= most).all(), np.max(np.abs(found - expected) / most)


@pytest.mark.parametrize(("name", "activations", "has_warpgroups"), sample(LAYERS))
def test_every_gemm(name, activations, has_warpgroups):
    specs = [gated(spec_of(name, *shape, activations=activations, has_bias=shape[0] == 20)) for shape in SHAPES]
    lowered = in_one_program([lower_linear(spec, has_warpgroups=has_warpgroups) for spec in specs])
    for spec, launches in zip(specs, lowered, strict=True):
        assert launches.steps[-1].kernel.symbol.startswith("gemm_")
        check_gate(matrix(name, spec.outputs, spec.inputs), spec, launches, (0, 1))


@pytest.mark.parametrize("name", ["bf16", "int4-g128-asym"])
@pytest.mark.parametrize("tiles", DIVISIONS, ids=str)
def test_any_division(name, tiles, monkeypatch):
    monkeypatch.setattr("pyc.backends.cuda.kernels.linear.warpgroup_tiles", lambda _: tiles)
    spec = gated(spec_of(name, 140, 160, 384, activations="bf16"))
    check_gate(matrix(name, 160, 384), spec, lower_linear(spec, has_warpgroups=True))


@pytest.mark.parametrize(
    ("reader", "activations"),
    [("bf16", "bf16"), ("fp8", "bf16"), ("int4-g32", "bf16"), ("bf16", "f32"), ("int8", "f32")],
)
def test_results_as_the_next_gemm_reads_them(reader, activations):
    """The same bits as of a launch that rounds them behind."""
    rows, features = 20, 192
    rounded = rounded_for(spec_of(reader, rows, 40, features, activations=activations), has_warpgroups=True)
    plain = gated(spec_of("int4-g32", rows, 2 * features, 96, activations="bf16"), "gelu_tanh")
    arrays = arrays_of(matrix("int4-g32", 2 * features, 96), plain)
    made = {"result": ((rows, features), np.float32)}
    numbers = run_kernel(lower_linear(plain, has_warpgroups=True), arrays, made)["result"]
    rounding = lower_linear(spec_of(reader, rows, 40, features, activations=activations), has_warpgroups=True)
    bits = {"rounded": ((rounded.size_bytes(rows, features),), np.uint8)}
    expected = run_kernel(replace(rounding, steps=rounding.steps[:1]), {"x": numbers}, bits)["rounded"]
    spec = replace(plain, epilogue=replace(plain.epilogue, rounded=rounded))
    found = run_kernel(lower_linear(spec, has_warpgroups=True), arrays, {"result": bits["rounded"]})["result"]
    np.testing.assert_array_equal(found, expected)
