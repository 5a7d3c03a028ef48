"""What the passes that fuse adapters share: finding the weight a target names, replacements, untying the head."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from pyc.compiler.ir import Function, Graph, Module
from pyc.compiler.operands import sources
from pyc.compiler.rewrite import weight_readers
from pyc.compiler.weights import Added, Directed, Expression, LowRank, Replaced, Rotated, ScaledColumns, ScaledRows
from pyc.models.adapters import Adapter
from pyc.runtime.errors import AdapterError

HEAD = "lm_head.weight"
"""The output matrix's name in every decoder checkpoint."""
EMBEDDING_ENDING = "embed_tokens.weight"
_ADAPTED = LowRank | Added | Directed | Replaced | Rotated | ScaledRows | ScaledColumns
"""What adapters make of a weight, their `base`."""


def is_left_out(weights: Mapping[str, Expression], wanted: str) -> bool:
    """Return whether an adapter's `wanted` is of BERT's pooler, which embeddings do not read and no model here has."""
    return "pooler" in wanted.split(".") and not any("pooler" in name.split(".") for name in weights)


def named_weight(weights: Mapping[str, Expression], wanted: str, adapter: str) -> str:
    """Return the weight that an adapter calls `wanted`; AdapterError when there is none.

    A missing or extra base prefix ("bert.", "model.") is tolerated when exactly one weight ends so.
    """
    if wanted in weights:
        return wanted
    ending = [n for n in weights if n.endswith("." + wanted) or wanted.endswith("." + n)]
    if len(ending) == 1:
        return ending[0]
    near = difflib.get_close_matches(wanted, list(weights), n=1)
    hint = f"; the nearest is {near[0]!r}" if near else ""
    raise AdapterError(
        f"adapter {adapter!r} changes {wanted!r}, which the model does not have{hint}; "
        "was the adapter trained on another model?"
    )


def with_replacements(weights: dict[str, Expression], adapter: Adapter) -> None:
    """Put the adapter's whole weights (modules_to_save, trained biases) in the place of the model's.

    A weight of the base goes under what other adapters did to it, and also to the matrix that was tied to it: PEFT
    writes it into the parameter that both share, but into no copy of it that modules_to_save made. Where both are
    there, the head's is the one that stays.
    """
    embedding = next((name for name in weights if name.endswith(EMBEDDING_ENDING)), "")
    shared = {name for name in (embedding, HEAD) if name in weights}
    if len({base_of(weights[name]) for name in shared}) > 1:
        shared = set()
    ordered = sorted(adapter.replacements, key=lambda item: (item[0] not in adapter.of_base, item[0] == HEAD))
    for wanted, source in ordered:
        if is_left_out(weights, wanted):
            continue
        is_tied = wanted == HEAD and HEAD not in weights and wanted in adapter.of_base
        name = named_weight(weights, embedding if is_tied else wanted, adapter.reference)
        check_shape(wanted, source.shape, weights[name].shape, adapter.reference, source)
        if wanted not in adapter.of_base:
            weights[name] = source
            continue
        for each in shared if name in shared else (name,):
            weights[each] = with_base(weights[each], source)


def base_of(weight: Expression) -> Expression:
    """Return what adapters made a weight from."""
    return base_of(weight.base) if isinstance(weight, _ADAPTED) else weight


def has_tied_head(module: Module) -> bool:
    """Return whether head and embedding were one matrix before adapters changed them."""
    embedding = next((name for name in module.weights if name.endswith(EMBEDDING_ENDING)), None)
    if HEAD not in module.weights or embedding is None:
        return module.info.kind == "decoder"
    return base_of(module.weights[HEAD]) == base_of(module.weights[embedding])


def with_base(weight: Expression, base: Expression) -> Expression:
    """Return a weight as adapters would have made it from another base."""
    if isinstance(weight, _ADAPTED):
        return replace(weight, base=with_base(weight.base, base))
    return base


def touched_by(adapter: Adapter, modules: Iterable[str]) -> tuple[str, ...]:
    """Return the weights that an adapter changes for `modules` and for what it replaces, but not for what shares it."""
    replaced = (name for name, _ in adapter.replacements if name not in adapter.of_base)
    own = (HEAD,) if adapter.tokens is not None and adapter.tokens.has_own_head else ()
    return (*(f"{module}.weight" for module in modules), *replaced, *own)


def check_shape(
    target: str, got: tuple[int, ...], expected: tuple[int, ...], adapter: str, *parts: Expression
) -> None:
    """Raise AdapterError unless an update has its weight's shape; `parts` are what it is made of."""
    if got != expected:
        tensors = " and ".join(repr(source.tensor) for part in parts for source in sources(part))
        raise AdapterError(
            f"adapter {adapter!r}: {target}: the update of {tensors} has shape {list(got)}, the model's weight has "
            f"{list(expected)}; {_remedy(target, got, expected)}"
        )


def _remedy(target: str, got: tuple[int, ...], expected: tuple[int, ...]) -> str:
    has_rows_of_tokens = f"{target.removesuffix('.weight')}.weight".endswith((EMBEDDING_ENDING, HEAD))
    if not has_rows_of_tokens or got[1:] != expected[1:]:
        return "was the adapter trained on another model?"
    return (
        f"the adapter was trained with a vocabulary of {got[0]}: in transformers, call "
        f"resize_token_embeddings({got[0]}) on the model, load the adapter with PEFT, save merge_and_unload() with the "
        "adapter's tokenizer, and build that"
    )


def untie_head(module: Module, touched: Iterable[str]) -> Module:
    """Give the output matrix its own name when an adapter touches it or the embedding it is tied to.

    PEFT applies an update of one to that one alone, whatever the tying.
    """
    if HEAD in module.weights or not any(name.endswith((EMBEDDING_ENDING, HEAD)) for name in touched):
        return module
    graph = Graph(tuple(_untied(function) for function in module.graph.functions))
    if graph == module.graph:
        return module
    tied = next(f for f in module.graph.functions if f.name == "logits").operations[-1].weights[0]
    assert weight_readers(module.graph, tied)
    return module.with_graph(graph, {**module.weights, HEAD: module.weights[tied]})


def _untied(function: Function) -> Function:
    if function.name != "logits":
        return function
    last = function.operations[-1]
    return replace(function, operations=(*function.operations[:-1], replace(last, weights=(HEAD, *last.weights[1:]))))
