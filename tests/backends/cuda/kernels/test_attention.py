"""Kernels of attention against float64, over what the cache holds, in several orders of threads and blocks."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cuda_emulation import preload, run_kernel, same_in_every_order

from pyc.backends.cuda.archs import find_arch
from pyc.backends.cuda.kernels import attention
from pyc.backends.cuda.kernels.attention import (
    BYTES_OF,
    AppendAttentionSpec,
    CachedAttentionSpec,
    QkvAppendSpec,
    SpanAttentionSpec,
    cache_head_bytes,
    lower_append_attention,
    lower_cached_attention,
    lower_qkv_append,
    lower_span_attention,
)
from pyc.backends.cuda.toolchain.cubin import kernels_of
from pyc.backends.cuda.toolchain.nvrtc import compile_kernels
from pyc.compiler.interpret import softmax

EPSILON = 2.0**-24
SCALED = ("int8", "fp8")
BLOCK = 64
TABLE = 4
BLOCKS = 17  # of the cache; the last is of nobody
POSITIONS = np.array([-1, 0, 70, 71, 72, 200, 255], np.int32)
SEQUENCES = np.array([0, 0, 1, 1, 1, 0, 1], np.int32)
BLOCK_TABLE = np.random.default_rng(1).permutation(BLOCKS - 1).astype(np.int32).reshape(4, TABLE)
# A batch of prompts and steps: one step, 31 rows from position 100 on, another step, 5 rows from the first on, padding.
MIXED_POSITIONS = np.array([200, *range(100, 131), 5, *range(5), -1, -1], np.int32)
MIXED_SEQUENCES = np.array([1, *[0] * 31, 2, *[3] * 5, 0, 0], np.int32)

APPENDS = [
    QkvAppendSpec(7, 4, 2, 32, 32, 1e-6, True, True, "f16", BLOCK, TABLE),
    QkvAppendSpec(7, 3, 3, 20, 12, 1e-6, False, True, "int8", BLOCK, TABLE),
    QkvAppendSpec(7, 2, 1, 128, 64, 1e-5, False, False, "bf16", BLOCK, TABLE),
    QkvAppendSpec(7, 2, 1, 160, 160, 1e-5, True, True, "f32", BLOCK, TABLE),
    QkvAppendSpec(7, 2, 1, 48, 48, 1e-5, False, True, "fp8", BLOCK, TABLE),
]
ATTENTIONS = [
    CachedAttentionSpec(7, 4, 2, 32, 0.2, 0, "f16", BLOCK, TABLE, 4),
    CachedAttentionSpec(7, 14, 1, 20, 0.2, 0, "int8", BLOCK, TABLE, 4),
    CachedAttentionSpec(7, 2, 1, 128, 0.1, 100, "bf16", BLOCK, TABLE, 4),
    CachedAttentionSpec(7, 1, 1, 160, 0.1, 0, "f32", BLOCK, TABLE, 4),
    CachedAttentionSpec(7, 2, 2, 24, 0.2, 0, "fp8", BLOCK, TABLE, 4),
    CachedAttentionSpec(7, 3, 1, 21, 0.2, 130, "f16", BLOCK, TABLE, 4),
]
PROMPTS = [
    CachedAttentionSpec(40, 4, 2, 32, 0.2, 0, "f16", BLOCK, TABLE, 4),
    CachedAttentionSpec(40, 3, 1, 16, 0.25, 70, "int8", BLOCK, TABLE, 4),
    CachedAttentionSpec(40, 1, 1, 144, 0.1, 0, "bf16", BLOCK, TABLE, 4),
    CachedAttentionSpec(40, 1, 1, 16, 0.2, 0, "fp8", BLOCK, TABLE, 4),
    CachedAttentionSpec(40, 4, 2, 32, 0.2, 0, "f16", BLOCK, TABLE, 4, is_split=False),
    CachedAttentionSpec(40, 3, 1, 16, 0.25, 70, "int8", BLOCK, TABLE, 4, is_split=False),
]
SPANS = [SpanAttentionSpec(11, 2, 32, 0.2), SpanAttentionSpec(11, 3, 20, 0.2)]
HOT = [
    lower_append_attention(
        AppendAttentionSpec(
            QkvAppendSpec(1, 32, 8, 128, 128, 1e-5, True, True, "bf16", BLOCK, 128),
            CachedAttentionSpec(1, 32, 8, 128, 0.1, 0, "bf16", BLOCK, 128, 64),
        )
    ),
    lower_cached_attention(CachedAttentionSpec(512, 32, 8, 128, 0.1, 0, "bf16", BLOCK, 128, 64)),
    lower_cached_attention(CachedAttentionSpec(1, 32, 8, 128, 0.1, 0, "int8", BLOCK, 128, 64)),
]


def on_a_gpu_of(blocks, lower, spec):
    """The launches on a GPU that so many blocks of threads keep busy: fewer splits, of several tiles each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "BLOCKS_OF_A_GPU", blocks)
        return lower(spec)


def unsplit(spec):
    """The launches on a GPU that one block of threads keeps busy."""
    return on_a_gpu_of(1, lower_cached_attention, spec)


BOTH = [
    AppendAttentionSpec(APPENDS[0], CachedAttentionSpec(7, 4, 2, 32, 0.2, 0, "f16", BLOCK, TABLE, 4)),
    AppendAttentionSpec(APPENDS[2], CachedAttentionSpec(7, 2, 1, 128, 0.1, 100, "bf16", BLOCK, TABLE, 4)),
    AppendAttentionSpec(APPENDS[3], CachedAttentionSpec(7, 2, 1, 160, 0.1, 0, "f32", BLOCK, TABLE, 4)),
]
STEPS = [
    *(AppendAttentionSpec(replace(both.append, rows=1), replace(both.attention, rows=1)) for both in BOTH),
    AppendAttentionSpec(
        QkvAppendSpec(1, 14, 1, 20, 12, 1e-6, False, True, "int8", BLOCK, TABLE),
        CachedAttentionSpec(1, 14, 1, 20, 0.2, 0, "int8", BLOCK, TABLE, 4),
    ),
    AppendAttentionSpec(
        QkvAppendSpec(1, 2, 2, 48, 48, 1e-5, False, False, "fp8", BLOCK, TABLE),
        CachedAttentionSpec(1, 2, 2, 48, 0.2, 0, "fp8", BLOCK, TABLE, 4),
    ),
]
"""Of one row."""
SPLITS = (attention.BLOCKS_OF_A_GPU, 2, 1)
"""Blocks of GPUs: as many splits of one row's positions as there are tiles, two to four, one."""
UNSPLIT = [*ATTENTIONS, PROMPTS[0]]
WHOLE = list(map(unsplit, UNSPLIT))
FEWER = 14
"""Blocks of a smaller GPU: four of each of seven rows."""
LOWERED = [
    *map(lower_qkv_append, APPENDS),
    *map(lower_cached_attention, ATTENTIONS),
    *map(lower_cached_attention, PROMPTS),
    *map(lower_span_attention, SPANS),
    *WHOLE,
    *map(lower_append_attention, BOTH),
    *(lower_cached_attention(spec.attention) for spec in BOTH),
    *(on_a_gpu_of(FEWER, lower_append_attention, spec) for spec in BOTH),
    *(on_a_gpu_of(FEWER, lower_cached_attention, spec.attention) for spec in BOTH),
    *(lower_qkv_append(spec.append) for spec in STEPS),
]
ATTENDED = [on_a_gpu_of(blocks, lower_cached_attention, spec.attention) for spec in STEPS for blocks in SPLITS]
TOGETHER = [on_a_gpu_of(blocks, lower_append_attention, spec) for spec in STEPS for blocks in SPLITS]


@pytest.fixture(scope="module", autouse=True)
def compiled():
    for lowered in (LOWERED, ATTENDED, TOGETHER):
        preload(lowered)


@pytest.fixture
def random():
    return np.random.default_rng(5)


def draw(random, *shape):
    return random.standard_normal(shape, np.float32)


def heads_of_cache(cache, spec):
    """What a cache holds: keys and values f64 [blocks, 2, kv_heads, BLOCK, head_dim]."""
    codes_bytes = BLOCK * spec.head_dim * BYTES_OF[spec.cache_dtype]
    codes = np.ascontiguousarray(cache[..., :codes_bytes])
    shape = (*cache.shape[:-1], BLOCK, spec.head_dim)
    if spec.cache_dtype == "bf16":
        return (codes.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape).astype(np.float64)
    dtype = {"f32": np.float32, "f16": np.float16, "int8": np.int8, "fp8": ml_dtypes.float8_e4m3fn}[spec.cache_dtype]
    numbers = codes.view(dtype).reshape(shape).astype(np.float64)
    if spec.cache_dtype not in SCALED:
        return numbers
    return numbers * np.ascontiguousarray(cache[..., codes_bytes:]).view(np.float32)[..., None]


def places(position, sequence):
    return BLOCK_TABLE[sequence, position // BLOCK], position % BLOCK


def rotated(heads, angles, rotary):
    half = rotary // 2
    cos, sin = angles[:, None, :half], angles[:, None, half:]
    x, y = heads[..., :half], heads[..., half:rotary]
    return np.concatenate([x * cos - y * sin, y * cos + x * sin, heads[..., rotary:]], -1)


@pytest.mark.parametrize("spec", APPENDS, ids=str)
def test_heads_go_into_the_cache(random, spec):
    rows, d = spec.rows, spec.head_dim
    turns = random.uniform(0, 6, (rows, spec.rotary // 2))
    arrays = {
        "qkv": draw(random, rows, (spec.heads + 2 * spec.kv_heads) * d),
        "angles": np.concatenate([np.cos(turns), np.sin(turns)], 1).astype(np.float32),
        "positions": POSITIONS,
        "sequences": SEQUENCES,
        "block_table": BLOCK_TABLE,
        "cache": np.zeros((BLOCKS, 2, spec.kv_heads, cache_head_bytes(spec.cache_dtype, d, BLOCK)), np.uint8),
    }
    arrays |= {name: draw(random, d) for name in ("q_gain", "k_gain") if getattr(spec, f"has_{name}")}
    results = {"result": ((rows, spec.heads, d), np.float32), "cache": None}
    made = same_in_every_order(lower_qkv_append(spec), arrays, results)
    heads = arrays["qkv"].astype(np.float64).reshape(rows, -1, d)
    q, k, v = np.split(heads, [spec.heads, spec.heads + spec.kv_heads], 1)
    prepared = []
    for x, name in ((q, "q_gain"), (k, "k_gain")):
        normed = x
        if name in arrays:
            normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + spec.epsilon) * arrays[name]
        prepared.append(rotated(normed, arrays["angles"].astype(np.float64), spec.rotary))
    bound = 24 * EPSILON * np.abs(prepared[0]).max()  # the sum of squares of a head, a root, six products and sums
    assert np.abs(made["result"] - prepared[0]).max() <= bound
    held = heads_of_cache(made["cache"], spec)
    expected = np.zeros_like(held)
    # Half a unit in the last place of numbers of 11, 8 and 4 bits; half a step of codes, whose scale is rounded.
    share = {"f32": 0, "f16": 2.0**-11, "bf16": 2.0**-8, "int8": 0, "fp8": 2.0**-4}[spec.cache_dtype]
    step = {"int8": 0.5 / 127 * (1 + 2.0**-16), "fp8": 2.0**-10 / 448}.get(spec.cache_dtype, 0)
    for row in np.flatnonzero(POSITIONS >= 0):
        block, slot = places(POSITIONS[row], SEQUENCES[row])
        for which, x in enumerate((prepared[1], v)):
            expected[block, which, :, slot] = x[row]
            error = np.abs(held[block, which, :, slot] - x[row])
            bound = share * np.abs(x[row]) + step * np.abs(x[row]).max(-1, keepdims=True)
            assert (error <= bound + 24 * EPSILON * np.abs(x).max()).all()
    assert ((held != 0) <= (expected != 0)).all()


def cache_of(random, spec):
    """A cache of random numbers, nothing behind the last position that is attended to, and what it holds."""
    shape = (BLOCKS, 2, spec.kv_heads)
    numbers = draw(random, *shape, BLOCK, spec.head_dim)
    if spec.cache_dtype == "bf16":
        codes = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    elif spec.cache_dtype == "int8":
        codes = random.integers(-127, 128, numbers.shape).astype(np.int8)
    elif spec.cache_dtype == "fp8":
        codes = np.clip(numbers * 100, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    else:
        codes = numbers.astype({"f32": np.float32, "f16": np.float16}[spec.cache_dtype])
    cache = codes.reshape(*shape, -1).view(np.uint8)
    if spec.cache_dtype in SCALED:
        scales = random.uniform(0.001, 0.02, (*shape, BLOCK)).astype(np.float32)
        cache = np.concatenate([cache, scales.view(np.uint8)], -1)
    return cache, heads_of_cache(cache, spec)


def rows_of(spec):
    """Positions and sequences of the rows."""
    return (POSITIONS, SEQUENCES) if spec.rows == len(POSITIONS) else (MIXED_POSITIONS, MIXED_SEQUENCES)


def attended(spec, q, held):
    """Each row's attention, f64."""
    positions, sequences = rows_of(spec)
    result = np.zeros((spec.rows, spec.heads, spec.head_dim))
    group = spec.heads // spec.kv_heads
    for row in np.flatnonzero(positions >= 0):
        first = max(0, positions[row] - spec.window + 1) if spec.window else 0
        seen = [places(position, sequences[row]) for position in range(first, positions[row] + 1)]
        blocks, slots = np.array(seen).T
        keys, values = (np.repeat(held[blocks, which, :, slots], group, 1) for which in (0, 1))
        weights = softmax(np.einsum("hd,thd->ht", q[row].astype(np.float64), keys) * spec.scale)
        result[row] = np.einsum("ht,thd->hd", weights, values)
    return result


CASES = [(spec, lower_cached_attention(spec)) for spec in ATTENTIONS + PROMPTS]
CASES += list(zip(UNSPLIT, WHOLE, strict=True))


@pytest.mark.parametrize(("spec", "lowered"), CASES, ids=lambda value: str(getattr(value, "cache_dtype", "")))
def test_rows_attend_to_the_cache(random, spec, lowered):
    cache, held = cache_of(random, spec)
    positions, sequences = rows_of(spec)
    q = draw(random, spec.rows, spec.heads, spec.head_dim)
    arrays = {"q": q, "positions": positions, "sequences": sequences, "block_table": BLOCK_TABLE, "cache": cache}
    made = same_in_every_order(lowered, arrays, {"result": (q.shape, np.float32)})["result"]
    expected = attended(spec, q, held)
    # A score's error is that of a dot product of head_dim numbers, which moves its weight by as much; then a sum of the
    # weights of up to 256 positions, of which each group adds up its own.
    largest = np.abs(held).max()
    scores = spec.scale * np.abs(q).max() * largest * spec.head_dim
    bound = (4 * scores + 64) * EPSILON * largest
    if spec in PROMPTS:  # queries and weights are numbers of 11 or 8 bits, or pairs of them
        rounding = 2.0**-21 if spec.cache_dtype == "f16" else 2.0**-15
        rounding = rounding if spec.is_split else rounding**0.5
        bound += (scores / spec.head_dim**0.5 + 1) * largest * rounding
    assert np.abs(made - expected).max() <= bound
    np.testing.assert_array_equal(made[positions < 0], 0)


def appending(random, spec, row=None):
    """What appending and attending is given, of all rows or one, and its results."""
    cache, _ = cache_of(random, spec.attention)
    rows, d = spec.append.rows, spec.append.head_dim
    of_row = slice(row, None if row is None else row + 1)
    rest = {"positions": POSITIONS[of_row], "sequences": SEQUENCES[of_row], "block_table": BLOCK_TABLE}
    arrays = {"qkv": draw(random, rows, (spec.append.heads + 2 * spec.append.kv_heads) * d), "cache": cache, **rest}
    arrays |= {"angles": draw(random, rows, spec.append.rotary), "q_gain": draw(random, d), "k_gain": draw(random, d)}
    return arrays, {"result": ((rows, spec.append.heads, d), np.float32), "cache": None}


@pytest.mark.parametrize("blocks", [attention.BLOCKS_OF_A_GPU, FEWER])
@pytest.mark.parametrize("spec", BOTH, ids=lambda spec: spec.attention.cache_dtype)
def test_append_and_attend_together_is_one_after_the_other(random, spec, blocks):
    arrays, results = appending(random, spec)
    rest = {name: arrays[name] for name in ("positions", "sequences", "block_table")}
    appended = run_kernel(lower_qkv_append(spec.append), arrays, results)
    then = {"q": appended["result"], "cache": appended["cache"], **rest}
    after = on_a_gpu_of(blocks, lower_cached_attention, spec.attention)
    attended = run_kernel(after, then, {"result": results["result"]})
    lowered = on_a_gpu_of(blocks, lower_append_attention, spec)
    together = same_in_every_order(lowered, arrays, results, seeds=range(3))
    assert len(lowered.steps) == 2
    np.testing.assert_array_equal(together["result"], attended["result"])
    np.testing.assert_array_equal(together["cache"], appended["cache"])


@pytest.mark.parametrize("blocks", SPLITS)
@pytest.mark.parametrize("spec", STEPS, ids=lambda spec: spec.attention.cache_dtype)
def test_one_row_is_appended_and_attended_in_a_launch(random, spec, blocks):
    """To the same bits as one after the other, wherever the row is: padding, the first, beside borders of tiles."""
    lowered = on_a_gpu_of(blocks, lower_append_attention, spec)
    assert len(lowered.steps) == 1
    for row in (0, 1, 2, 5, 6):
        arrays, results = appending(random, spec, row)
        rest = {name: arrays[name] for name in ("positions", "sequences", "block_table")}
        appended = run_kernel(lower_qkv_append(spec.append), arrays, results)
        then = {"q": appended["result"], "cache": appended["cache"], **rest}
        after = on_a_gpu_of(blocks, lower_cached_attention, spec.attention)
        attended = run_kernel(after, then, {"result": results["result"]})
        together = same_in_every_order(lowered, arrays, results)
        np.testing.assert_array_equal(together["result"], attended["result"])
        np.testing.assert_array_equal(together["cache"], appended["cache"])


@pytest.mark.parametrize("spec", [ATTENTIONS[0], PROMPTS[0]], ids=str)
def test_what_no_row_sees_is_not_read(random, spec):
    cache, held = cache_of(random, spec)
    positions, sequences = rows_of(spec)
    visible = np.zeros((BLOCKS, 1, 1, BLOCK, 1), bool)
    for position, sequence in zip(positions, sequences, strict=True):
        for before in range(position + 1):
            block, slot = places(before, sequence)
            visible[block, :, :, slot] = True
    hidden = np.where(np.broadcast_to(visible, held.shape), cache.view(np.float16).reshape(held.shape), np.nan)
    q = draw(random, spec.rows, spec.heads, spec.head_dim)
    arrays = {"q": q, "positions": positions, "sequences": sequences, "block_table": BLOCK_TABLE}
    arrays["cache"] = hidden.astype(np.float16).reshape(*cache.shape[:-1], -1).view(np.uint8)
    made = run_kernel(lower_cached_attention(spec), arrays, {"result": (q.shape, np.float32)})["result"]
    assert np.isfinite(made).all()


@pytest.mark.parametrize("spec", SPANS, ids=str)
def test_rows_attend_to_their_spans(random, spec):
    d = spec.head_dim
    qkv = draw(random, spec.rows, 3 * spec.heads * d)
    starts = np.array([0] * 4 + [4] + [5] * 5 + [0], np.int32)
    ends = np.array([4] * 4 + [5] + [10] * 5 + [0], np.int32)
    arrays = {"qkv": qkv, "span_start": starts, "span_end": ends}
    made = same_in_every_order(
        lower_span_attention(spec), arrays, {"result": ((spec.rows, spec.heads, d), np.float32)}
    )["result"]
    q, k, v = (x.reshape(spec.rows, spec.heads, d).astype(np.float64) for x in np.split(qkv, 3, 1))
    expected = np.zeros_like(q)
    for row in np.flatnonzero(ends > starts):
        seen = slice(starts[row], ends[row])
        weights = softmax(np.einsum("hd,thd->ht", q[row], k[seen]) * spec.scale)
        expected[row] = np.einsum("ht,thd->hd", weights, v[seen])
    scores = spec.scale * np.abs(q).max() * np.abs(k).max() * d
    assert np.abs(made - expected).max() <= (4 * scores + 32) * EPSILON * np.abs(v).max()


def test_nvrtc_compiles_them_without_spills():
    sources = {step.kernel.symbol: step.kernel.source for one in HOT for step in one.steps}
    usage = kernels_of(compile_kernels(list(sources.values()), find_arch("sm_90a")))
    assert usage.keys() == sources.keys()
    assert not {name for name, kernel in usage.items() if kernel.local_bytes}
