"""Export to a checkpoint of Hugging Face: adapters fused, weights as the artifact stands for them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.quantization import cast_rows
from pyc.models.catalog import CONFIG
from pyc.models.sentence import MODULES, SENTENCE_CONFIGS
from pyc.models.sentence_arguments import SIDE
from pyc.passes.export.folder import new_folder
from pyc.passes.export.generation import generation_config
from pyc.passes.export.parts import CheckpointParts, checkpoint_parts
from pyc.passes.export.shards import Entry, write_shards
from pyc.passes.export.source import Exportable
from pyc.runtime.artifact.format import TRUNCATION
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.text.special_tokens import CONFIG as TOKENIZER_CONFIG
from pyc.runtime.text.special_tokens import TOKENIZER
from pyc.runtime.text.text_cut import TextCut, read_text_cut

SAFETENSORS = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
_TRANSFORMERS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def export_checkpoint(source: Exportable, folder: str | os.PathLike[str], *, dtype: str = "auto") -> Path:
    """Write a folder that transformers loads, and return it.

    `dtype` "auto" keeps that of the matrices, and takes f32 when one is quantized or f32, or when vectors would lose by
    it, as where the recipe's scheme has made an f32 checkpoint's matrices bf16. Raises ArtifactError for
    damaged weights, an artifact that carries no config.json, and a folder that cannot be written.
    """
    found = checkpoint_parts(source)
    kind = _dtype(found) if dtype == "auto" else dtype
    with new_folder(folder) as made:
        write_shards(made, [dense_entry(found, name, kind) for name in found.shapes])
        write_documents(made, found, kind)
    return Path(os.path.normpath(folder))


def dense_entry(found: CheckpointParts, name: str, dtype: str) -> Entry:
    """A tensor as numbers of `dtype`: "f32", "f16" or "bf16"."""
    return Entry(name, SAFETENSORS[dtype], found.shapes[name], lambda: cast_rows(found.rows(name), dtype))


def write_documents(made: Path, found: CheckpointParts, dtype: str, **config: object) -> None:
    """Write config.json, with `config` in it, and every other file of the checkpoint that has no weights."""
    source = found.source
    for name in source.files():
        if name != CONFIG:
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.artifact.blob(name))
    given = {key: value for key, value in found.config.items() if key not in ("torch_dtype", "quantization_config")}
    documents = {
        CONFIG: given | {"dtype": _TRANSFORMERS[dtype]} | config,
        "generation_config.json": generation_config(source),
    }
    for name, document in (documents | sentence_documents(source.artifact)).items():
        path = made / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def sentence_documents(artifact: Artifact) -> dict[str, object]:
    """Return the files by which sentence-transformers, and a build, cut texts and pool an encoder's rows as the
    artifact does."""
    model = artifact.header.model
    if model.pooling is None:
        return {}
    steps = ["Transformer", "Pooling", *(["Normalize"] if model.pooling.normalize else [])]
    folders = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": index, "name": str(index), "path": folder, "type": f"sentence_transformers.models.{step}"}
        for index, (step, folder) in enumerate(zip(steps, folders, strict=False))
    ]
    modes = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    return {
        MODULES: modules,
        SENTENCE_CONFIGS[0]: {**_text_settings(artifact), "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": model.hidden_size,
            **{key: mode == model.pooling.mode for key, mode in modes.items()},
        },
    }


def _text_settings(artifact: Artifact) -> dict[str, object]:
    """Return how long a text is, and the end that a longer one loses where the tokenizer's files might say another."""
    context = artifact.header.model.context
    blobs = {blob.name for blob in artifact.header.blobs}
    named = [artifact.blob(name) for name in (TOKENIZER, TOKENIZER_CONFIG) if name in blobs]
    cut = TextCut(direction="Right", max_length=context)
    if TRUNCATION in artifact.header.requires:
        cut = read_text_cut(artifact.blob(TOKENIZER))
    settings: dict[str, object] = {"max_seq_length": min(context, cut.max_length)}
    if any(text in data for data in named for text in (SIDE.encode(), b'"Left"')):
        settings["tokenizer_args"] = {SIDE: cut.direction.lower()}
    return settings


def _dtype(found: CheckpointParts) -> str:
    """Return the dtype of all matrices, if they have one and vectors, which the artifact has in f32, lose nothing."""
    tensors = [found.tensor(name) for name in found.parts]
    kinds = {tensor.dtype for tensor in tensors if tensor is not None and len(tensor.shape) > 1}
    if len(kinds) != 1 or not kinds <= {"bf16", "f16"}:
        return "f32"
    (kind,) = kinds
    vectors = [found.rows(name) for name, shape in found.shapes.items() if len(shape) == 1]
    return kind if all(_is_exact(rows, kind) for rows in vectors) else "f32"


def _is_exact(rows: NDArray[np.float32], dtype: str) -> bool:
    """Whether bf16 or f16 has all values of `rows`."""
    if dtype == "bf16":
        return not np.any(rows.view(np.uint32) & np.uint32(0xFFFF))
    with np.errstate(over="ignore"):
        return np.array_equal(rows.astype(np.float16).astype(np.float32), rows)


