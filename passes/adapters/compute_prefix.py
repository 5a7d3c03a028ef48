"""Compute the keys and values of virtual tokens, which every sequence of the artifact then begins with (ADR 40).

Those of prefix tuning are the adapter's own. Those of prompt tuning and P-tuning are what attention makes of its
embeddings: they stand at the first positions, and in a decoder nothing behind a token changes its keys. They are
computed once, by the weights as they are before a scheme rounds them. All is in f64, by ROWS_AT_A_TIME rows of a
weight, and rounded to f32 at the end, so that the order in which a machine adds hardly ever shows in the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyc.compiler.evaluate import evaluate_rows, unstored
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.interpret import LOGICAL_MEANINGS, PagedCache
from pyc.compiler.ir import Module, Operation, Prefix
from pyc.compiler.scales import Floats
from pyc.compiler.weights import Stacked, Stored
from pyc.models.adapters import Adapter
from pyc.models.prompt_adapters import VirtualTokens
from pyc.runtime.artifact.format import PassRecord
from pyc.runtime.errors import AdapterError
from pyc.runtime.host.rounding import ceil_div

PREFIX = "compute_prefix"
"""What provenance calls this."""
VERSION = 1
ROWS_AT_A_TIME = 4096

Weighted = Sequence[tuple[Adapter, float]]


def reserve_prefix(module: Module, adapters: Weighted, *, is_merged: bool = False) -> Module:
    """Return a module that has been read with room for the virtual tokens of its adapters, if there are any.

    Raises AdapterError when they do not fit the model or each other.
    """
    prompts = [(adapter, weight) for adapter, weight in adapters if adapter.virtual is not None]
    if not prompts:
        return module
    adapter, weight = prompts[0]
    where = f"adapter {adapter.reference!r}"
    if len(prompts) > 1:
        raise AdapterError(
            f"{where}: {prompts[1][0].reference!r} has virtual tokens, too, and a model has those of one adapter; "
            "leave one out"
        )
    if weight != 1:
        raise AdapterError(f"{where}: weight is {weight:g}, but virtual tokens are there or not; write weight: 1")
    if is_merged:
        raise AdapterError(f"{where}: `merge` is of LoRA adapters, and it has virtual tokens; leave one of the two out")
    assert adapter.virtual is not None
    _check_fit(module, adapter.virtual, where)
    return replace(
        module, prefix=Prefix(adapter.virtual.tokens), sources=tuple(dict.fromkeys((*module.sources, *adapter.sources)))
    )


def virtual_tokens_of(adapters: Weighted) -> int:
    """Return how many virtual tokens adapters bring."""
    return sum(adapter.virtual.tokens for adapter, _ in adapters if adapter.virtual is not None)


def compute_prefix(module: Module, adapters: Weighted, files: SourceFiles) -> Module:
    """Return a module of logical operators, adapters fused, with the values of its prefix; any other as it is."""
    if module.prefix is None:
        return module
    adapter = next(adapter for adapter, _ in adapters if adapter.virtual is not None)
    assert adapter.virtual is not None
    given = evaluate_rows(adapter.virtual.source, 0, adapter.virtual.tokens, files)
    values: NDArray[Any] = _by_layer(module, given) if adapter.virtual.is_prefix else _interpreted(module, given, files)
    prefix = Prefix(adapter.virtual.tokens, np.ascontiguousarray(values, "<f4").tobytes())
    return replace(module, prefix=prefix, passes=(*module.passes, *prefix_records(adapters)))


def prefix_records(adapters: Weighted) -> tuple[PassRecord, ...]:
    """Return what `compute_prefix` records of a model with these adapters: nothing without virtual tokens."""
    return tuple(
        PassRecord(
            PREFIX,
            VERSION,
            msgspec.json.encode(
                {"adapter": adapter.name, "kind": adapter.kind, "tokens": str(adapter.virtual.tokens)}
            ).decode(),
        )
        for adapter, _ in adapters
        if adapter.virtual is not None
    )


def _check_fit(module: Module, virtual: VirtualTokens, where: str) -> None:
    info, cache = module.info, module.info.kv_cache
    if cache is None:
        raise AdapterError(
            f"{where}: {info.architecture} is an encoder; virtual tokens stand in front of a decoder's text"
        )
    name, width = virtual.source.tensor, virtual.source.shape[1]
    trained = "; was the adapter trained on another model?"
    if not virtual.is_prefix:
        if width != info.hidden_size:
            raise AdapterError(
                f"{where}: tensor {name!r} has shape {list(virtual.source.shape)}, expected "
                f"[{virtual.tokens}, {info.hidden_size}], the model's hidden size{trained}"
            )
        return
    for field, got, expected in (
        ("num_layers", virtual.layers, cache.layers),
        ("num_attention_heads", virtual.heads, cache.heads),
    ):
        if got not in (None, expected):
            what = "key/value heads" if field == "num_attention_heads" else "layers"
            raise AdapterError(
                f"{where}: adapter_config.json: {field} is {got} for tensor {name!r}, the model has {expected} "
                f"{what}{trained}"
            )
    heads = f"{cache.layers} layers, keys and values of {cache.heads} heads of {cache.head_dim}"
    expected = cache.layers * 2 * cache.heads * cache.head_dim
    if width != expected:
        raise AdapterError(
            f"{where}: tensor {name!r} has shape {list(virtual.source.shape)}, expected "
            f"[{virtual.tokens}, {expected}], {heads}{trained}"
        )


def _by_layer(module: Module, given: Floats) -> NDArray[np.float32]:
    """Return PEFT's rows [tokens, layers * 2 * kv_heads * head_dim] as [layers, 2, kv_heads, tokens, head_dim]."""
    cache = module.info.kv_cache
    assert cache is not None
    return given.reshape(len(given), cache.layers, 2, cache.heads, cache.head_dim).transpose(1, 2, 3, 0, 4)


def _interpreted(module: Module, embeddings: Floats, files: SourceFiles) -> NDArray[np.float64]:
    """Return the keys and values that attention of each layer reads of rows [tokens, hidden] in place of embeddings."""
    cache = module.info.kv_cache
    assert cache is not None
    tokens, heads, head_dim = len(embeddings), cache.heads, cache.head_dim
    result = np.zeros((cache.layers, 2, heads, tokens, head_dim))
    paged = PagedCache(cache.block_tokens, np.float64)
    blocks = ceil_div(tokens, cache.block_tokens)
    values: dict[str, NDArray[Any]] = {
        "positions": np.arange(tokens),
        "sequences": np.zeros(tokens, np.int64),
        "block_table": np.arange(blocks)[None],
    }
    function = module.graph.function("forward")
    last_use = {name: index for index, o in enumerate(function.operations) for name in o.operands}
    missing = cache.layers
    for index, operation in enumerate(function.operations):
        name = operation.result.name
        if operation.kind == "embedding":
            values[name] = embeddings.astype(np.float64)
            continue
        operands = [values[operand] for operand in operation.operands]
        if operation.kind == "attention":
            for place, rows in enumerate(operands[1:3]):
                result[operation.integer("layer"), place] = rows.reshape(tokens, heads, head_dim).swapaxes(0, 1)
            missing -= 1
            if not missing:
                break
            values[name] = paged.attention(operation, operands, [])
        elif operation.kind == "linear":
            values[name] = _product(module, operation, operands[0], files)
        else:
            weights = [_rows(module, weight, files) if weight else None for weight in operation.weights]
            made = LOGICAL_MEANINGS[operation.kind](operation, operands, weights)
            assert not isinstance(made, tuple), operation.kind
            values[name] = made
        for operand in operation.operands:
            if last_use[operand] == index:
                del values[operand]
    return result


def _product(module: Module, operation: Operation, x: NDArray[Any], files: SourceFiles) -> NDArray[Any]:
    matrix, bias = operation.weights
    rows = module.weights[matrix].shape[0]
    parts = [
        x @ _rows(module, matrix, files, start, min(start + ROWS_AT_A_TIME, rows)).T
        for start in range(0, rows, ROWS_AT_A_TIME)
    ]
    product = np.concatenate(parts, axis=1)
    return product + _rows(module, bias, files) if bias else product


def _rows(
    module: Module, name: str, files: SourceFiles, start: int = 0, stop: int | None = None
) -> NDArray[np.float64]:
    """Return rows of a weight as it is before a scheme rounds it."""
    weight = module.weights[name]
    base = unstored(weight) if isinstance(weight, Stored | Stacked) else weight
    return evaluate_rows(base, start, weight.shape[0] if stop is None else stop, files).astype(np.float64)
