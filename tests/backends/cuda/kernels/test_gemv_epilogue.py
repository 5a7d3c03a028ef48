"""What GEMVs do with their sums: norms, gates and residuals, on the emulated GPU, against float64."""

from itertools import product

import numpy as np
import pytest
from cuda_emulation import same_in_every_order
from cuda_linear import arrays_of, expected_of, matrix, spec_of
from cuda_matrices import ROUNDING, in_one_program
from long_runs import sample

from pyc.backends.cuda.kernels import gemv_row
from pyc.backends.cuda.kernels.gemv import squares_of
from pyc.backends.cuda.kernels.gemv_integers import suits_integers
from pyc.backends.cuda.kernels.gemv_row import suits_rows
from pyc.backends.cuda.kernels.linear import lower_linear, takes_gate
from pyc.backends.cuda.kernels.linear_spec import Epilogue

SCHEMES = ("f32", "bf16", "int8", "fp8-b128", "int4-g32", "int4-g128-asym", "lut4-g32", "lut3-g32", "nvfp4", "ternary")
BY_INTEGERS = ("int8", "int4-g32", "int4-g128-asym", "lut5-g32", "lut3-g32")
EPSILON = 1e-3
NORMED, GATED = Epilogue(partials=7, epsilon=EPSILON), Epilogue(partials=300, epsilon=EPSILON, gate="silu")
ADDED, SCALED = Epilogue(adds=True), Epilogue(adds=True, has_gain=True)
EPILOGUES = (NORMED, GATED, ADDED, SCALED, Epilogue(gate="gelu_tanh"))
FUNCTIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}
STEEPEST = 1.13
"""What a difference becomes behind any of them, at most."""


def arrays_for(stored, spec):
    """Activations of a layer, and what its epilogue reads."""
    rng = np.random.default_rng(spec.outputs + spec.rows)
    epilogue, outputs = spec.epilogue, (spec.rows, spec.outputs)
    arrays = arrays_of(stored, spec)
    if epilogue.partials:
        arrays["x"] *= np.exp2(rng.integers(-20, 20, (spec.rows, 1))).astype(np.float32)
        whole = (arrays["x"].astype(np.float64) ** 2).sum(1, keepdims=True)
        shares = rng.random((spec.rows, epilogue.partials))
        arrays["squares"] = (whole * shares / shares.sum(1, keepdims=True)).astype(np.float32)
    if epilogue.adds:
        arrays["addend"] = rng.standard_normal(outputs, np.float32)
    if epilogue.has_gain:
        arrays["gain"] = rng.standard_normal(spec.outputs, np.float32)
    return arrays


def expected_for(stored, spec, arrays, has_warpgroups):
    """What a layer writes, in float64, and how far from it each may be."""
    epilogue, bias = spec.epilogue, arrays.get("bias", np.zeros(spec.outputs))
    total, bound = expected_of(stored, spec, arrays)
    if epilogue.partials:
        mean = arrays["squares"].astype(np.float64).sum(1, keepdims=True) / spec.inputs
        factor = 1 / np.sqrt(mean + EPSILON)
        total, bound = (total - bias) * factor + bias, bound * factor
        bound += (epilogue.partials // 32 + 24) * ROUNDING * np.abs(total)
    bound += ROUNDING * np.abs(bias)
    if epilogue.gate:
        gates, values = np.split(total, 2, axis=1)
        gate_bound, value_bound = np.split(bound, 2, axis=1)
        gate_bound = STEEPEST * gate_bound + 64 * ROUNDING * np.abs(gates)
        gated = FUNCTIONS[epilogue.gate](gates)
        whole = np.abs(gated) * value_bound + np.abs(values) * gate_bound + gate_bound * value_bound
        return {"result": (gated * values, whole + ROUNDING * np.abs(gated * values))}
    if not epilogue.adds:
        return {"result": (total, bound)}
    total = total + arrays["addend"]
    bound = bound + ROUNDING * np.abs(total)
    count = squares_of(spec, has_warpgroups=has_warpgroups)
    of_number = -(-spec.outputs // count)
    of_number = 1 << (of_number - 1).bit_length()
    padding = ((0, 0), (0, count * of_number - spec.outputs))
    squares, off = (np.pad(x, padding).reshape(spec.rows, count, -1) for x in (total**2, 2 * np.abs(total) * bound))
    found = {"result": (total, bound), "total_squares": (squares.sum(2), off.sum(2) + 8 * ROUNDING * squares.sum(2))}
    if epilogue.has_gain:
        gain = arrays["gain"].astype(np.float64)
        found["scaled"] = (total * gain, np.abs(gain) * bound + ROUNDING * np.abs(total * gain))
    return found


def check_epilogue(stored, spec, launches, seeds, has_warpgroups):
    arrays = arrays_for(stored, spec)
    expected = expected_for(stored, spec, arrays, has_warpgroups)
    results = {name: (values.shape, np.float32) for name, (values, _) in expected.items()}
    found = same_in_every_order(launches, arrays, results, seeds)
    for name, (values, bound) in expected.items():
        assert (np.abs(found[name] - values) <= bound).all(), (name, np.max(np.abs(found[name] - values) / bound))


def check_all(name, specs, seeds=(0,), has_warpgroups=False):
    lowered = [lower_linear(spec, has_warpgroups=has_warpgroups) for spec in specs]
    for spec, launches in zip(specs, in_one_program(lowered), strict=True):
        assert len(launches.steps) == 1
        check_epilogue(matrix(name, spec.outputs, spec.inputs), spec, launches, seeds, has_warpgroups)


@pytest.mark.parametrize("name", sample(SCHEMES, "f32", "int8", "int4-g128-asym"))
def test_every_epilogue(name):
    """Of outputs that are cut, of several blocks, and with a bias."""
    activations = "int8" if name == "int8" else "f32"
    check_all(
        name,
        [
            spec_of(name, rows, 112, 384, epilogue=epilogue, has_bias=rows == 1, activations=activations)
            for rows, epilogue in product((1, 5), EPILOGUES)
        ],
        seeds=(0, 1),
    )


@pytest.mark.parametrize("name", ["bf16", "int4-g128"])
def test_outputs_that_are_cut(name):
    check_all(name, [spec_of(name, 8, 48 if e.gate else 45, 256, epilogue=e) for e in EPILOGUES])


@pytest.mark.parametrize("name", ["int4-g32", "fp8-b128", "bf16", "lut3-g32"])
@pytest.mark.parametrize("outputs", [2080, 8208])
def test_many_outputs(name, outputs):
    """Warps of 32 outputs, blocks of several warps and of scales, whole tiles."""
    check_all(name, [spec_of(name, 3, outputs, 128, epilogue=epilogue) for epilogue in (GATED, SCALED)])


@pytest.mark.parametrize("shape", sample([(48, 512), (336, 1000), (96, 4112), (150, 640), (5, 512)]))
@pytest.mark.parametrize("name", ["bf16", "fp8", "fp8-e5m2"])
def test_one_row_on_all_multiprocessors(name, shape, monkeypatch):
    """Of outputs that a block has in turn, with inputs behind the last whole tile."""
    monkeypatch.setattr(gemv_row, "MULTIPROCESSORS", 4)
    specs = [
        spec_of(name, 1, *shape, epilogue=epilogue, activations="bf16", has_bias=number % 2 == 0)
        for number, epilogue in enumerate((Epilogue(), *EPILOGUES))
        if not epilogue.gate or shape[0] % 16 == 0
    ]
    assert all(map(suits_rows, specs))
    check_all(name, specs, seeds=(0, 1), has_warpgroups=True)


@pytest.mark.parametrize("name", sample(BY_INTEGERS))
def test_products_of_integers(name, monkeypatch):
    monkeypatch.setattr("cuda_linear.ROUNDED", {"INT8": int8_of_integers, "BF16": int16_of_integers})
    shapes = ((304, 1408), (48, 256))
    specs = [
        spec_of(name, 1, *shape, epilogue=epilogue, activations="int8", has_bias=True)
        for shape, epilogue in product(shapes, EPILOGUES)
    ]
    assert all(map(suits_integers, specs))
    check_all(name, specs, seeds=(0, 1), has_warpgroups=True)


def int8_of_integers(x):
    return integers_of(x, 127)


def int16_of_integers(x):
    return integers_of(x, 32512)


def integers_of(x, most):
    """Return f32 numbers rounded to integers by blocks of 32, as f64."""
    blocks = x.reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    codes = np.rint(blocks * (np.float32(most) / largest)).astype(np.float64)
    return (codes * (largest / np.float32(most)).astype(np.float64)).reshape(x.shape)


def test_who_takes_one():
    """Norms: GEMVs, but those whose rounding depends on the norm. Gates: halves of whole matrix instructions, and of
    GEMMs those whose weights are multiplied as they are stored."""
    assert spec_of("int4-g32", 8, 112, 64).takes_norm
    assert not spec_of("int4-g32", 9, 112, 64).takes_norm
    assert not spec_of("fp8", 1, 112, 64, activations="mxfp8").takes_norm
    found = [takes_gate(spec_of("int4-g32", 8, outputs, 64), has_warpgroups=True) for outputs in (111, 112, 120)]
    assert found == [False, True, False]
    gated = {
        True: {("bf16", "bf16"), ("bf16", "f32"), ("fp8", "fp8")},
        False: {("bf16", "bf16"), ("bf16", "f32"), ("int8", "int8"), ("fp8", "mxfp8")},
    }
    others = {("fp8", "bf16"), ("int8", "bf16"), ("int4-g32", "int8")}
    for has_warpgroups, those in gated.items():
        every = gated[True] | gated[False] | others
        specs = {(name, kind): spec_of(name, 9, 112, 64, activations=kind) for name, kind in every}
        assert those == {case for case, spec in specs.items() if takes_gate(spec, has_warpgroups=has_warpgroups)}
