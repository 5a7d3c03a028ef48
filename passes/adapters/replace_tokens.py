"""What trainable tokens of an adapter make of the embedding and the head: rows that the adapter brings whole."""

from __future__ import annotations

from pyc.compiler.weights import Expression, Replaced
from pyc.models.adapters import Adapter
from pyc.models.trained_tokens import TokenRows
from pyc.passes.adapters.adapter_targets import HEAD, is_left_out, named_weight
from pyc.runtime.errors import AdapterError


def replace_tokens(weights: dict[str, Expression], adapter: Adapter, is_tied: bool) -> None:
    """Put an adapter's trainable tokens into `weights`, of a model whose head is its embedding if it `is_tied`.

    There the embedding's rows are the head's, too, unless the head has rows of other tokens. What the adapter adds to
    the head comes on top of them.

    Raises AdapterError for rows that do not fit, and those of a module that the adapter changes otherwise.
    """
    tokens = adapter.tokens
    if tokens is None:
        return
    if tokens.is_for_both and not is_tied:
        raise AdapterError(
            f"adapter {adapter.reference!r}: its trainable tokens of the embedding are those of {HEAD}, too, but the "
            "model's head is not its embedding; was the adapter trained on another model?"
        )
    updates = (*adapter.low_rank, *adapter.scales, *adapter.updates)
    changed = {f"{update.module}.weight" for update in updates}
    saved = {name for name, _ in adapter.replacements if name not in adapter.of_base}
    for rows, is_own in ((tokens.embedding, True), (tokens.head, tokens.has_own_head or not is_tied)):
        if rows is None or not is_own or is_left_out(weights, f"{rows.module}.weight"):
            continue
        names = [named_weight(weights, f"{rows.module}.weight", adapter.reference)]
        if rows is tokens.embedding and is_tied and not tokens.has_own_head and HEAD in weights:
            names.append(HEAD)
        for name in names:
            if name in saved or (name == names[0] and f"{rows.module}.weight" in changed):
                module = name.removesuffix(".weight")
                raise AdapterError(
                    f"adapter {adapter.reference!r}: tensor {rows.rows.tensor!r} has rows of {module}, which the "
                    "adapter also changes otherwise; PEFT computes with no such adapter: train it again without the "
                    "one or the other"
                )
            _check(rows, weights[name], adapter)
            weights[name] = Replaced(weights[name], rows.rows, rows.indices)


def _check(rows: TokenRows, weight: Expression, adapter: Adapter) -> None:
    tokens, hidden = weight.shape
    if rows.rows.shape[1] != hidden:
        raise AdapterError(
            f"adapter {adapter.reference!r}: tensor {rows.rows.tensor!r} has shape {list(rows.rows.shape)}, expected "
            f"[{len(rows.indices)}, {hidden}] for the weight {list(weight.shape)} of {rows.module}; was the adapter "
            "trained on another model?"
        )
    if (last := max(rows.indices)) >= tokens:
        raise AdapterError(
            f"adapter {adapter.reference!r}: it has trained token {last}, and the model has {tokens} tokens: in "
            "transformers, call resize_token_embeddings on the model as before the training, load the adapter with "
            "PEFT, save merge_and_unload() with the adapter's tokenizer, and build that"
        )
