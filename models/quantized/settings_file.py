"""Settings of a quantization that lie in a file of their own, as AutoGPTQ and AutoAWQ wrote them before transformers
had `quantization_config`.

`quantize_config.json`, or `quant_config.json`, counts where config.json has no `quantization_config` and a module has
`qweight`: transformers would read the checkpoint as numbers, which are not there. Names and defaults are AutoGPTQ's.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyc.models.checkpoint import Checkpoint

FILES = ("quantize_config.json", "quant_config.json")
"""In the order of AutoGPTQ: the first that is there counts."""
_SYNONYMS: Mapping[str, str] = {"w_bit": "bits", "q_group_size": "group_size"}


def settings_from_file(checkpoint: Checkpoint) -> tuple[str, dict[str, object]] | None:
    """Return the file's name and its settings as `quantization_config` has them; None where no file is meant.

    Raises IngestError for a file that is no JSON object.
    """
    if not any(name.endswith(".qweight") for name in checkpoint.tensors):
        return None
    for name in FILES:
        document = checkpoint.directory.parse(name, dict[str, object])
        if document is not None:
            return name, _as_quantization_config({key.lower(): value for key, value in document.items()})
    return None


def _as_quantization_config(document: Mapping[str, object]) -> dict[str, object]:
    is_awq = "version" in document or "w_bit" in document
    given = {_SYNONYMS.get(key, key): _lower(key, value) for key, value in document.items() if value is not None}
    if given.get("is_marlin_format"):
        given["checkpoint_format"] = "marlin"
    if is_awq:
        return {"quant_method": "awq", **given}
    return {"quant_method": "gptq", "bits": 4, "group_size": -1, **given}


def _lower(key: str, value: object) -> object:
    return value.lower() if key in ("quant_method", "checkpoint_format") and isinstance(value, str) else value
