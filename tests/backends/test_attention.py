"""The attention kernel against a float64 softmax, on every instruction set that this machine runs."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from pyc.backends.isa import ISAS
from pyc.backends.kernels import AttentionSpec, compile_kernels
from pyc.backends.toolchain import Toolchain
from pyc.compiler.cache import cache_directory
from pyc.runtime.aligned import aligned_zeros
from pyc.runtime.cpu import cpu_features

SPECS = (
    AttentionSpec(4, 2, 32, 6, 0, "f16", 32**-0.5),
    AttentionSpec(6, 2, 20, 6, 0, "f32", 20**-0.5),  # a group of 3, a head that no vector divides
    AttentionSpec(3, 3, 5, 6, 9, "f16", 0.3),  # an odd head, a window within a block
    AttentionSpec(8, 1, 128, 6, 40, "f32", 128**-0.5),
)
NATIVE = [isa for isa in ISAS.values() if isa.arch == "x86_64" and set(isa.features) <= cpu_features()]
CONTEXT = 96


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    """A shared library with the kernels, for each instruction set."""
    toolchain = Toolchain(cache_directory())
    folder = tmp_path_factory.mktemp("attention")
    found = {}
    for isa in NATIVE:
        path = Path(folder) / f"{isa.name}.so"
        path.write_bytes(toolchain.link_shared([compile_kernels(SPECS, isa, toolchain)], isa, path.name))
        found[isa.name] = ctypes.CDLL(str(path))
    return found


class Case:
    """A cache of three interleaved sequences, and queries at the ends of them with a padding row among them."""

    def __init__(self, spec: AttentionSpec) -> None:
        draw = np.random.default_rng(7)
        self.spec = spec
        dtype = np.float16 if spec.cache_dtype == "f16" else np.float32
        self.keys = draw.standard_normal((3, CONTEXT, spec.kv_heads, spec.head_dim)).astype(dtype)
        self.values = draw.standard_normal((3, CONTEXT, spec.kv_heads, spec.head_dim)).astype(dtype)
        self.table = draw.permutation(18).astype(np.int32).reshape(3, 6)
        self.cache = aligned_zeros((18, 2, spec.kv_heads, spec.head_dim * 16), dtype)
        for sequence in range(3):
            for position in range(CONTEXT):
                block = self.cache[self.table[sequence, position // 16]]
                lanes = block[0].reshape(spec.kv_heads, spec.head_dim, 16)
                lanes[:, :, position % 16] = self.keys[sequence, position]
                rows = block[1].reshape(spec.kv_heads, 16, spec.head_dim)
                rows[:, position % 16] = self.values[sequence, position]
        steps = [(0, p) for p in range(19, 40)] + [(1, 95), (2, 0), (2, -1), (1, 5), (1, 6)]
        self.sequences = np.array([step[0] for step in steps], np.int32)
        self.positions = np.array([step[1] for step in steps], np.int32)
        self.queries = draw.standard_normal((len(steps), spec.heads * spec.head_dim)).astype(np.float32)

    def run(self, library: ctypes.CDLL, rows: slice, units: int | None = None) -> np.ndarray:
        """The kernel's result for `rows`, in one call or in calls of `units` units."""
        queries = np.ascontiguousarray(self.queries[rows])
        positions, sequences = (np.ascontiguousarray(a[rows]) for a in (self.positions, self.sequences))
        result = np.full_like(queries, np.nan)
        count = len(queries)
        total = self.spec.kv_heads * -(-count * (self.spec.heads // self.spec.kv_heads) // 32)
        step = units or total
        arrays = (queries, positions, sequences, self.table, self.cache, result)
        for start in range(0, total, step):
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
            numbers = [ctypes.c_int32(n) for n in (count, start, min(start + step, total))]
            assert getattr(library, self.spec.symbol)(*pointers, *numbers) == 0
        return result

    def expected(self) -> np.ndarray:
        """The same in float64, one row and head at a time."""
        spec = self.spec
        result = np.zeros(self.queries.shape)
        for row, (sequence, position) in enumerate(zip(self.sequences, self.positions, strict=True)):
            if position < 0:
                continue
            first = max(position - spec.window + 1, 0) if spec.window else 0
            seen = slice(first, position + 1)
            for head in range(spec.heads):
                features = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
                kv_head = head // (spec.heads // spec.kv_heads)
                keys = self.keys[sequence, seen, kv_head].astype(np.float64)
                scores = keys @ self.queries[row, features].astype(np.float64) * spec.scale
                weights = np.exp(scores - scores.max())
                values = self.values[sequence, seen, kv_head].astype(np.float64)
                result[row, features] = weights / weights.sum() @ values
        return result


@pytest.mark.parametrize("isa", [isa.name for isa in NATIVE])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.symbol)
def test_against_float64(isa, spec, libraries):
    case = Case(spec)
    result = case.run(libraries[isa], slice(None))
    # Scores of a few units carry d roundings of 2^-24 each, e^x 2e-7, sums of at most 96 weights: 1e-5 covers it
    # with a factor of five, and a misplaced position would show at 1e-1.
    np.testing.assert_allclose(result, case.expected(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("isa", [isa.name for isa in NATIVE])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.symbol)
def test_a_row_does_not_depend_on_its_batch_or_on_the_units(isa, spec, libraries):
    case = Case(spec)
    whole = case.run(libraries[isa], slice(None))
    assert np.array_equal(whole, case.run(libraries[isa], slice(None), units=1))
    for row in range(len(case.positions)):
        assert np.array_equal(whole[row : row + 1], case.run(libraries[isa], slice(row, row + 1))), row
