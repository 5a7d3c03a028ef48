"""What `ensure_weight_tying` makes of a LoRA adapter for one model, as PEFT loads it (`models/adapter_tying.py`)."""

from __future__ import annotations

from dataclasses import replace

from pyc.compiler.ir import Module
from pyc.compiler.weights import Transposed
from pyc.models.adapter_tying import Tying
from pyc.models.adapters import Adapter
from pyc.passes.adapters.adapter_targets import EMBEDDING_ENDING, HEAD, has_tied_head
from pyc.runtime.errors import AdapterError

_EMBEDDING_MODULE = EMBEDDING_ENDING.removesuffix(".weight")
_HEAD_MODULE = HEAD.removesuffix(".weight")


def tied_adapter(adapter: Adapter, module: Module) -> Adapter:
    """Return the adapter with the same for head and embedding where the model ties them, and without a `tying`.

    Raises AdapterError for tensors of a head that count over a tied model only.
    """
    tying = adapter.tying
    if tying is None:
        return adapter
    if not has_tied_head(module):
        if tying.unnamed is not None:
            raise AdapterError(
                f"adapter {adapter.reference!r}: tensor {tying.unnamed!r} belongs to a head that ensure_weight_tying "
                "ties to the embedding, but the model's head is not its embedding; was the adapter trained on another "
                "model?"
            )
        return replace(adapter, tying=None)
    return _with_weights(adapter) if tying.scale is None else _with_factors(adapter, tying, tying.scale)


def _with_factors(adapter: Adapter, tying: Tying, scale: float) -> Adapter:
    updates = {update.module: update for update in adapter.low_rank}
    head = updates.get(_HEAD_MODULE)
    name = next((name for name in updates if name.rpartition(".")[2] == _EMBEDDING_MODULE), None)
    if name is None:
        if head is None:
            return replace(adapter, tying=None)
        raise AdapterError(
            f"adapter {adapter.reference!r}: ensure_weight_tying is set, but the file has no lora_embedding tensors of "
            f"{_EMBEDDING_MODULE}, with which {_HEAD_MODULE} shares its factors; save the adapter again with PEFT"
        )
    embedding = updates[name]
    if head is None:
        updates[_HEAD_MODULE] = replace(embedding, module=_HEAD_MODULE, scale=scale)
    else:  # transposed twice, since a merge treats the factors of an embedding by that
        updates[name] = replace(embedding, a=Transposed(Transposed(head.a)), b=Transposed(Transposed(head.b)))
    return replace(adapter, low_rank=tuple(updates.values()), tying=None)


def _with_weights(adapter: Adapter) -> Adapter:
    weights = dict(adapter.replacements)
    name = next((name for name in weights if name.endswith(EMBEDDING_ENDING)), None)
    if HEAD not in weights or name is None:
        raise AdapterError(
            f"adapter {adapter.reference!r}: ensure_weight_tying is set and modules_to_save has head or embedding, but "
            f"the file has no whole weight of {_EMBEDDING_MODULE if name is None else _HEAD_MODULE}; save the adapter "
            "again with PEFT"
        )
    weights[name] = weights[HEAD]
    of_base = adapter.of_base - {HEAD}
    return replace(adapter, replacements=tuple(sorted(weights.items())), of_base=of_base, tying=None)
