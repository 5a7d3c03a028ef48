"""`ensure_weight_tying` of LoRA adapters: the output head gets what the embedding gets, where the model ties both.

PEFT (0.19 and later) puts the head's factors, or its whole weight, in the embedding's memory: of a file that has both,
the head's are loaded last and count. Factors do whether target_modules names the head or not. Over a model that ties
nothing the field means nothing, and so no adapter was trained for it that has factors of a head that is not named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyc.compiler.weights import Source
from pyc.models.adapter_config import HEAD, AdapterConfig, reason_left_alone, ties_factors, ties_whole_weights
from pyc.models.adapter_kinds import scale_of


@dataclass(frozen=True, slots=True)
class Tying:
    """What an adapter gives head and embedding together: factors, multiplied by `scale` for the head, or whole weights.

    `unnamed` is a factor of the head that counts only where the model ties it to the embedding, if there is one.
    """

    scale: float | None
    unnamed: str | None


def read_tying(tensors: Mapping[str, Source], config: AdapterConfig, where: str) -> Tying | None:
    """Return what `ensure_weight_tying` means for an adapter of these tensors; None where it means nothing."""
    if ties_whole_weights(config):
        return Tying(None, None)
    if not ties_factors(config, where):
        return None
    is_named = reason_left_alone(config, HEAD, where, is_tied=False) is None
    of_head = next((source.tensor for name, source in tensors.items() if name.startswith(f"{HEAD}.lora_")), None)
    return Tying(scale_of(config, HEAD, where), None if is_named else of_head)
