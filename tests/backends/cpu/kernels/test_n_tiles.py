"""Matmuls whose results another kernel takes up in N tiles, on libraries that fold: one kernel after the other."""

import numpy as np
import pytest
from kernel_machine import Machine, machine_of
from numpy.typing import NDArray

from pyc.backends.cpu.constants import FOLDED_TOKENS, INTERLEAVED_TOKENS
from pyc.backends.cpu.isa import ISAS
from pyc.backends.cpu.kernels.attention import AppendSpec, CacheSpec
from pyc.backends.cpu.kernels.linear import (
    GatedSpec,
    KernelSpec,
    LinearAppendSpec,
    QuantizeSpec,
)
from pyc.backends.cpu.layouts import panel_layout, quantized_row_bytes
from pyc.backends.cpu.packing import pack_rows, unpack_rows
from pyc.compiler.quantization import store_rows
from pyc.compiler.schemes import parse_scheme
from pyc.runtime.artifact.format import KvCache
from pyc.runtime.executors.cpu.kv_cache import head_bytes

FOLDING = [isa.name for isa in ISAS.values() if isa.gemm_strategy == "scale_folded"]


def linear(scheme: str, outputs: int, inputs: int, bias: bool = False) -> KernelSpec:
    return KernelSpec("linear", outputs, inputs, parse_scheme(scheme, "int8"), bias)


GATED = (
    GatedSpec(linear("int4-g32", 128, 96), "silu", "interleaved"),
    GatedSpec(linear("int4-g32", 192, 1120), "gelu_tanh", "interleaved"),  # two segments of a folded panel
    GatedSpec(linear("int8", 64, 80), "silu", "interleaved"),
)
APPEND = tuple(
    LinearAppendSpec(
        linear(scheme, (cache.heads + 2 * cache.kv_heads) * cache.head_dim, 64, bias),
        AppendSpec(cache, half, has_gain=gain, epsilon=1e-6 if gain else 0.0),
    )
    for scheme, cache, half, gain, bias in (
        ("int4-g32", CacheSpec(4, 2, 32, 9, 0, "f16", 0.2, rounded=True), 16, True, False),
        ("int4-g32", CacheSpec(3, 1, 48, 9, 0, "f32", 0.2), 8, False, True),
        ("int4-g32", CacheSpec(2, 2, 16, 9, 0, "int8", 0.2), 8, True, True),
        ("int8", CacheSpec(4, 2, 32, 9, 0, "f16", 0.2), 16, False, False),
        ("int8", CacheSpec(2, 1, 32, 9, 0, "fp8", 0.2), 16, True, False),
    )
)
DOWN = linear("int4-g32", 32, 64)
SPECS = (
    *GATED, *APPEND, DOWN, *[spec.matmul for spec in (*GATED, *APPEND)], *[spec.append for spec in APPEND],
    *[
        QuantizeSpec(inputs, row_format)
        for inputs in (64, 80, 96, 1120)
        for row_format in ("interleaved", "float_scale", "power_of_two")
    ],
)  # fmt: skip


@pytest.fixture(scope="module", params=FOLDING)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return machine_of(ISAS[request.param], SPECS, tmp_path_factory.mktemp(request.param))


def weights(spec: KernelSpec) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Panels, and the weights [N, K] that they stand for."""
    rows = np.random.default_rng(spec.outputs).standard_normal((spec.outputs, spec.inputs)).astype(np.float32)
    layout = panel_layout(spec.scheme, spec.inputs)
    panels = pack_rows(store_rows(rows, spec.scheme), layout)
    return panels, unpack_rows(panels, layout, spec.outputs).astype(np.float64)


def row_format_of(machine: Machine, x: NDArray[np.float32], spec: KernelSpec) -> NDArray[np.uint8]:
    assert spec.row_format is not None
    quantized = np.full((len(x), quantized_row_bytes(spec.inputs, spec.row_format)), 0xAA, np.uint8)
    machine.call(QuantizeSpec(spec.inputs, spec.row_format).symbol, [x, quantized], [len(x), 0, 1])
    return quantized


def interleaved(quantized: NDArray[np.uint8], blocks: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The numbers [m, 32 blocks] of interleaved rows (pyc_interleaved_rows.h), and the steps [m, blocks] they are
    rounded to."""
    room = quantized.shape[1] * INTERLEAVED_TOKENS
    found, steps = [], []
    for tile in quantized.reshape(-1, room)[:, : blocks * 320].reshape(-1, blocks, 320):
        codes = tile[:, :256].view(np.int8).reshape(blocks, 8, 32).astype(np.float64)
        starts = tile[:, 256:288].view(np.int32)
        np.testing.assert_array_equal(starts, -128 * codes.sum(axis=2))
        scale = np.exp2(tile[:, 288:].view(np.float32).astype(np.float64))
        found.append((codes * scale[:, :, None]).transpose(1, 0, 2).reshape(8, -1))
        steps.append(scale.T)
    return np.concatenate(found), np.concatenate(steps)


def gated(machine: Machine, spec: GatedSpec, x: NDArray[np.float32], parts: int) -> NDArray[np.uint8]:
    width = spec.matmul.outputs // 2
    out = np.zeros((len(x), quantized_row_bytes(width, spec.row_format)), np.uint8)
    arrays = [row_format_of(machine, x, spec.matmul), weights(spec.matmul)[0], out]
    machine.call(spec.symbol, arrays, [len(x), 0, parts], parts)
    return out


@pytest.mark.parametrize(("m", "parts"), [(FOLDED_TOKENS, 1), (136, 3), (520, 64)])
@pytest.mark.parametrize("spec", GATED, ids=lambda spec: spec.symbol)
def test_gated_matmuls_agree_with_float64(machine: Machine, spec: GatedSpec, m: int, parts: int) -> None:
    """Of the matmul's own sums, which test_kernels compares with float64."""
    x = 2 * np.random.default_rng(m).standard_normal((m, spec.matmul.inputs)).astype(np.float32)
    x[3] *= 20  # gates far from 0
    found, steps = interleaved(gated(machine, spec, x, parts), spec.matmul.outputs // 64)
    y = np.empty((m, spec.matmul.outputs), np.float32)
    machine.call(spec.matmul.symbol, [row_format_of(machine, x, spec.matmul), weights(spec.matmul)[0], y], [m, 0, 1])
    gate, value = np.split(y.astype(np.float64), 2, axis=1)
    inner = gate if spec.function == "silu" else 1.5957691216057308 * (gate + 0.044715 * gate**3)
    with np.errstate(over="ignore"):
        wanted = gate / (1 + np.exp(-inner)) * value
    # Half a step, and the activation in f32: 8 roundings of numbers up to the gate's, times the value.
    bound = 0.5 * np.repeat(steps, 32, axis=1) + 8 * 2.0**-24 * (np.abs(gate) + 1) * np.abs(value)
    assert (np.abs(found - wanted) <= bound).all()
    largest = np.abs(wanted).reshape(m, -1, 32).max(axis=2)
    assert (steps <= 2.01 * np.maximum(largest, 1e-28) / 127).all(), "no step is larger than it need be"


def test_a_fault_is_that_of_its_row_and_no_other(machine: Machine) -> None:
    """Infinity, NaN, and numbers too large for a step, in rows whose first block has none."""
    spec, m = GATED[0], 128
    x = np.random.default_rng(1).standard_normal((m, spec.matmul.inputs)).astype(np.float32)
    fine = gated(machine, spec, x, 1)
    x[17, 40], x[50, 5], x[127, 90] = np.nan, np.inf, 1e30
    x[90] *= 1e16  # finite activations whose gate times value is above 1e30
    y = {}
    for name, quantized in (("fine", fine), ("faulty", gated(machine, spec, x, 5))):
        y[name] = np.empty((m, DOWN.outputs), np.float32)
        machine.call(DOWN.symbol, [quantized, weights(DOWN)[0], y[name]], [m, 0, 1])
    faulty = [17, 50, 90, 127]
    assert np.isnan(y["faulty"][faulty]).all()
    others = np.setdiff1d(np.arange(m), faulty)
    np.testing.assert_array_equal(y["faulty"][others], y["fine"][others])
    assert np.isfinite(y["fine"]).all()


@pytest.mark.parametrize(("m", "parts"), [(FOLDED_TOKENS, 1), (139, 3), (300, 64)])
@pytest.mark.parametrize("spec", APPEND, ids=lambda spec: spec.symbol)
def test_appending_behind_a_matmul_is_one_after_the_other(
    machine: Machine, spec: LinearAppendSpec, m: int, parts: int
) -> None:
    draw, cache, matmul = np.random.default_rng(m), spec.append.cache, spec.matmul
    x = draw.standard_normal((m, matmul.inputs)).astype(np.float32)
    given = [row_format_of(machine, x, matmul), weights(matmul)[0]]
    if matmul.has_bias:
        given.append(draw.standard_normal(matmul.outputs).astype(np.float32))
    positions = np.concatenate([np.arange(m - 60) + 37, [-1, -1], np.arange(58)]).astype(np.int32)
    sequences = np.array([0] * (m - 60) + [1] * 60, np.int32)
    table = draw.permutation(2 * cache.table_width).astype(np.int32).reshape(2, -1)
    behind = [draw.standard_normal((m, 2 * spec.append.half)).astype(np.float32), positions, sequences, table]
    if spec.append.has_gain:
        behind += [draw.standard_normal(cache.head_dim).astype(np.float32) for _ in range(2)]
    size = head_bytes(KvCache(1, cache.kv_heads, cache.head_dim, cache.dtype, 64))
    found, wanted = (
        (np.full((table.size, 2, cache.kv_heads, size), 7, np.uint8),
         np.full((m, cache.heads * cache.head_dim), np.nan, np.float32)) for _ in range(2)
    )  # fmt: skip
    machine.call(spec.symbol, [*given, *behind, *found], [m, 0, parts], parts)
    y = np.empty((m, matmul.outputs), np.float32)
    machine.call(matmul.symbol, [*given, y], [m, 0, 1])
    machine.call(spec.append.symbol, [y, *behind, *wanted], [m, 0, 1])
    np.testing.assert_array_equal(found[1], wanted[1])
    assert np.isfinite(found[1]).all()
    np.testing.assert_array_equal(found[0], wanted[0])
    assert (found[0] != 7).any()
