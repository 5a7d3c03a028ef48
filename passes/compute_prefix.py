"""Compute the keys and values of virtual tokens, which every sequence of the artifact then begins with (ADR 40).

Those of prefix tuning are the adapter's own. Those of prompt tuning and P-tuning are what attention makes of its
embeddings: they stand at the first positions, and in a decoder nothing behind a token changes its keys. They are
computed once, by the weights as they are before a scheme rounds them, in f32; a product takes 16384 rows of a weight at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyc.compiler.evaluate import evaluate_rows, unstored
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module, Prefix
from pyc.compiler.scales import Floats
from pyc.compiler.weights import Rounded, Stacked, Stored
from pyc.models.adapters import Adapter
from pyc.models.prompt_adapters import VirtualTokens
from pyc.passes.interpret_text import TextInterpreter, Values, Windows, floats
from pyc.runtime.artifact.format import PassRecord
from pyc.runtime.errors import AdapterError

VERSION = 1

Weighted = Sequence[tuple[Adapter, float]]


def reserve_prefix(module: Module, adapters: Weighted, *, is_merged: bool = False) -> Module:
    """Return a module that has been read with room for the virtual tokens of its adapters, if there are any.

    Raises AdapterError when they do not fit the model or each other.
    """
    prompts = [(adapter, weight) for adapter, weight in adapters if adapter.virtual is not None]
    if not prompts:
        return module
    adapter, weight = prompts[0]
    where = f"adapter {adapter.name!r}"
    if len(prompts) > 1:
        raise AdapterError(
            f"{where}: {prompts[1][0].name!r} has virtual tokens, too, and a model has those of one adapter; leave one "
            "out"
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
    values = _by_layer(module, given) if adapter.virtual.is_prefix else _interpreted(module, given, files)
    options = {"adapter": adapter.name, "kind": adapter.kind, "tokens": str(adapter.virtual.tokens)}
    record = PassRecord("compute_prefix", VERSION, msgspec.json.encode(options).decode())
    prefix = Prefix(adapter.virtual.tokens, np.ascontiguousarray(values, "<f4").tobytes())
    return replace(module, prefix=prefix, passes=(*module.passes, record))


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


def _interpreted(module: Module, embeddings: Floats, files: SourceFiles) -> NDArray[np.float32]:
    """Return the keys and values that attention of each layer reads of rows [tokens, hidden] in place of embeddings."""
    cache = module.info.kv_cache
    assert cache is not None
    text = TextInterpreter(replace(module, prefix=None), Windows(np.zeros((1, len(embeddings)), np.int32), ""))
    function = module.graph.function("forward")
    last_use = {name: index for index, o in enumerate(function.operations) for name in o.operands}
    result = np.zeros((cache.layers, 2, cache.heads, len(embeddings), cache.head_dim), np.float32)
    values: Values = text.inputs()

    def rows_of(name: str, start: int, stop: int) -> Floats:
        weight = module.weights[name]
        is_stored = isinstance(weight, Stored | Rounded | Stacked)
        return evaluate_rows(unstored(weight) if is_stored else weight, start, stop, files)

    missing = cache.layers
    for index, operation in enumerate(function.operations):
        operands = [values.get(name) for name in operation.operands]
        if operation.kind == "attention":
            for place, operand in enumerate(operands[1:3]):
                rows = floats(operand).reshape(len(embeddings), cache.heads, cache.head_dim)
                result[operation.integer("layer"), place] = rows.swapaxes(0, 1)
            missing -= 1
            if not missing:
                break
        is_embedding = operation.kind == "embedding"
        values[operation.result.name] = embeddings if is_embedding else text.value(operation, operands, rows_of)
        for name in operation.operands:
            if last_use[name] == index:
                values.pop(name, None)
    return cast("NDArray[np.float32]", result)
