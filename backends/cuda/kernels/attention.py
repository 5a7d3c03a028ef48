"""Kernels of attention: heads into the cache, attention to it, attention within spans of a batch.

The cache of a layer is described in templates/cuda/include/kv_cache.cuh. Rows of position -1 are padding: nothing of
them is stored, and their results are zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pyc.backends.cuda.kernels.kernel import WARP, Lowered, Step
from pyc.backends.cuda.kernels.rows import INTEGERS, READ, WRITTEN
from pyc.backends.cuda.kernels.wrapper import launch
from pyc.runtime.host.rounding import ceil_div

THREADS = 128
BLOCKS_OF_A_GPU = 264
"""Blocks that keep a large GPU busy: two for each multiprocessor of an H100 or H200. Of decode_attention, whose blocks
have little work each, twice as many."""
MOST_SPLITS = 32
LEAST_PROMPT_ROWS = 9
"""Buckets of fewer rows have no kernel for prompts."""
MOST_FEATURES = 256
"""Features of a head that it has room for."""
LANE_NUMBERS = 32
"""Numbers that a lane keeps of queries, and as many of sums: more would spill."""
DECODE_BYTES = 16 << 10
"""Of the keys and values that a block of decode_attention takes at a time."""

BYTES_OF = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1, "fp8": 1}
"""Bytes of a number in a cache, by its dtype."""
_SCALED = ("int8", "fp8")
"""Dtypes that have a scale f32 for each position of a head beside."""
_KINDS = {"f32": "CacheF32", "f16": "CacheF16", "bf16": "CacheBf16", "int8": "CacheInt8", "fp8": "CacheFp8"}
_CACHE_READ, _CACHE_WRITTEN, _COUNTERS = "const unsigned char", "unsigned char", "unsigned int"


@dataclass(frozen=True, slots=True)
class QkvAppendSpec:
    """Rows q | k | v become queries and places of the cache; `rotary` features of a head are rotated."""

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    epsilon: float
    has_q_gain: bool
    has_k_gain: bool
    cache_dtype: str
    block_tokens: int
    table_blocks: int


@dataclass(frozen=True, slots=True)
class CachedAttentionSpec:
    """Each row attends to the positions up to its own, or the last `window` of them, of its sequence.

    `is_split`: matrix instructions multiply queries, and weights of values, as two numbers of 16 bits, else as one.
    """

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    cache_dtype: str
    block_tokens: int
    table_blocks: int
    sequences: int
    is_split: bool = True


@dataclass(frozen=True, slots=True)
class AppendAttentionSpec:
    """What appends, and what attends to the queries that it makes, of the same rows and cache."""

    append: QkvAppendSpec
    attention: CachedAttentionSpec


@dataclass(frozen=True, slots=True)
class SpanAttentionSpec:
    """Each row q | k | v attends to the rows of its span."""

    rows: int
    heads: int
    head_dim: int
    scale: float


def cache_head_bytes(cache_dtype: str, head_dim: int, block_tokens: int) -> int:
    """Return the bytes of the keys, or of the values, of a head in a block of the cache."""
    return block_tokens * (head_dim * BYTES_OF[cache_dtype] + (4 if cache_dtype in _SCALED else 0))


def lower_qkv_append(spec: QkvAppendSpec) -> Lowered:
    """Norm heads of "qkv" [rows, (heads + 2 kv_heads) * head_dim] by "q_gain" and "k_gain" [head_dim], and rotate them
    by "angles" [rows, rotary]. Keys and values go into "cache" at "positions" and "sequences" [rows] of "block_table"
    [sequences, table_blocks], queries to "result" [rows, heads * head_dim].
    """
    return Lowered((_append(spec, 0),))


def _append(spec: QkvAppendSpec, counters: int) -> Step:
    """Return the launch, which zeroes so many counters besides."""
    width, lanes = _head_shape(spec)
    items = spec.rows * (spec.heads + 2 * spec.kv_heads)
    numbers = (spec.rows, spec.heads, spec.kv_heads, spec.head_dim, spec.rotary, spec.block_tokens, spec.table_blocks)
    return launch(
        f"qkv_append_{spec.cache_dtype}_{spec.rows}x{spec.heads}x{spec.kv_heads}x{spec.head_dim}",
        "qkv_append.cuh",
        f"qkv_append<pyc::{_KINDS[spec.cache_dtype]}, {_listed(*numbers, counters, width, lanes, THREADS)}>",
        {
            "qkv": READ,
            "angles": READ,
            "positions": INTEGERS,
            "sequences": INTEGERS,
            "block_table": INTEGERS,
            "q_gain": READ if spec.has_q_gain else None,
            "k_gain": READ if spec.has_k_gain else None,
            "cache": _CACHE_WRITTEN,
            "result": WRITTEN,
            "counters": _COUNTERS if counters else None,
        },
        constants=(spec.epsilon,),
        grid=(-(-items * lanes // THREADS), 1, 1),
        threads=THREADS,
    )


def _head_shape(spec: QkvAppendSpec) -> tuple[int, int]:
    """Return how many features of a head a lane has at once, and how many lanes have a head."""
    width = 4 if spec.head_dim % 4 == 0 and spec.rotary % 8 == 0 else 1
    return width, _lanes(-(-spec.head_dim // width))


def lower_cached_attention(spec: CachedAttentionSpec) -> Lowered:
    """Attend with "q" [rows, heads * head_dim] to "cache": "result", of the same shape.

    Rows that are alone of their sequence are done by decode_attention, others by prompt_attention where there are
    enough rows and the cache suits matrix instructions. Positions are split between blocks of threads where rows and
    heads alone are too few (flash-decoding), and another launch combines what they make.
    """
    prompts, splits = _prompt_tile(spec), _splits(spec)
    steps = [_decode(spec, splits, counts=False)]
    if prompts:
        steps.append(_prompt(spec, splits, prompts))
    if splits > 1:
        steps.append(_combine(spec, splits))
    return Lowered(tuple(steps), _scratch(spec, splits))


def lower_append_attention(spec: AppendAttentionSpec) -> Lowered:
    """Append and attend: the arguments of both, of which the queries between are scratch.

    One row is a launch, whose blocks make what they need of it. Of more rows, some may be of one sequence and see each
    other, and appending is a launch before. Without a kernel for prompts, the last block of each head combines the
    splits, so that nothing waits for another launch.
    """
    attention = spec.attention
    splits = _splits(attention)
    has_counters = splits > 1 and not _prompt_tile(attention)
    counters = attention.rows * _head_blocks(attention) if has_counters else 0
    if attention.rows == 1:
        zeroed = {"counters": 4 * counters} if counters else {}
        early = ("positions", "sequences", "block_table", "cache")
        return Lowered((_step(spec, splits),), _scratch(attention, splits), zeroed, early)
    if has_counters:
        attend = Lowered((_decode(attention, splits, counts=True),), _scratch(attention, splits))
    else:
        attend = lower_cached_attention(attention)
    append = _renamed(_append(spec.append, counters), "result", "queries")
    scratch = {**attend.scratch, "queries": 4 * attention.rows * attention.heads * attention.head_dim}
    if counters:
        scratch["counters"] = 4 * counters
    return Lowered((append, *(_renamed(step, "q", "queries") for step in attend.steps)), scratch)


def _renamed(step: Step, name: str, to: str) -> Step:
    return replace(step, arguments=tuple(to if argument == name else argument for argument in step.arguments))


def _splits(spec: CachedAttentionSpec) -> int:
    """Return into how many the positions are split."""
    context = spec.table_blocks * spec.block_tokens
    if prompts := _prompt_tile(spec):
        wanted, least = BLOCKS_OF_A_GPU // (spec.kv_heads * prompts.tiles), prompts.positions
    else:
        wanted, least = 2 * BLOCKS_OF_A_GPU // (spec.rows * _head_blocks(spec)), _decode_tile(spec).positions
    return max(1, min(wanted, ceil_div(context, least), MOST_SPLITS))


def _scratch(spec: CachedAttentionSpec, splits: int) -> dict[str, int]:
    items = spec.rows * spec.heads * splits
    return {"partial": items * spec.head_dim * 4, "stats": items * 8} if splits > 1 else {}


@dataclass(frozen=True, slots=True)
class _DecodeTile:
    """How decode_attention goes through positions: `count` at a time a group of lanes, `positions` a block, of which
    `stages` tiles are in shared memory or on their way."""

    count: int
    positions: int
    stages: int


def _decode_tile(spec: CachedAttentionSpec) -> _DecodeTile:
    """Return the tile: of DECODE_BYTES, or a position for a group of lanes where that takes more."""
    wide = _decode_shape(spec)[1]
    lanes = _lanes(-(-spec.head_dim // wide))
    chunks = ceil_div(spec.head_dim, wide * lanes)
    lane_bytes = 2 * (chunks * wide * BYTES_OF[spec.cache_dtype] + (4 if spec.cache_dtype in _SCALED else 0))
    count = next((count for count in (4, 2) if THREADS * lane_bytes * count <= DECODE_BYTES), 1)
    stages = max(2, min(4, 2 * DECODE_BYTES // (THREADS * lane_bytes * count)))
    return _DecodeTile(count, THREADS // lanes * count, stages)


def _decode_shape(spec: CachedAttentionSpec) -> tuple[int, int]:
    return queries_and_width(spec.heads // spec.kv_heads, spec.head_dim, BYTES_OF[spec.cache_dtype])


def _head_blocks(spec: CachedAttentionSpec) -> int:
    """Return how many blocks of decode_attention all heads of a row are."""
    return spec.kv_heads * -(-(spec.heads // spec.kv_heads) // _decode_shape(spec)[0])


def _arrays_of(splits: int, *, has_result: bool) -> dict[str, str | None]:
    """Return what the kernels of attention to the cache take."""
    scratch = WRITTEN if splits > 1 else None
    return {
        "q": READ,
        "positions": INTEGERS,
        "sequences": INTEGERS,
        "block_table": INTEGERS,
        "cache": _CACHE_READ,
        "result": WRITTEN if has_result else None,
        "partial": scratch,
        "stats": scratch,
    }


def _name(spec: CachedAttentionSpec, splits: int) -> str:
    return f"{spec.cache_dtype}_{spec.rows}x{spec.heads}x{spec.kv_heads}x{spec.head_dim}_of_{splits}"


def _constants(spec: CachedAttentionSpec, splits: int) -> str:
    numbers = (spec.rows, spec.heads, spec.kv_heads, spec.head_dim, spec.window, spec.block_tokens, spec.table_blocks)
    return f"pyc::{_KINDS[spec.cache_dtype]}, {_listed(*numbers, splits)}"


def _decode(spec: CachedAttentionSpec, splits: int, *, counts: bool) -> Step:
    has_prompts = "true" if _prompt_tile(spec) else "false"
    tile = _decode_tile(spec)
    numbers = _listed(*_decode_shape(spec), THREADS, tile.count, tile.stages)
    source = f"pyc::AppendedRows<{spec.head_dim}>"
    return launch(
        f"decode_attention_{_name(spec, splits)}",
        "attention.cuh",
        f"decode_attention<{_constants(spec, splits)}, {has_prompts}, {numbers}, {source}>",
        {**_arrays_of(splits, has_result=counts or splits == 1), "counters": _COUNTERS if counts else None},
        constants=(spec.scale * math.log2(math.e),),
        grid=(splits, _head_blocks(spec), spec.rows),
        threads=THREADS,
        blocks=4,
    )


def _step(spec: AppendAttentionSpec, splits: int) -> Step:
    """Return the launch of one row that appends and attends."""
    append, attention, tile = spec.append, spec.attention, _decode_tile(spec.attention)
    heads = (attention.heads, attention.kv_heads, attention.head_dim, append.rotary)
    numbers = (attention.window, attention.block_tokens, attention.table_blocks, splits, *_decode_shape(attention))
    rest = (*_head_shape(append), THREADS, tile.count, tile.stages)
    given = _arrays_of(splits, has_result=True)
    read = {"qkv": READ, "angles": READ, **{name: given[name] for name in ("positions", "sequences", "block_table")}}
    gains = {"q_gain": append.has_q_gain, "k_gain": append.has_k_gain}
    written = {name: given[name] for name in ("result", "partial", "stats")}
    return launch(
        f"step_attention_{_name(attention, splits)}",
        "step_attention.cuh",
        f"step_attention<pyc::{_KINDS[attention.cache_dtype]}, {_listed(*heads, *numbers, *rest)}>",
        {
            **read,
            **{name: READ if is_there else None for name, is_there in gains.items()},
            "cache": _CACHE_WRITTEN,
            **written,
            "counters": _COUNTERS if splits > 1 else None,
        },
        constants=(append.epsilon, attention.scale * math.log2(math.e)),
        grid=(splits, _head_blocks(attention), 1),
        threads=THREADS,
        blocks=4,
        waits=True,
    )


@dataclass(frozen=True, slots=True)
class _PromptTile:
    """How prompt_attention divides its work: tiles of rows, warps of a block, positions that it has at once."""

    tiles: int
    warps: int
    positions: int
    shared_bytes: int


def _prompt_tile(spec: CachedAttentionSpec) -> _PromptTile | None:
    """Return the tile, or None where prompt_attention does not take part."""
    group, d = spec.heads // spec.kv_heads, spec.head_dim
    warps, positions = (4, 64) if d <= 128 else (2, 32)
    pairs = 16 * warps
    if spec.rows < LEAST_PROMPT_ROWS or spec.cache_dtype == "f32" or d % 16 or d > MOST_FEATURES or group > pairs:
        return None
    rows = pairs // group
    shared = ((1 + spec.is_split) * pairs + 2 * positions) * (d + 8) * 2 + 2 * positions * 4 + 2 * rows * 4
    return _PromptTile(-(-spec.rows // rows), warps, positions, shared)


def _prompt(spec: CachedAttentionSpec, splits: int, tile: _PromptTile) -> Step:
    division = f"{'true' if spec.is_split else 'false'}, {_listed(tile.positions, tile.warps)}"
    return launch(
        f"prompt_attention_{_name(spec, splits)}",
        "prompt_attention.cuh",
        f"prompt_attention<{_constants(spec, splits)}, {division}>",
        _arrays_of(splits, has_result=splits == 1),
        constants=(spec.scale * math.log2(math.e),),
        grid=(tile.tiles, spec.kv_heads, splits),
        threads=WARP * tile.warps,
        shared_bytes=tile.shared_bytes,
        blocks=3 if tile.warps == 4 else None,  # 170 registers a thread
        is_short=False,
    )


def _combine(spec: CachedAttentionSpec, splits: int) -> Step:
    threads = -(-spec.head_dim // WARP) * WARP
    return launch(
        f"combine_splits_{spec.rows}x{spec.heads}x{spec.head_dim}_of_{splits}",
        "attention.cuh",
        f"combine_splits<{_listed(spec.heads, spec.head_dim, splits, threads)}>",
        {"positions": INTEGERS, "partial": READ, "stats": READ, "result": WRITTEN},
        grid=(spec.rows * spec.heads, 1, 1),
        threads=threads,
    )


def lower_span_attention(spec: SpanAttentionSpec) -> Lowered:
    """Attend with "qkv" [rows, 3 * heads * head_dim] to rows ["span_start", "span_end") [rows]: "result" [rows, heads *
    head_dim].
    """
    queries, wide = queries_and_width(8, spec.head_dim, 4)
    step = launch(
        f"span_attention_{spec.rows}x{spec.heads}x{spec.head_dim}",
        "attention.cuh",
        f"span_attention<{_listed(spec.rows, spec.heads, spec.head_dim, queries, wide, THREADS)}>",
        {"qkv": READ, "span_start": INTEGERS, "span_end": INTEGERS, "result": WRITTEN},
        constants=(spec.scale * math.log2(math.e),),
        grid=(spec.heads, -(-spec.rows // queries), 1),
        threads=THREADS,
    )
    return Lowered((step,))


def queries_and_width(queries: int, head_dim: int, number_bytes: int) -> tuple[int, int]:
    """Return how many of the queries that share a head a block takes, and how many features a lane reads at once.

    Many queries read the cache less often, wide reads reduce less; a lane has room for LANE_NUMBERS of both.
    """
    widths = [width for width in (8, 4, 2, 1) if width * number_bytes <= 16 and head_dim % width == 0]
    for count in range(min(queries, 8), 0, -1):
        for width in widths:
            lanes = _lanes(-(-head_dim // width))
            if -(-head_dim // (width * lanes)) * width * count <= LANE_NUMBERS and (width > 1 or widths == [1]):
                return count, width
    return 1, widths[0]


def _lanes(count: int) -> int:
    """Return the least power of two of lanes that has `count`, at most a warp."""
    return min(WARP, 1 << (count - 1).bit_length())


def _listed(*numbers: int) -> str:
    return ", ".join(map(str, numbers))
