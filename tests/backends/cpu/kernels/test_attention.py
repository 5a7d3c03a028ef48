"""The kernels of the cache against float64 numpy, on every instruction set that this machine runs or emulates."""

import platform

import ml_dtypes
import numpy as np
import pytest
from kernel_machine import KERNEL_ISAS, machine_of
from long_runs import sample

from pyc.backends.cpu.constants import TILE_TOKENS
from pyc.backends.cpu.isa import ISAS
from pyc.backends.cpu.kernels.attention import AppendSpec, AttentionSpec, CacheSpec
from pyc.runtime.artifact.format import KvCache
from pyc.runtime.executors.cpu.kv_cache import head_bytes
from pyc.runtime.executors.cpu.prefix import packed_prefix

TABLE = 37
LAST = range(2300, 2350)  # five stretches of 512 positions, and a last block that is not full
SPECS = (
    CacheSpec(4, 2, 32, TABLE, 0, "f16", 32**-0.5),
    CacheSpec(6, 2, 20, TABLE, 0, "f32", 20**-0.5),  # a group of 3, a head that no vector divides
    CacheSpec(3, 3, 5, TABLE, 9, "f16", 0.3),  # an odd head, a window within a block
    CacheSpec(8, 1, 128, TABLE, 200, "f32", 128**-0.5),
    CacheSpec(4, 2, 32, TABLE, 0, "f16", 32**-0.5, rounded=True),
    CacheSpec(7, 1, 24, TABLE, 100, "f16", 24**-0.5, rounded=True),
    CacheSpec(4, 2, 64, TABLE, 0, "int8", 0.125),
    CacheSpec(3, 3, 5, TABLE, 70, "int8", 0.3),
    CacheSpec(4, 2, 64, TABLE, 0, "fp8", 0.125),
    CacheSpec(3, 1, 20, TABLE, 70, "fp8", 0.3),
)
APPENDS = tuple(
    AppendSpec(spec, half, has_gain=gain, epsilon=1e-6 if gain else 0.0)
    for spec, half, gain in zip(SPECS, (16, 10, 2, 32, 16, 6, 32, 1, 32, 4), (True, False) * 5, strict=True)
)
KERNELS = (*map(AttentionSpec, SPECS), *APPENDS)
EMULATED = sample(SPECS, *(SPECS[index] for index in (1, 2, 5, 6, 9)))
"""Caches of each kind, with and without windows and rounding: a kernel takes seconds under emulation."""
BY_AMX = tuple(AttentionSpec(spec, amx=True) for spec in SPECS)
UNIT = 2.0**-24
STEP = {"f32": 1, "f16": 1, "bf16": 2, "int8": 4, "fp8": 1}


@pytest.fixture(scope="module", params=KERNEL_ISAS)
def machine(request, tmp_path_factory):
    isa = ISAS[request.param]
    kernels = tuple(kernel for kernel in KERNELS if is_run(kernel.cache, isa))
    return machine_of(isa, (*kernels, *BY_AMX) if isa.has_amx else kernels, tmp_path_factory.mktemp(isa.name))


def is_run(cache, isa):
    return isa.arch == platform.machine() or cache in EMULATED


@pytest.fixture
def spec(request, machine):
    """A cache, or what appends to one, that is run on this machine."""
    if not is_run(getattr(request.param, "cache", request.param), machine.isa):
        pytest.skip("emulated, and in no sample: `make test-long` runs it")
    return request.param


def bf16(values):
    """Rounded to nearest even, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def codes(values):
    """int8 codes and scales of the last axis, as the cache has them."""
    largest = np.abs(values).max(-1, keepdims=True).astype(np.float32)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    return np.rint(values * inverse).astype(np.int64), largest / np.float32(127)


def floats(values):
    """e4m3 numbers of 8 bits and scales of the last axis, as the cache has them."""
    largest = np.abs(values).max(-1, keepdims=True).astype(np.float32)
    inverse = np.divide(np.float32(448), largest, out=np.zeros_like(largest), where=largest > 0)
    return (values * inverse).astype(ml_dtypes.float8_e4m3fn), largest / np.float32(448)


def kind_of(spec, isa):
    return "bf16" if spec.rounded and isa.name in ("avx512-bf16", "amx-bf16") else spec.dtype


def stored(values, kind):
    """What a cache of that kind keeps of values [..., d]."""
    if kind in ("int8", "fp8"):
        found, scales = codes(values) if kind == "int8" else floats(values)
        return found.astype(np.float64) * scales
    return {"f32": np.float32, "f16": np.float16, "bf16": bf16}[kind](values).astype(np.float64)


def pack(rows, kind, *, keys):
    """Rows [64, d] of one head as the bytes that docs/tensor-layouts.md describes."""
    step = STEP[kind]
    wide = np.zeros((64, -(-rows.shape[1] // 16) * 16), np.float32)
    wide[:, : rows.shape[1]] = rows
    scales = np.zeros(0, np.float32)
    if kind == "int8":
        found, scales = codes(wide)
        lanes = (found + 128).astype(np.uint8)
    elif kind == "fp8":
        found, scales = floats(wide)
        lanes = found.view(np.uint8)
    elif kind == "bf16":
        lanes = (bf16(wide).view(np.uint32) >> 16).astype(np.uint16)
    else:
        lanes = wide.astype(kind.replace("f", "float"))
    if keys:
        lanes = lanes.reshape(16, 4, -1, 4 * step).transpose(0, 2, 1, 3)
    else:
        lanes = lanes.reshape(64 // step, step, -1).transpose(0, 2, 1)
    return np.frombuffer(np.ascontiguousarray(lanes).tobytes() + scales.tobytes(), np.uint8)


class Case:
    """Two interleaved sequences, and queries at the ends of them with padding rows among them."""

    def __init__(self, spec, isa):
        draw = np.random.default_rng(7)
        self.spec, self.kind = spec, kind_of(spec, isa)
        shape = (2, TABLE * 64, spec.kv_heads, spec.head_dim)
        self.keys = draw.standard_normal(shape).astype(np.float32)
        self.values = draw.standard_normal(shape).astype(np.float32)
        self.table = draw.permutation(2 * TABLE).astype(np.int32).reshape(2, TABLE)
        size = head_bytes(KvCache(1, spec.kv_heads, spec.head_dim, spec.dtype, 64))
        self.cache = np.zeros((2 * TABLE, 2, spec.kv_heads, size), np.uint8)
        for sequence in range(2):
            self.fill(range(TABLE), sequence)
        self.positions = np.array(
            [*LAST, -1, 0, 1, 15, 16, 62, 63, 64, -1, -1, 1023, 1024, *range(100, 140)], np.int32
        )
        self.sequences = np.array([0] * 50 + [0] + [1] * 7 + [0, 0] + [1, 0] + [1] * 40, np.int32)
        shape = (len(self.positions), spec.heads * spec.head_dim)
        self.queries = (2 * draw.standard_normal(shape)).astype(np.float32)

    def fill(self, blocks, sequence):
        """Put keys and values of a sequence into the cache."""
        for block in blocks:
            for which, rows in enumerate((self.keys, self.values)):
                for head in range(self.spec.kv_heads):
                    part = rows[sequence, block * 64 : block * 64 + 64, head]
                    packed = pack(part, self.kind, keys=which == 0)
                    self.cache[self.table[sequence, block], which, head] = packed

    def run(self, machine, rows, parts=1, threads=1):
        queries = self.queries[rows].copy()
        y = np.full_like(queries, np.nan)
        arrays = [queries, self.positions[rows].copy(), self.sequences[rows].copy(), self.table, self.cache, y]
        symbol = AttentionSpec(self.spec, amx=machine.isa.has_amx and len(queries) >= TILE_TOKENS).symbol
        machine.call(symbol, arrays, [len(queries), threads, 0, parts], parts)
        return y

    def rounded(self, query, amx):
        """A query as the kernel multiplies it."""
        if amx or self.kind in ("bf16", "int8"):
            return stored(query, "bf16" if amx else self.kind)
        return query.astype(np.float64)

    def expected(self, amx=False):
        """The attention of the stored numbers, and a bound of the error of each result. The tile unit rounds queries to
        bf16 beside int8 and fp8, too."""
        spec = self.spec
        result, bound = np.zeros(self.queries.shape), np.zeros(self.queries.shape)
        keys, values = stored(self.keys, self.kind), stored(self.values, self.kind)
        for row, (position, sequence) in enumerate(zip(self.positions, self.sequences, strict=True)):
            if position < 0:
                continue
            start = max(0, position - spec.window + 1) if spec.window else 0
            seen = slice(start, position + 1)
            for head in range(spec.heads):
                features = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
                kv_head = head // (spec.heads // spec.kv_heads)
                query = self.rounded(self.queries[row, features], amx)
                scores = keys[sequence, seen, kv_head] @ query * spec.scale
                weights = np.exp(scores - scores.max())
                value = values[sequence, seen, kv_head]
                result[row, features] = weights / weights.sum() @ value
                # Scores have d roundings of the magnitudes that they add, e^x 2e-7, sums one for each position.
                magnitude = np.abs(keys[sequence, seen, kv_head]) @ np.abs(query) * spec.scale
                relative = 2 * ((spec.head_dim + 8) * UNIT * magnitude.max() + 4e-7 + len(scores) * UNIT)
                error = relative * (weights @ np.abs(value))
                if self.kind == "bf16" or amx:  # a weight is rounded to 8 bits
                    error += 2.0**-8 * (weights @ np.abs(value))
                elif self.kind == "int8":  # weights times scales of values are rounded to 127ths of a block's largest
                    scale = codes(self.values[sequence, seen, kv_head])[1][:, 0].astype(np.float64)
                    for block in range(start // 64, position // 64 + 1):
                        inside = np.arange(start, position + 1) // 64 == block
                        largest = (weights * scale)[inside].max()
                        error += 1.001 * largest / 254 * np.abs(value[inside] / scale[inside, None]).sum(0)
                bound[row, features] = error / weights.sum()
        return result, bound


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name, indirect=True)
def test_against_float64(machine, spec):
    case = Case(spec, machine.isa)
    wanted, bound = case.expected()
    found = case.run(machine, slice(None))
    assert np.abs(found[case.positions < 0]).max() == 0
    error = found - wanted
    worst = np.abs(error) / np.maximum(bound, 1e-30)
    if machine.isa.has_amx and case.kind in ("int8", "fp8"):
        wanted, bound = case.expected(amx=True)
        by_amx = np.abs(found - wanted) / np.maximum(bound, 1e-30)
        together = slice(0, 50)  # rows that attend together; few others do
        assert by_amx[together].max() <= 1
        error[together], worst = (found - wanted)[together], np.minimum(worst, by_amx)
    assert worst.max() <= 1, (worst.max(), np.unravel_index(worst.argmax(), worst.shape))
    # Bounds add up worst cases; what they bound is random, and small.
    assert error.std() < 0.02 * wanted.std()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name, indirect=True)
def test_a_row_does_not_depend_on_its_batch_or_on_the_parts(machine, spec):
    case = Case(spec, machine.isa)
    whole = case.run(machine, slice(None))
    rows = range(0, len(case.positions), 45 if machine.emulated else 1)
    for parts in (3,) if machine.emulated else (2, 3, 7, 32):
        assert np.array_equal(whole, case.run(machine, slice(None), parts))
    by_amx = machine.isa.has_amx and case.kind in ("bf16", "int8", "fp8")
    if by_amx:  # alone it is summed by vectors: right, but other bits
        wanted, bound = case.expected()
        alone = np.concatenate([case.run(machine, slice(row, row + 1)) for row in rows])
        assert (np.abs(alone - wanted) <= bound + 1e-30).all()
    else:
        for row in rows:
            assert np.array_equal(whole[row : row + 1], case.run(machine, slice(row, row + 1))), row
    some = slice(3, 50 if by_amx else 20)
    assert np.array_equal(whole[some], case.run(machine, some))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name, indirect=True)
def test_heads_of_sequences_decoded_together_do_not_matter_to_each_other(machine, spec):
    """A thread takes its heads of a token together: as many as it has, one where there are as many threads."""
    case = Case(spec, machine.isa)
    rows = np.array([49, 99, 58, 10, 60])  # long, short, padding, and the same sequences again
    alone = np.concatenate([case.run(machine, slice(row, row + 1), threads=spec.kv_heads) for row in rows])
    shared = ((1, 1), (2, 3), (1, 64), (2, 64), (3, 64), (64, 64))
    for threads, parts in shared[:2] if machine.emulated else shared:
        assert np.array_equal(alone, case.run(machine, rows, parts, threads)), (threads, parts)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name, indirect=True)
def test_stretches_that_threads_share_give_what_one_thread_does(machine, spec):
    """Where threads do not divide the heads, who attended to the last stretch of a unit merges all of them."""
    case = Case(spec, machine.isa)
    for rows in (slice(34, 50), slice(49, 50), np.array([49, 99, 48, 50, 69, 68])):  # the second: a token
        alone = case.run(machine, rows, threads=spec.kv_heads)
        for parts in (5,) if machine.emulated else (1, 2, 5, 64):
            for threads in (spec.kv_heads + 1, 64):
                assert np.array_equal(alone, case.run(machine, rows, parts, threads)), (rows, threads, parts)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name, indirect=True)
def test_what_lies_behind_a_sequence_does_not_matter(machine, spec):
    """Blocks are used again: what another sequence left there, numbers or NaN, is nobody's."""
    case = Case(spec, machine.isa)
    clean = case.run(machine, slice(None))
    for sequence in range(2):
        after = case.positions[case.sequences == sequence].max() + 1
        for rows in (case.keys, case.values):
            rows[sequence, after:] = 7 if case.kind in ("int8", "fp8") else np.nan
        case.fill(range(after // 64, TABLE), sequence)
        for block in range(after // 64, TABLE) if case.kind in ("int8", "fp8") else ():
            if case.kind == "fp8" and block > after // 64:
                case.cache[case.table[sequence, block]] = 0x7F  # a NaN of e4m3
            scales = case.cache[case.table[sequence, block]][..., -256:].view(np.uint32)
            scales[..., max(0, after - 64 * block) :] = 0x7FC00055  # a NaN, and no small integer's bits
    assert np.array_equal(case.run(machine, slice(None)), clean)


@pytest.mark.parametrize("spec", APPENDS, ids=lambda spec: spec.symbol, indirect=True)
def test_append(machine, spec):
    """Rotated queries, and a cache that has what a single pass in float64 would put there."""
    cache, draw = spec.cache, np.random.default_rng(8)
    heads, kv_heads, d, half = cache.heads, cache.kv_heads, cache.head_dim, spec.half
    positions = np.array([*range(50, 120), -1, 3, 200, 201], np.int32)
    sequences = np.array([0] * 70 + [0, 1, 1, 1], np.int32)
    table = draw.permutation(2 * TABLE).astype(np.int32).reshape(2, TABLE)
    m = len(positions)
    qkv = draw.standard_normal((m, (heads + 2 * kv_heads) * d)).astype(np.float32)
    angles = np.hstack([np.cos(t := draw.uniform(0, 6, (m, half))), np.sin(t)]).astype(np.float32)
    gains = [draw.uniform(0.5, 2, d).astype(np.float32) for _ in range(2)] if spec.has_gain else []
    size = head_bytes(KvCache(1, kv_heads, d, cache.dtype, 64))
    kind = kind_of(cache, machine.isa)
    blank = 128 if kind == "int8" else 0
    memory = np.full((2 * TABLE, 2, kv_heads, size), blank, np.uint8)
    queries = np.full((m, heads * d), np.nan, np.float32)
    # Some tokens together and some alone, where the heads are the parts.
    for start, stop in ((0, 40), (40, 41), (41, m - 3), (m - 3, m)):
        few = [array[start:stop] for array in (qkv, angles, positions, sequences)]
        for part in range(3):
            machine.call(spec.symbol, [*few, table, *gains, memory, queries[start:stop]], [stop - start, part, 3])

    split = qkv.astype(np.float64).reshape(m, -1, d)
    prepared = split[:, : heads + kv_heads].copy()
    if spec.has_gain:
        prepared /= np.sqrt((prepared**2).mean(-1, keepdims=True) + spec.epsilon)
        prepared[:, :heads] *= gains[0]
        prepared[:, heads:] *= gains[1]
    x, y = prepared[..., :half].copy(), prepared[..., half : 2 * half].copy()
    cosine, sine = angles[:, None, :half].astype(np.float64), angles[:, None, half:].astype(np.float64)
    prepared[..., :half], prepared[..., half : 2 * half] = x * cosine - y * sine, y * cosine + x * sine
    # A norm's d + 5 roundings, and three of a rotation, of numbers below 10.
    tolerance = 10 * (d + 8) * UNIT
    np.testing.assert_allclose(queries.reshape(m, heads, d), prepared[:, :heads], rtol=0, atol=tolerance)

    unit = {"f32": 0, "f16": 2.0**-11, "bf16": 2.0**-8, "int8": 0, "fp8": 1.001 / 16}[kind]
    for row in np.flatnonzero(positions >= 0):
        block, slot = table[sequences[row], positions[row] // 64], positions[row] % 64
        for head in range(kv_heads):
            for which, wanted in enumerate((prepared[row, heads + head], split[row, heads + kv_heads + head])):
                found = unpack(memory[block, which, head], kind, d, keys=which == 0)[slot]
                step = np.abs(wanted).max() * {"int8": 1 / 254, "fp8": 2.0**-10 / 448}.get(kind, 0)
                bound = tolerance + unit * np.abs(wanted) + 1.001 * step
                assert (np.abs(found - wanted) <= bound).all(), (row, head, which)
    written = np.unique(table[sequences, positions // 64][positions >= 0])
    others = np.setdiff1d(np.arange(2 * TABLE), written)
    assert (memory[others] == blank).all()


def unpack(data, kind, d, *, keys):
    """The inverse of `pack`: [64, d]."""
    step = STEP[kind]
    padded = -(-d // 16) * 16
    lanes = data[: 64 * padded] if kind in ("int8", "fp8") else data
    if kind == "bf16":
        lanes = (lanes.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif kind == "fp8":
        lanes = lanes.view(ml_dtypes.float8_e4m3fn)
    elif kind != "int8":
        lanes = lanes.view(kind.replace("f", "float"))
    wide = lanes.astype(np.float64)
    if keys:
        rows = wide.reshape(16, -1, 4, 4 * step).transpose(0, 2, 1, 3).reshape(64, padded)
    else:
        rows = wide.reshape(64 // step, padded, step).transpose(0, 2, 1).reshape(64, padded)
    if kind in ("int8", "fp8"):
        rows = (rows - (128 if kind == "int8" else 0)) * data[64 * padded :].view(np.float32)[:, None]
    return rows[:, :d]


@pytest.mark.parametrize("kind", list(STEP))
@pytest.mark.parametrize("tokens", [1, 64, 70])
def test_virtual_tokens_have_the_bytes_of_appended_ones(kind, tokens):
    """`pack` gives those that kernels append and read above."""
    layers, heads, head_dim = 2, 3, 20
    prefix = np.random.default_rng(tokens).standard_normal((layers, 2, heads, tokens, head_dim)).astype(np.float32)
    prefix[1, 0, 1, 0] = 0  # a key without a scale
    cache = KvCache(layers, heads, head_dim, "f16" if kind == "bf16" else kind, 64)
    found = packed_prefix(prefix, cache, kind)
    blocks = -(-tokens // 64)
    whole = np.zeros((layers, 2, heads, blocks * 64, head_dim), np.float32)
    whole[:, :, :, :tokens] = prefix
    for layer in range(layers):
        assert found[layer].shape == (blocks, 2, heads, head_bytes(cache))
        for block, which, head in np.ndindex(blocks, 2, heads):
            rows = whole[layer, which, head, block * 64 : block * 64 + 64]
            assert np.array_equal(found[layer][block, which, head], pack(rows, kind, keys=which == 0))
