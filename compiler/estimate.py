"""How many bytes things will take, from shapes alone.

A run's memory is what the operating system counts for its process at its peak (VmHWM, as `pyc bench` reports it): its
own memory, and the pages of the artifact, which it maps and reads whole to verify it. The terms, measured with Python
3.11 and numpy 2.4, and with models of 4 to 600 million parameters (tests/passes/driver/test_estimate.py measures them
again):

    process     the interpreter, numpy and pyc                                  39 MB
    loaded      header, compiled library, its threads                           4.5 MB
    tokenizer   its library 6 MB, 300 bytes a token, 480 a merge, its file     10 MB of 4096, 130 MB of 151936 tokens
    weights     every byte of them
    keys and values   of the tokens that are in the cache, in pages
    workspace   what the largest step that is used computes with
    logits      f32 of the vocabulary, and a copy to draw from
    backend     its libraries, and what it copies weights into (backends/protocol.py: Memory)

Pages of memory are huge ones (2 MiB) where numpy asks for them and the system has them: a cache of many layers takes
one of them a layer for its first token.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import msgspec

from pyc.compiler.ir import Function, TensorType
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.executors.cpu.kv_cache import head_bytes
from pyc.runtime.generation.buckets import plan_chunks
from pyc.runtime.host.rounding import ceil_div, round_up

BUILD_BYTES = 65_000_000
"""Memory of a build beside what its backends take (measured: 64 to 68 MB)."""

VALUE_BYTES = 12
"""Memory of a worker for each weight of the piece it is at (measured: 10 to 15, with 8 to 2 workers)."""

LIBRARY_BYTES = 400 << 10
"""A compiled library of one instruction set and four buckets, before compression (measured: 0.4 MB)."""

COMPRESSED_SHARE = 0.3
"""What zstd leaves of libraries and tokenizers (measured: 0.30)."""

PROCESS_BYTES = 39_000_000
LOADED_BYTES = 4_500_000
TOKENIZERS_BYTES = 6_000_000
TOKEN_BYTES = 300
MERGE_BYTES = 480
HUGE_PAGE_BYTES = 2 << 20
HUGE_FROM_BYTES = 4 << 20
"""Arrays of this size and more are in huge pages."""

_ALIGNMENT = 64


class _TokenizerModel(msgspec.Struct):
    vocab: dict[str, int] | list[msgspec.Raw] = msgspec.field(default_factory=list)
    merges: list[msgspec.Raw] = msgspec.field(default_factory=list)


class _TokenizerFile(msgspec.Struct):
    model: _TokenizerModel


@dataclass(frozen=True, slots=True)
class RunSize:
    """What a run's memory depends on: `weights_bytes` as stored, the graph's functions, the `buckets` of the one that
    reads tokens, ascending, what its tokenizer takes, and what the backend holds beside: libraries and copies.

    The cache of `info` is as the backend has it; `heads_apart`, each head's keys have a piece of memory for the whole
    context.
    """

    info: ModelInfo
    functions: tuple[Function, ...]
    buckets: tuple[int, ...]
    weights_bytes: int
    tokenizer_bytes: int
    backend_bytes: int
    heads_apart: bool = False


def kv_cache_bytes(info: ModelInfo, sequences: int, tokens: int) -> int:
    """Return the bytes of keys and values: `sequences` of `tokens` tokens, whole blocks; 0 for encoders."""
    cache = info.kv_cache
    if cache is None:
        return 0
    blocks = ceil_div(tokens, cache.block_tokens)
    return sequences * blocks * cache.layers * 2 * cache.heads * head_bytes(cache)


def run_peak_bytes(size: RunSize, sequences: int, tokens: int) -> int:
    """Return about what a run takes at its peak when `sequences` have come to `tokens` tokens each, prompt included.

    Of an encoder, `tokens` are those of all texts of a step.
    """
    bucket = max(plan_chunks(min(tokens, size.buckets[-1]), size.buckets))
    largest = max(workspace_bytes(function, size.buckets[-1]) for function in size.functions)
    used = max(workspace_bytes(function, bucket) for function in size.functions if function.name != "logits")
    logits = 2 * 4 * size.info.vocab_size * sequences if size.info.kind == "decoder" else 0
    return (
        PROCESS_BYTES
        + LOADED_BYTES
        + size.tokenizer_bytes
        + size.weights_bytes
        + size.backend_bytes
        + _touched_cache_bytes(size, sequences, tokens)
        + _touched(used, largest)
        + logits
    )


def tokenizer_bytes(files: tuple[tuple[str, bytes], ...]) -> int:
    """Return about the memory of the tokenizer in an artifact's files, once a text was read; 0 without one."""
    document = dict(files).get("tokenizer.json")
    if document is None:
        return 0
    try:
        model = msgspec.json.decode(document, type=_TokenizerFile).model
    except (msgspec.DecodeError, ValueError, RecursionError):
        return TOKENIZERS_BYTES + 20 * len(document)  # the loader will say what is wrong
    return TOKENIZERS_BYTES + len(document) + TOKEN_BYTES * len(model.vocab) + MERGE_BYTES * len(model.merges)


def workspace_bytes(function: Function, rows: int) -> int:
    """Return about the memory of a function's intermediate values for `rows` rows.

    Memory is used again for values of the same type, as the CPU backend does (backends/cpu/emit/call_list.py). Room
    that a kernel has to itself is not counted, nor what a result saves that takes an operand's place.
    """
    last = {name: index for index, call in enumerate(function.operations) for name in call.operands}
    live: defaultdict[TensorType, int] = defaultdict(int)
    most: defaultdict[TensorType, int] = defaultdict(int)
    types = {value.name: value.type for call in function.operations for value in call.results}
    types.pop(function.result, None)
    for index, call in enumerate(function.operations):
        made = [value.name for value in call.results]
        for kind in (types[name] for name in made if name in types):
            live[kind] += 1
            most[kind] = max(most[kind], live[kind])
        for name in {*call.operands, *made}:
            if name in types and last.get(name, index) == index:
                live[types[name]] -= 1
    return sum(count * _type_bytes(kind, rows) for kind, count in most.items())


def build_peak_bytes(workers: int, pieces: Iterable[int], backends_bytes: int) -> int:
    """Return about what the process of a build takes at its peak, whatever the model's size, but for a calibration.

    `pieces` are the numbers of weights that are evaluated at once, a worker each: the largest may meet. What compilers
    take in the process is `backends_bytes`.
    """
    return BUILD_BYTES + backends_bytes + sum(heapq.nlargest(workers, pieces)) * VALUE_BYTES


def artifact_bytes(weights: int, files: int, libraries: int, *, compressed: bool) -> int:
    """Return about the size of an artifact: stored weights, files as they are, and how many libraries."""
    rest = files + libraries * LIBRARY_BYTES
    return weights + int(rest * (COMPRESSED_SHARE if compressed else 1))


def _type_bytes(kind: TensorType, rows: int) -> int:
    extents = (rows if isinstance(extent, str) else extent for extent in kind.shape)
    return round_up(prod(extents) * DTYPES[kind.dtype].itemsize, _ALIGNMENT)


def _touched_cache_bytes(size: RunSize, sequences: int, tokens: int) -> int:
    """The pages of each layer's array of keys and values, or of each head's piece of it, that hold tokens."""
    info, cache = size.info, size.info.kv_cache
    if cache is None:
        return 0
    layer = kv_cache_bytes(info, info.max_sequences, info.context) // cache.layers
    pieces = 2 * cache.heads * sequences if size.heads_apart else 1
    used = kv_cache_bytes(info, sequences, tokens) // cache.layers // pieces
    piece = kv_cache_bytes(info, sequences, info.context) // cache.layers // pieces
    if layer < HUGE_FROM_BYTES:
        return cache.layers * pieces * used
    return cache.layers * min(layer, pieces * min(piece, round_up(used, HUGE_PAGE_BYTES)))


def _touched(used_bytes: int, array_bytes: int) -> int:
    """What an array of `array_bytes` takes when its first `used_bytes` are in use."""
    if array_bytes < HUGE_FROM_BYTES:
        return used_bytes
    return min(array_bytes, round_up(used_bytes, HUGE_PAGE_BYTES))
