"""Export to ONNX: model.onnx with its weights beside it, tokenizer, and what onnxruntime-genai and optimum read."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pyc.passes.export.folder import new_folder
from pyc.passes.export.generation import generation_config
from pyc.passes.export.source import Exportable
from pyc.runtime.errors import ArtifactError, MissingExtraError
from pyc.runtime.host.extras import install_line

MODEL = "model.onnx"
WEIGHTS = "model.onnx.data"


def export_onnx(source: Exportable, folder: str | os.PathLike[str], *, flavour: str = "fused") -> Path:
    """Write a folder that onnxruntime-genai and optimum load, and return it.

    `flavour` "fused" has ONNX Runtime's own operators, "standard" those of ONNX alone, and "float4" these with
    matrices of mxfp4 and nvfp4 as FLOAT4E2M1, which ONNX Runtime's CPU does not run. Raises MissingExtraError when
    onnx is not installed, ArtifactError for damaged weights and a folder that cannot be written.
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"export: the package onnx is not installed; to install it, {install_line('onnx')}"
        ) from error
    from pyc.backends.onnx.export import write_model
    from pyc.backends.onnx.external_data import write_external_data

    header = source.artifact.header
    float4 = _float4_codes(source) if flavour == "float4" else frozenset[str]()
    model, references = write_model(source.graph, source.tensors(), header.model, flavour, float4)
    with new_folder(folder) as made:
        with open(made / WEIGHTS, "wb") as file:
            write_external_data(model, references, source.artifact.tensor, file, WEIGHTS)
        (made / MODEL).write_bytes(model.SerializeToString(deterministic=True))
        try:
            onnx.checker.check_model(str(made / MODEL))
        except onnx.checker.ValidationError as error:
            if not str(error).startswith("Unable to read"):
                raise
            raise ArtifactError(f"{folder}: cannot be written: {MODEL} cannot be read back") from error
        for name in source.files():
            _write_file(made / name, source.artifact.blob(name))
        if header.model.kind == "decoder":
            _write_json(made / "genai_config.json", genai_config(source, flavour))
        _write_json(made / "generation_config.json", generation_config(source))
    return Path(os.path.normpath(folder))


def _float4_codes(source: Exportable) -> frozenset[str]:
    """The tensors of codes that are numbers of e2m1. Raises ArtifactError where there is none."""
    from pyc.backends.onnx.layouts import is_float4

    operations = [operation for function in source.graph.functions for operation in function.operations]
    matrices = (o for o in operations if o.kind == "blockwise_linear" and o.integer("bits") == 8)
    names = dict.fromkeys(o.weights[0] for o in matrices)
    found = frozenset(name for name in names if is_float4(source.artifact.tensor(name)))
    if not found:
        raise ArtifactError(
            f"{source.label}: no matrix is mxfp4 or nvfp4, which the flavour float4 is for; take standard"
        )
    return found


def genai_config(source: Exportable, flavour: str) -> dict[str, object]:
    """Return what onnxruntime-genai reads to run a decoder."""
    from pyc.backends.onnx.export import FLAVOURS

    header = source.artifact.header
    model, cache = header.model, header.model.kv_cache
    assert cache is not None
    attention = next(o for o in source.graph.function("forward").operations if o.kind == "attention")
    defaults = header.generation
    ends = list(defaults.eos_token_ids)
    pad = defaults.pad_token_id if defaults.pad_token_id is not None else ends[0] if ends else 0
    past, present = "past_key_values.%d.", "present.%d."
    options: dict[str, object] = {"log_id": "onnxruntime-genai", "provider_options": []}
    if any(o.kind == "float8_linear" for function in source.graph.functions for o in function.operations):
        options["session.disable_quant_qdq"] = "1"  # DequantizeLinear is computed once, not in every step
    decoder = {
        "session_options": options,
        "filename": MODEL,
        "head_size": FLAVOURS[flavour].head_features(cache.head_dim),
        "hidden_size": model.hidden_size,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "position_ids": "position_ids",
            "past_key_names": f"{past}key",
            "past_value_names": f"{past}value",
        },
        "outputs": {"logits": "logits", "present_key_names": f"{present}key", "present_value_names": f"{present}value"},
        "num_attention_heads": attention.integer("heads"),
        "num_hidden_layers": cache.layers,
        "num_key_value_heads": cache.heads,
    }
    search: dict[str, object] = {
        "do_sample": bool(defaults.do_sample),
        "early_stopping": True,
        "length_penalty": 1.0,
        "max_length": model.context,
        "min_length": 0,
        "num_beams": 1,
        "num_return_sequences": 1,
        "past_present_share_buffer": flavour == "fused",
        "repetition_penalty": float(defaults.repetition_penalty or 1),
        "temperature": float(defaults.temperature or 1),
        "top_k": defaults.top_k if defaults.top_k is not None else 50,
        "top_p": float(defaults.top_p or 1),
    }
    about: dict[str, object] = {
        "bos_token_id": defaults.bos_token_id if defaults.bos_token_id is not None else pad,
        "context_length": model.context,
        "decoder": decoder,
        "eos_token_id": ends or [pad],
        "pad_token_id": pad,
        "type": model.architecture,
        "vocab_size": model.vocab_size,
    }
    return {"model": about, "search": search}


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _write_json(path: Path, document: dict[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
