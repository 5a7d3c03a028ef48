"""Export to a checkpoint of Hugging Face: adapters fused, weights as the artifact stands for them.

Gains that were folded into the weights behind them are ones. Stacked matrices are parted again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyc.backends.onnx.layouts import float8_values, unpacked_rows
from pyc.compiler.ir import Operation
from pyc.compiler.quantization import cast_rows
from pyc.models import bert
from pyc.models.catalog import CONFIG, find_architecture
from pyc.models.config import HuggingFaceConfig
from pyc.models.decoder import EMBEDDING, OUTPUT, weight_shapes
from pyc.models.decoder_config import read_decoder_config
from pyc.models.sentence import MODULES, SENTENCE_CONFIG
from pyc.passes.export.folder import new_folder
from pyc.passes.export.onnx import generation_config
from pyc.passes.export.source import Exportable
from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.errors import ArtifactError

SHARD_BYTES = 4 << 30
"""A shard ends behind the tensor with which it would exceed this."""

_SAFETENSORS = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
_TRANSFORMERS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows [start, stop) of a matrix or vector of the artifact, which `operation` reads as its weight `index`."""

    operation: Operation
    index: int
    start: int
    stop: int


def export_checkpoint(source: Exportable, folder: str | os.PathLike[str], *, dtype: str = "auto") -> Path:
    """Write a folder that transformers loads, and return it.

    `dtype` "auto" keeps that of the matrices, and takes f32 when one is quantized or f32, or when vectors would lose by
    it, as where the recipe's scheme has made an f32 checkpoint's matrices bf16. Raises ArtifactError for
    damaged weights, an artifact that carries no config.json, and a folder that cannot be written.
    """
    config, shapes = _expected(source)
    parts = _parts(source, shapes)
    if OUTPUT in parts and OUTPUT not in shapes:
        shapes[OUTPUT] = shapes[EMBEDDING]
    config["tie_word_embeddings"] = OUTPUT not in shapes and EMBEDDING in shapes
    kind = _dtype(source, shapes, parts) if dtype == "auto" else dtype
    config.pop("torch_dtype", None)
    config["dtype"] = _TRANSFORMERS[kind]
    with new_folder(folder) as made:
        _write_shards(made, source, shapes, parts, kind)
        for name in source.files():
            if name != CONFIG:
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(source.artifact.blob(name))
        documents = {CONFIG: config, "generation_config.json": generation_config(source.artifact.header)}
        for name, document in (documents | sentence_documents(source.artifact.header.model)).items():
            path = made / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return Path(os.path.normpath(folder))


def sentence_documents(model: ModelInfo) -> dict[str, object]:
    """Return the files by which sentence-transformers, and a build, pool an encoder's rows as the artifact does."""
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
        SENTENCE_CONFIG: {"max_seq_length": model.context, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": model.hidden_size,
            **{key: mode == model.pooling.mode for key, mode in modes.items()},
        },
    }


def _expected(source: Exportable) -> tuple[dict[str, object], dict[str, tuple[int, ...]]]:
    """Return config.json, and the tensors that the checkpoint has, with their shapes."""
    artifact = source.artifact
    if CONFIG not in source.files():
        raise ArtifactError(f"{artifact.path}: it carries no {CONFIG}; build it again with this pyc")
    data = artifact.blob(CONFIG)
    config, label = msgspec.json.decode(data, type=HuggingFaceConfig), str(artifact.path)
    traits = find_architecture(config, label).decoder
    if traits is None:
        shapes = bert.weight_shapes(bert.read_config(config, label))
    else:
        shapes = weight_shapes(read_decoder_config(config, traits, label))
    document: dict[str, object] = json.loads(data)
    return document, dict(shapes)


def _parts(source: Exportable, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, _Part]:
    """Return where each tensor of the checkpoint is in the artifact; gains that were folded are in none."""
    found: dict[str, _Part] = {}
    for function in source.graph.functions:
        for operation in function.operations:
            for index, weight in enumerate(operation.weights):
                if not weight or _is_scale(operation, index):
                    continue
                name = weight.partition("@")[0].removesuffix(".codes")
                start = 0
                for part in _names(name):
                    rows = shapes.get(part, shapes.get(EMBEDDING, (0,)))[0]
                    found.setdefault(part, _Part(operation, index, start, start + rows))
                    start += rows
    return {name: part for name, part in found.items() if name in shapes or name == OUTPUT}


def _is_scale(operation: Operation, index: int) -> bool:
    """Whether the weight of an operation is not a matrix of its own, but scales or zero points of one."""
    if operation.kind.startswith("float8_"):
        return index == 1
    return operation.kind.startswith("blockwise_") and index in (1, 2)


def _names(stacked: str) -> list[str]:
    """Return the names of the matrices that a weight is made of: a.q+k.weight is a.q.weight and a.k.weight."""
    stem, _, kind = stacked.rpartition(".")
    prefix, _, last = stem.rpartition(".")
    return [".".join(filter(None, (prefix, part, kind))) for part in last.split("+")]


def _dtype(source: Exportable, shapes: Mapping[str, tuple[int, ...]], parts: Mapping[str, _Part]) -> str:
    """Return the dtype of all matrices, if they have one and vectors, which the artifact has in f32, lose nothing."""
    tensors = source.tensors()
    matrices = {tensors[part.operation.weights[part.index]] for part in parts.values()}
    kinds = {tensor.dtype for tensor in matrices if len(tensor.shape) > 1}
    if len(kinds) != 1 or not kinds <= {"bf16", "f16"}:
        return "f32"
    (kind,) = kinds
    vectors = [_rows(source, name, shape, parts.get(name)) for name, shape in shapes.items() if len(shape) == 1]
    return kind if all(_is_exact(rows, kind) for rows in vectors) else "f32"


def _is_exact(rows: NDArray[np.float32], dtype: str) -> bool:
    """Whether bf16 or f16 has all values of `rows`."""
    if dtype == "bf16":
        return not np.any(rows.view(np.uint32) & np.uint32(0xFFFF))
    with np.errstate(over="ignore"):
        return np.array_equal(rows.astype(np.float16).astype(np.float32), rows)


def _rows(source: Exportable, name: str, shape: tuple[int, ...], part: _Part | None) -> NDArray[np.float32]:
    """Return the values of a tensor of the checkpoint."""
    if part is None:
        if len(shape) != 1:
            raise ArtifactError(f"{source.artifact.path}: the program has no weight {name}")
        return np.ones(shape, np.float32)
    operation = part.operation
    array = source.artifact.tensor(operation.weights[part.index])[part.start : part.stop]
    if operation.kind.startswith("float8_") and part.index == 0:
        scale = source.artifact.tensor(operation.weights[1])[part.start : part.stop]
        return float8_values(array, scale, operation.text("format"), operation.integer("block"))
    if operation.kind.startswith("blockwise_") and part.index == 0:
        scales, points = operation.weights[1:3]
        scale = source.artifact.tensor(scales)[part.start : part.stop]
        zero_points = source.artifact.tensor(points)[part.start : part.stop] if points else None
        bits, block = operation.integer("bits"), operation.integer("block")
        return unpacked_rows(array, scale, zero_points, bits, block)[:, : shape[1]]
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32, copy=False)


def _write_shards(
    folder: Path, source: Exportable, shapes: Mapping[str, tuple[int, ...]], parts: Mapping[str, _Part], dtype: str
) -> None:
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    size = total = 0
    for name, shape in shapes.items():
        bytes_ = int(np.prod(shape)) * _ITEM_BYTES[dtype]
        if shards[-1] and size + bytes_ > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = shape
        size, total = size + bytes_, total + bytes_
    count = len(shards)
    names = [f"model-{index + 1:05}-of-{count:05}.safetensors" for index in range(count)]
    if count == 1:
        names = ["model.safetensors"]
    for file_name, shard in zip(names, shards, strict=True):
        with open(folder / file_name, "wb") as file:
            _write_shard(file, shard, dtype, (_rows(source, n, s, parts.get(n)) for n, s in shard.items()))
    if count > 1:
        owners = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        index = {"metadata": {"total_size": total}, "weight_map": owners}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _write_shard(
    file: BinaryIO, shapes: Mapping[str, tuple[int, ...]], dtype: str, values: Iterator[NDArray[np.float32]]
) -> None:
    """Write a file of safetensors: the length of its header, the header, the tensors."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        end = offset + int(np.prod(shape)) * _ITEM_BYTES[dtype]
        header[name] = {"dtype": _SAFETENSORS[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for (name, shape), rows in zip(shapes.items(), values, strict=True):
        if rows.shape != shape:
            raise ArtifactError(f"{name}: the artifact has {list(rows.shape)}, config.json says {list(shape)}")
        file.write(np.ascontiguousarray(cast_rows(rows, dtype)).data)
