"""Export to a checkpoint of compressed-tensors, which transformers and vLLM load: codes and scales as they are built.

| in the artifact | format | of a matrix [N, K] |
|---|---|---|
| integers of 4 bits in groups | pack-quantized | weight_packed i32 [N, K / 8], weight_scale [N, groups], weight_shape i64 [2], and of asymmetric ones weight_zero_point i32 [N / 8, groups] |
| integers of 8 bits and lookup tables, activations of 8 bits | int-quantized | weight i8 [N, K], weight_scale [N, 1] or [N, groups] |
| the same, other activations | pack-quantized | weight_packed i32 [N, K / 4], the rest as above |
| e4m3 | float-quantized | weight f8 [N, K], weight_scale [1], [N, 1] or [N / 128, K / 128] |

Embeddings and vectors are numbers: compressed-tensors quantizes what torch calls Linear. Scales are f32, as in the
artifact; what loads them may round them to the model's dtype.

An encoder's classes have matrices that no vector needs and that the export leaves out, as the pooler, under names with
or without "bert." in front (vLLM has "model."): `ignore` has a pattern of them. transformers multiplies its matrices as numbers
(`dequantize`): else they become numbers by a hook of the model's first call, which sentence-transformers goes around.
"""  # noqa: E501

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyc.models.bert import LAYERS
from pyc.models.decoder import EMBEDDING, OUTPUT
from pyc.passes.build_events import BuildEvent, log_note
from pyc.passes.export.checkpoint import SAFETENSORS, dense_entry, write_documents
from pyc.passes.export.folder import new_folder
from pyc.passes.export.parts import CheckpointParts, Part, checkpoint_parts
from pyc.passes.export.shards import Entry, write_shards
from pyc.passes.export.source import Exportable
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.rounding import ceil_div

_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
_BLOCK = 128
_OUTSIDE_LAYERS = f"re:(?!(.*\\.)?{re.escape(LAYERS)})"
_TRANSFORMERS_ONLY = (
    "its matrices are quantized in more than one way, so sentence-transformers cannot run the export; transformers "
    "can, but for asymmetric schemes. For sentence-transformers give all one scheme, or export it with --to hf"
)


@dataclass(frozen=True, slots=True)
class _Weights:
    """What config.json says of matrices that are quantized alike, with compressed-tensors' names."""

    num_bits: int
    type: str
    symmetric: bool
    strategy: str
    group_size: int | None = None
    block_structure: tuple[int, int] | None = None
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class _Group:
    """How some matrices are quantized; with `rounds_activations`, rows of activations are rounded to 8 bits, too."""

    format: str
    weights: _Weights
    rounds_activations: bool = False

    def document(self, targets: list[str]) -> dict[str, object]:
        """The entry of config_groups for the modules `targets`."""
        activations = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
        return {
            "targets": targets,
            "weights": asdict(self.weights),
            "input_activations": activations if self.rounds_activations else None,
            "output_activations": None,
            "format": self.format,
        }


def export_compressed(
    source: Exportable,
    folder: str | os.PathLike[str],
    *,
    dtype: str = "auto",
    progress: Callable[[BuildEvent], None] = log_note,
) -> Path:
    """Write a folder that transformers loads with the package compressed-tensors, and return it.

    `dtype` is of what is not quantized; "auto" is that of the checkpoint. `progress` gets a note of an encoder that
    sentence-transformers cannot run. Raises ArtifactError for an artifact whose
    matrices nothing has quantized, one that compressed-tensors cannot express, and as `export_checkpoint`.
    """
    found = checkpoint_parts(source)
    kind = _own_dtype(found) if dtype == "auto" else dtype
    matrices = {
        name: _Matrix(found, name, found.parts[name])
        for name, shape in found.shapes.items()
        if len(shape) == 2 and name in found.parts and name != EMBEDDING and _is_quantized(found.parts[name])
    }
    certain = {options[0] for options in (matrix.groups() for matrix in matrices.values()) if len(options) == 1}
    groups: dict[_Group, list[str]] = {}
    dense: list[str] = []
    entries: list[Entry] = []
    for name, shape in found.shapes.items():
        if name not in matrices:
            entries.append(dense_entry(found, name, kind))
            if len(shape) == 2 and name != EMBEDDING and "embeddings" not in name:
                dense.append(name.removesuffix(".weight"))
            continue
        options = matrices[name].groups()
        group = next((option for option in options if option in certain), options[0])
        groups.setdefault(group, []).append(name.removesuffix(".weight"))
        entries.extend(matrices[name].entries(group))
    if not groups:
        raise ArtifactError(
            f"{source.label}: none of its matrices is quantized; export it with --to hf, or build it with a "
            "scheme"
        )
    is_encoder = source.artifact.header.model.kind == "encoder"
    if not is_encoder and OUTPUT not in found.shapes:
        dense.append(OUTPUT.removesuffix(".weight"))
    document = _encoder_document(groups, dense) if is_encoder else _document(groups, dense)
    if is_encoder and not document["dequantize"]:
        progress(BuildEvent("emit", 0, 0, f"{source.label}: {_TRANSFORMERS_ONLY}"))
    with new_folder(folder) as made:
        write_shards(made, entries)
        write_documents(made, found, kind, quantization_config=document)
    return Path(os.path.normpath(folder))


class _Matrix:
    """A quantized matrix of the artifact, or the rows of one that a tensor of the checkpoint has."""

    def __init__(self, found: CheckpointParts, name: str, part: Part) -> None:
        self.name = name
        self.stem = name.removesuffix(".weight")
        self.shape = found.shapes[name]
        self._part = part
        self._artifact = found.source.artifact
        self._operation = part.operation
        self._bits = 8 if self.is_float else part.operation.integer("bits")
        self._scale = self._tensor(1).astype(np.float32, copy=False)

    @property
    def is_float(self) -> bool:
        """Whether its codes are floating point."""
        return self._operation.kind.startswith("float8_")

    def groups(self) -> tuple[_Group, ...]:
        """How it is quantized: in one way, or, where a row is one group, in the two that say the same of it, of which
        the matrices beside it decide. Raises ArtifactError where compressed-tensors has no name for it."""
        columns = self.shape[1]
        if self.is_float:
            return (self._float_group(),)
        block = self._operation.integer("block")
        zeros = bool(self._operation.weights[2])
        rounds = self._bits == 8 and self._operation.text("activations") == "int8"
        is_row = not zeros and bool(np.all(self._scale == self._scale[:, :1]))
        strategies: list[tuple[str, int | None]] = [("channel", None)] if is_row else []
        if columns == block or not is_row:
            strategies.insert(0, ("group", block))
        if not is_row and columns % block:
            raise self._refused(f"{columns} inputs are no multiple of its groups of {block}")
        if not rounds and columns % (32 // self._bits):
            raise self._refused(f"{columns} inputs of {self._bits} bits do not fill words of 32")
        format_name = "int-quantized" if rounds else "pack-quantized"
        weights = (_Weights(self._bits, "int", not zeros, strategy, size) for strategy, size in strategies)
        return tuple(_Group(format_name, each, rounds) for each in weights)

    def _float_group(self) -> _Group:
        if self._operation.text("format") != "e4m3":
            raise self._refused(f"it is {self._operation.text('format')}, and compressed-tensors has e4m3 alone")
        if self._operation.integer("block"):
            blocks = self._scale[::_BLOCK].repeat(_BLOCK, axis=0)[: len(self._scale)]
            if not np.array_equal(blocks, self._scale):
                raise self._refused("its blocks do not begin where it does")
            weights = _Weights(8, "float", True, "block", block_structure=(_BLOCK, _BLOCK))
        else:
            strategy = "tensor" if np.all(self._scale == self._scale[0, 0]) else "channel"
            weights = _Weights(8, "float", True, strategy)
        return _Group("float-quantized", weights)

    def entries(self, group: _Group) -> Iterator[Entry]:
        """Yield the tensors that stand for it, quantized as `group`."""
        rows, columns = self.shape
        scale = self._scales(group.weights.strategy)
        yield Entry(f"{self.stem}.weight_scale", SAFETENSORS["f32"], scale.shape, lambda: scale)
        if group.format == "pack-quantized":
            yield Entry(
                f"{self.stem}.weight_packed",
                "I32",
                (rows, ceil_div(columns * self._bits, 32)),
                lambda: self._codes().view("<i4"),
            )
            shape = np.array(self.shape, "<i8")
            yield Entry(f"{self.stem}.weight_shape", "I64", (2,), lambda: shape)
            if self._operation.weights[2]:
                points = _packed_by_rows(self._tensor(2), scale.shape[1])
                yield Entry(f"{self.stem}.weight_zero_point", "I32", points.shape, lambda: points)
        elif group.format == "int-quantized":
            yield Entry(self.name, "I8", self.shape, lambda: (self._codes() ^ np.uint8(128)).view(np.int8))
        else:
            yield Entry(self.name, "F8_E4M3", self.shape, self._codes)

    def _scales(self, strategy: str) -> NDArray[np.float32]:
        if strategy == "tensor":
            return np.ascontiguousarray(self._scale[0])
        if strategy == "channel":
            return np.ascontiguousarray(self._scale[:, :1])
        return np.ascontiguousarray(self._scale[::_BLOCK] if strategy == "block" else self._scale)

    def _codes(self) -> NDArray[np.uint8]:
        """The bytes of the codes of each row, without what pads the last block."""
        codes = self._tensor(0).reshape(self.shape[0], -1)
        return np.ascontiguousarray(codes[:, : self.shape[1] * self._bits // 8], np.uint8)

    def _tensor(self, index: int) -> NDArray[np.generic]:
        part = self._part
        return self._artifact.tensor(self._operation.weights[index])[part.start : part.stop]

    def _refused(self, why: str) -> ArtifactError:
        return ArtifactError(
            f"compressed-tensors cannot express {self.name}: {why}; export it with --to hf, or give it another scheme"
        )


def _packed_by_rows(points: NDArray[np.generic], groups: int) -> NDArray[np.int32]:
    """Return zero points u8 [N, ceil(groups / 2)], two in a byte, as i32 [ceil(N / 8), groups]: eight rows a word."""
    both = points.astype(np.uint32)
    halves = np.stack([both & 15, both >> 4], axis=2).reshape(len(points), -1)[:, :groups]
    padded = np.pad(halves, ((0, -len(halves) % 8), (0, 0)))
    shifts = (np.arange(8, dtype=np.uint32) * 4)[None, :, None]
    words: NDArray[np.uint32] = np.bitwise_or.reduce(padded.reshape(-1, 8, groups) << shifts, axis=1)
    return words.view(np.int32)


def _is_quantized(part: Part) -> bool:
    return part.index == 0 and part.operation.kind in ("blockwise_linear", "float8_linear")


def _own_dtype(found: CheckpointParts) -> str:
    given = found.config.get("dtype", found.config.get("torch_dtype"))
    return _DTYPES.get(str(given).removeprefix("torch."), "f32")


def _document(groups: dict[_Group, list[str]], dense: list[str]) -> dict[str, object]:
    """Return config.json's quantization_config: with one kind of matrix its target is Linear, else they are named."""
    formats = {group.format for group in groups}
    named = len(groups) > 1
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{index}": group.document(modules if named else ["Linear"])
            for index, (group, modules) in enumerate(groups.items())
        },
        "ignore": dense,
        "kv_cache_scheme": None,
    }


def _encoder_document(groups: dict[_Group, list[str]], dense: list[str]) -> dict[str, object]:
    """Return that of an encoder, for every class that it may be loaded as.

    transformers makes numbers of codes while it loads where all matrices are quantized alike; of several groups it
    would take the first one for all.
    """
    named = {group: [_any_class(module) for module in modules] for group, modules in groups.items()}
    ignored = [*map(_any_class, dense), _OUTSIDE_LAYERS]
    return {**_document(named, ignored), "dequantize": len(groups) == 1}


def _any_class(module: str) -> str:
    """Return a pattern of a module of BertModel that holds in the classes that have one, too, whatever they call it."""
    return f"re:(.*\\.)?{re.escape(module)}$"
