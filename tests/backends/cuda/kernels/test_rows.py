"""Kernels over rows against float64, at widths that are and are not whole vectors, in several orders of threads."""

import numpy as np
import pytest
from cuda_emulation import preload, run_kernel, same_in_every_order

from pyc.backends.cuda.archs import find_arch
from pyc.backends.cuda.kernels.rows import (
    ActivationSpec,
    AddRowSpec,
    AddSpec,
    ConcatSpec,
    GatedPairSpec,
    GatedSpec,
    NormSpec,
    PoolSpec,
    RopeAnglesSpec,
    SelectRowSpec,
    SliceSpec,
    lower_activation,
    lower_add,
    lower_add_row,
    lower_concat,
    lower_gated,
    lower_gated_pair,
    lower_norm,
    lower_pool,
    lower_rope_angles,
    lower_select_row,
    lower_slice,
)
from pyc.backends.cuda.toolchain.cubin import kernels_of
from pyc.backends.cuda.toolchain.nvrtc import compile_kernels
from pyc.compiler.interpret import activated
from pyc.compiler.operators import ACTIVATIONS

EPSILON = 2.0**-24  # half a unit in the last place of f32, relative

NORMS = [
    NormSpec("rms", 3, 64, 1e-5, has_gain=True, adds=False),
    NormSpec("rms", 1, 2049, 1e-6, has_gain=False, adds=True),
    NormSpec("layer", 2, 384, 1e-12, has_gain=True, adds=True),
    NormSpec("layer", 2, 37, 1e-5, has_gain=True, adds=False),
    NormSpec("rms", 2, 8192, 1e-5, has_gain=True, adds=True),
]
WIDTHS = [(3, 20), (5, 33), (2, 2048)]
ADDS = [AddSpec(*shape) for shape in WIDTHS]
ADD_ROWS = [AddRowSpec(*shape, index=1) for shape in WIDTHS]
CONCATS = [ConcatSpec(3, 8, 12), ConcatSpec(2, 7, 4)]
SLICES = [SliceSpec(3, 24, 8, 20), SliceSpec(2, 24, 9, 20), SliceSpec(2, 15, 0, 15)]
FUNCTIONS = [ActivationSpec(2, 300, function) for function in ACTIVATIONS]
GATES = [GatedSpec(3, 40, "silu"), GatedSpec(1, 33, "gelu_tanh")]
PAIRS = [GatedPairSpec(3, 40, "gelu"), GatedPairSpec(2, 33, "relu2")]
SELECTS = [SelectRowSpec(5, 36, "f32"), SelectRowSpec(7, 1, "i32")]
ANGLES = [
    RopeAnglesSpec(5, 32, scale=1.0, base=1e4, factor=1.0, original_context=0, dynamic=False),
    RopeAnglesSpec(5, 12, scale=1.25, base=1e4, factor=2.0, original_context=64, dynamic=True),
]
POOLS = [
    PoolSpec(9, 3, 40, "mean", normalize=True),
    PoolSpec(9, 3, 35, "cls", normalize=False),
    PoolSpec(9, 3, 40, "cls", normalize=True),
]
LOWERED = [
    *map(lower_norm, NORMS),
    *map(lower_add, ADDS),
    *map(lower_add_row, ADD_ROWS),
    *map(lower_concat, CONCATS),
    *map(lower_slice, SLICES),
    *map(lower_activation, FUNCTIONS),
    *map(lower_gated, GATES),
    *map(lower_gated_pair, PAIRS),
    *map(lower_select_row, SELECTS),
    *map(lower_rope_angles, ANGLES),
    *map(lower_pool, POOLS),
]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    preload(LOWERED)


@pytest.fixture
def random():
    return np.random.default_rng(7)


def draw(random, *shape):
    return random.standard_normal(shape, np.float32)


def made(lowered, arrays, shape, dtype=np.float32, name="result"):
    """The result, which does not depend on the order of threads."""
    return same_in_every_order(lowered, arrays, {name: (shape, dtype)})[name]


@pytest.mark.parametrize("spec", NORMS, ids=str)
def test_norm(random, spec):
    shape = (spec.rows, spec.features)
    arrays = {"x": draw(random, *shape) + 1}
    total = arrays["x"]
    if spec.adds:
        arrays["addend"] = draw(random, *shape)
        total = total + arrays["addend"]
    if spec.has_gain:
        arrays["gain"] = draw(random, spec.features)
    if spec.kind == "layer":
        arrays["bias"] = draw(random, spec.features)
    results = {"result": (shape, np.float32)} | ({"total": (shape, np.float32)} if spec.adds else {})
    found = run_kernel(lower_norm(spec), arrays, results, seed=3)
    if spec.adds:
        np.testing.assert_array_equal(found["total"], total)
    values = total.astype(np.float64)
    centred = values - values.mean(1, keepdims=True) if spec.kind == "layer" else values
    root = np.sqrt((centred**2).mean(1, keepdims=True) + spec.epsilon)
    expected = centred / root * arrays.get("gain", 1) + arrays.get("bias", 0)
    # The sum's error is that of as many additions as a thread does, and those of its warp and block; that of the mean
    # counts by how much larger numbers are than their spread.
    steps = spec.features / lower_norm(spec).steps[0].kernel.threads + 16
    bound = steps * EPSILON * (np.abs(values).max() / root.min() + np.abs(centred / root).max())
    assert np.abs(found["result"] - expected).max() <= bound * np.abs(arrays.get("gain", np.ones(1))).max() + EPSILON


@pytest.mark.parametrize("spec", ADDS, ids=str)
def test_add(random, spec):
    arrays = {name: draw(random, spec.rows, spec.features) for name in ("x", "addend")}
    result = made(lower_add(spec), arrays, (spec.rows, spec.features))
    np.testing.assert_array_equal(result, arrays["x"] + arrays["addend"])


@pytest.mark.parametrize("spec", ADD_ROWS, ids=str)
def test_add_row(random, spec):
    arrays = {"x": draw(random, spec.rows, spec.features), "table": draw(random, 3, spec.features)}
    result = made(lower_add_row(spec), arrays, (spec.rows, spec.features))
    np.testing.assert_array_equal(result, arrays["x"] + arrays["table"][1])


@pytest.mark.parametrize("spec", CONCATS, ids=str)
def test_concat(random, spec):
    arrays = {"left": draw(random, spec.rows, spec.left), "right": draw(random, spec.rows, spec.right)}
    result = made(lower_concat(spec), arrays, (spec.rows, spec.left + spec.right))
    np.testing.assert_array_equal(result, np.concatenate([arrays["left"], arrays["right"]], 1))


@pytest.mark.parametrize("spec", SLICES, ids=str)
def test_slice(random, spec):
    x = draw(random, spec.rows, spec.features)
    result = made(lower_slice(spec), {"x": x}, (spec.rows, spec.stop - spec.start))
    np.testing.assert_array_equal(result, x[:, spec.start : spec.stop])


def bound_of(x):
    """Five roundings and a function of the device's library (2 ulp) of numbers up to the cube of x."""
    return 16 * EPSILON * np.maximum(1, np.abs(x) ** 2)


@pytest.mark.parametrize("spec", FUNCTIONS, ids=str)
def test_activation(random, spec):
    x = draw(random, spec.rows, spec.features) * 4
    x[0, :2] = -100, 100
    result = made(lower_activation(spec), {"x": x}, x.shape)
    assert (np.abs(result - activated(spec.function, x.astype(np.float64))) <= bound_of(x)).all()


@pytest.mark.parametrize("spec", GATES, ids=str)
def test_gated(random, spec):
    gate, up = draw(random, spec.rows, spec.features), draw(random, spec.rows, spec.features)
    result = made(lower_gated(spec), {"gate": gate, "up": up}, gate.shape)
    expected = activated(spec.function, gate.astype(np.float64)) * up
    assert (np.abs(result - expected) <= bound_of(gate) * np.maximum(1, np.abs(up))).all()


@pytest.mark.parametrize("spec", PAIRS, ids=str)
def test_gated_pair(random, spec):
    x = draw(random, spec.rows, 2 * spec.features)
    result = made(lower_gated_pair(spec), {"x": x}, (spec.rows, spec.features))
    gate, up = np.split(x.astype(np.float64), 2, 1)
    bound = bound_of(gate) * np.maximum(1, np.abs(up))
    assert (np.abs(result - activated(spec.function, gate) * up) <= bound).all()


@pytest.mark.parametrize("spec", SELECTS, ids=str)
@pytest.mark.parametrize(("row", "nearest"), [(2, 2), (-1, 0), (100, -1)])
def test_select_row(random, spec, row, nearest):
    x = random.integers(-(2**31), 2**31 - 1, (spec.rows, spec.features), np.int32)
    x = x if spec.dtype == "i32" else x.astype(np.float32)
    result = made(lower_select_row(spec), {"x": x, "row": np.array([row], np.int32)}, (1, spec.features), x.dtype)
    np.testing.assert_array_equal(result[0], x[nearest])


@pytest.mark.parametrize("spec", ANGLES, ids=str)
def test_rope_angles(spec):
    half = spec.rotary // 2
    frequencies = (spec.base ** (-np.arange(half) / half)).astype(np.float32)
    positions = np.array([-1, 0, 63, 64, 40000], np.int32)
    arrays = {"positions": positions, "inverse_frequencies": frequencies}
    result = made(lower_rope_angles(spec), arrays, (spec.rows, spec.rotary))
    for row, position in enumerate(np.maximum(positions, 0)):
        turned = frequencies.astype(np.float64)
        if spec.dynamic and position >= spec.original_context:
            growth = spec.factor * (position + 1) / spec.original_context - (spec.factor - 1)
            turned = (spec.base * growth ** (spec.rotary / (spec.rotary - 2))) ** (-np.arange(half) / half)
        angle = position * turned
        expected = spec.scale * np.concatenate([np.cos(angle), np.sin(angle)])
        bound = spec.scale * (4 * EPSILON + np.tile(angle, 2) * 2 * EPSILON)  # the frequency and the angle are rounded
        assert (np.abs(result[row] - expected) <= bound).all()


@pytest.mark.parametrize("spec", POOLS, ids=str)
def test_pool(random, spec):
    x = draw(random, spec.rows, spec.features)
    starts, ends = np.array([0, 4, 0], np.int32), np.array([4, 9, 0], np.int32)
    arrays = {"x": x, "seq_start": starts, "seq_end": ends}
    result = made(lower_pool(spec), arrays, (spec.sequences, spec.features))
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        seen = x[start:end].astype(np.float64)
        expected = np.zeros(spec.features) if start == end else seen[0] if spec.mode == "cls" else seen.mean(0)
        if spec.normalize and start < end:
            expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(result[row], expected, atol=32 * EPSILON * np.abs(x).max())


def test_nvrtc_compiles_them_without_spills():
    sources = {step.kernel.symbol: step.kernel.source for one in LOWERED for step in one.steps}
    cubin = compile_kernels(list(sources.values()), find_arch("sm_80"))
    usage = kernels_of(cubin)
    assert usage.keys() == sources.keys()
    spilled = {name for name, kernel in usage.items() if kernel.local_bytes}
    assert all(name.startswith("rope_angles") for name in spilled), spilled  # of large angles' reduction
