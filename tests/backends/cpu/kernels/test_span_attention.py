"""Attention over the spans of a batch against float64 numpy, on every instruction set of this machine or emulated."""

import numpy as np
import pytest
from kernel_machine import KERNEL_ISAS, machine_of
from long_runs import IS_LONG

from pyc.backends.cpu.isa import ISAS
from pyc.backends.cpu.kernels.attention import VarlenAttentionSpec

SPECS = (
    VarlenAttentionSpec(3, 32, 32**-0.5),
    VarlenAttentionSpec(2, 64, 0.125),
    VarlenAttentionSpec(2, 20, 0.3),  # a head that no vector divides
    VarlenAttentionSpec(1, 5, 0.5),
)
LENGTHS = (1, 7, 16, 17, 64, 65, 0, 100, 200, 1100)  # units of 96 rows, blocks of 64, stretches of 512; 0: padding
FEWER = LENGTHS if IS_LONG else (*LENGTHS[:-1], 530)  # two stretches, where a kernel is emulated
UNIT = 2.0**-24


@pytest.fixture(scope="module", params=KERNEL_ISAS)
def machine(request, tmp_path_factory):
    return machine_of(ISAS[request.param], SPECS, tmp_path_factory.mktemp(request.param))


def batch(lengths, padding=5):
    """Bounds of the spans of rows, one span after another; a length of 0 is `padding` rows that see nothing."""
    start, end = [], []
    for length in lengths:
        first = len(start)
        start += [first] * length if length else [0] * padding
        end += [first + length] * length if length else [0] * padding
    return np.array(start, np.int32), np.array(end, np.int32)


def run(machine, spec, qkv, bounds, parts=1):
    y = np.full((len(qkv), spec.heads * spec.head_dim), np.nan, np.float32)
    machine.call(spec.symbol, [qkv, *bounds, y], [len(qkv), 0, parts], parts)
    return y


def drawn(spec, rows):
    draw = np.random.default_rng(3)
    return (2 * draw.standard_normal((rows, 3 * spec.heads * spec.head_dim))).astype(np.float32)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.symbol)
def test_rows_attend_to_their_span(machine, spec):
    bounds = batch(FEWER if machine.emulated else LENGTHS)
    qkv = drawn(spec, len(bounds[0]))
    found = run(machine, spec, qkv, bounds, parts=3)
    q, k, v = (part.astype(np.float64).reshape(len(qkv), spec.heads, -1) for part in np.split(qkv, 3, axis=1))
    for row, (start, end) in enumerate(zip(*bounds, strict=True)):
        if start == end:
            assert not found[row].any()
            continue
        for head in range(spec.heads):
            keys, values = k[start:end, head], v[start:end, head]
            scores = keys @ q[row, head] * spec.scale
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            magnitude = (np.abs(keys) @ np.abs(q[row, head])).max() * spec.scale
            # Scores have d roundings of the magnitudes that they add, e^x 2e-7, sums one for each position.
            relative = 2 * ((spec.head_dim + 8) * UNIT * magnitude + 4e-7 + (end - start) * UNIT)
            features = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
            error = np.abs(found[row, features] - weights @ values)
            assert (error <= relative * (weights @ np.abs(values)) + 1e-30).all()


@pytest.mark.parametrize("spec", SPECS[:3], ids=lambda spec: spec.symbol)
def test_a_span_means_the_same_in_any_batch(machine, spec):
    bounds = batch(LENGTHS[:-1])
    qkv = drawn(spec, len(bounds[0]))
    found = run(machine, spec, qkv, bounds)
    assert np.array_equal(found, run(machine, spec, qkv, bounds, parts=32))
    for length in (7, 65, 200):
        rows = np.flatnonzero(bounds[1] - bounds[0] == length)
        alone = run(machine, spec, qkv[rows].copy(), batch([length]))
        assert np.array_equal(alone, found[rows])


def test_a_fault_stays_in_its_span(machine):
    spec = SPECS[0]
    bounds = batch((7, 20, 30))
    qkv = drawn(spec, 57)
    sound = run(machine, spec, qkv, bounds)
    qkv[10, -1] = np.nan  # a value of the last head
    found = run(machine, spec, qkv, bounds)
    faulty = np.isnan(found)
    assert faulty[7:27, -1].all()
    faulty[7:27, -1] = False
    assert not faulty.any()
    assert np.array_equal(found[:7], sound[:7])
    assert np.array_equal(found[27:], sound[27:])
