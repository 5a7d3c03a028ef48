"""Prompt tuning, P-tuning and prefix tuning: adapters that put virtual tokens in front of the input.

PEFT saves one tensor, `prompt_embeddings`, behind whatever encoder or projection trained it:

- PROMPT_TUNING (arXiv:2104.08691) and P_TUNING (arXiv:2103.10385): [tokens, hidden], in place of embeddings.
- PREFIX_TUNING (arXiv:2101.00190): [tokens, layers * 2 * kv_heads * head_dim], keys and values of each layer in turn,
  as attention reads them: nothing rotates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyc.compiler.weights import Source
from pyc.models.adapter_config import AdapterConfig
from pyc.models.messages import quoted
from pyc.runtime.errors import AdapterError

TENSOR = "prompt_embeddings"

MAX_VIRTUAL_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class VirtualTokens:
    """What stands in front of every sequence: `source` [tokens, width], embeddings, or keys and values if `is_prefix`.

    `layers` and `heads` are what the adapter says of the model that it was trained on, None where it does not.
    """

    source: Source
    is_prefix: bool
    layers: int | None
    heads: int | None

    @property
    def tokens(self) -> int:
        """How many there are."""
        return self.source.shape[0]


def check_prompt_config(config: AdapterConfig, where: str) -> None:
    """Raise AdapterError, naming the field, unless the configuration is that of a decoder's virtual tokens."""
    count = config.num_virtual_tokens
    if count is None:
        raise AdapterError(f"{where}: num_virtual_tokens is missing")
    if not 1 <= count <= MAX_VIRTUAL_TOKENS:
        raise AdapterError(f"{where}: num_virtual_tokens is {count}, expected 1 to {MAX_VIRTUAL_TOKENS}")
    if config.task_type not in (None, "CAUSAL_LM"):
        raise AdapterError(
            f"{where}: task_type is {quoted(config.task_type)}, expected CAUSAL_LM: virtual tokens stand in front of a "
            "decoder's text"
        )
    if config.num_transformer_submodules not in (None, 1):
        raise AdapterError(
            f"{where}: num_transformer_submodules is {config.num_transformer_submodules}, expected 1, a decoder"
        )
    if config.modules_to_save:
        raise AdapterError(
            f"{where}: modules_to_save names {quoted(config.modules_to_save[0])}; beside virtual tokens no module is "
            "replaced: save it as an adapter of its own"
        )


def read_virtual_tokens(tensors: Mapping[str, Source], config: AdapterConfig, where: str) -> VirtualTokens:
    """Return the virtual tokens of an adapter, whose configuration was checked.

    Raises AdapterError, naming the tensor, for one that is missing, unknown, or not of the shape that the configuration
    says.
    """
    source = tensors.get(TENSOR)
    other = next((stored.tensor for name, stored in tensors.items() if name != TENSOR), None)
    if source is None:
        found = f"; found {quoted(other)}" if other is not None else ""
        raise AdapterError(f"{where}: tensor '{TENSOR}' is missing{found}; save it again with PEFT")
    if other is not None:
        raise AdapterError(f"{where}: tensor {quoted(other)} is no part of virtual tokens, which are '{TENSOR}' alone")
    is_prefix = config.peft_type == "PREFIX_TUNING"
    width = config.token_dim
    if is_prefix and width is not None and config.num_layers is not None:
        width *= 2 * config.num_layers
    elif is_prefix:
        width = None
    wanted = (config.num_virtual_tokens, width)
    if len(source.shape) != 2 or any(w not in (None, got) for w, got in zip(wanted, source.shape, strict=True)):
        form = "num_layers * 2 * token_dim" if is_prefix else "token_dim"
        raise AdapterError(
            f"{where}: tensor '{TENSOR}' has shape {list(source.shape)}, expected [{wanted[0]}, {width or 'any'}], "
            f"[num_virtual_tokens, {form}], as adapter_config.json says"
        )
    if not is_prefix:
        return VirtualTokens(source, is_prefix, None, None)
    return VirtualTokens(source, is_prefix, config.num_layers, config.num_attention_heads)
