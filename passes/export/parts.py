"""The tensors of a checkpoint, found in an artifact: which exist, where each lies, and what it stands for.

Stacked matrices are parted again. Gains that were folded into the matrices behind them are ones. What scaling of
channels has left of such a gain has no name of the checkpoint: a norm is known by its place in the decoder.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyc.backends.onnx.layouts import float8_values, unpacked_rows
from pyc.compiler.ir import Graph, Operation
from pyc.models import bert
from pyc.models.catalog import CONFIG, find_architecture
from pyc.models.config import HuggingFaceConfig
from pyc.models.decoder import EMBEDDING, OUTPUT, build_decoder, rotary_weights, weight_shapes
from pyc.models.decoder_config import read_decoder_config
from pyc.passes.export.source import Exportable
from pyc.runtime.artifact.format import Tensor
from pyc.runtime.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class Part:
    """Rows [start, stop) of a matrix or vector of the artifact, which `operation` reads as its weight `index`."""

    operation: Operation
    index: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class CheckpointParts:
    """A checkpoint's config.json, the tensors that it has with their shapes, and where each is in the artifact."""

    source: Exportable
    config: dict[str, object]
    shapes: dict[str, tuple[int, ...]]
    parts: dict[str, Part]

    def tensor(self, name: str) -> Tensor | None:
        """Return the tensor of the artifact in which this one lies; None for a gain that was folded."""
        part = self.parts.get(name)
        return None if part is None else self.source.tensors()[part.operation.weights[part.index]]

    def rows(self, name: str) -> NDArray[np.float32]:
        """Return the values of a tensor of the checkpoint. Raises ArtifactError where they have another shape."""
        rows = _rows(self.source, self.shapes[name], self.parts.get(name))
        if rows.shape != self.shapes[name]:
            raise ArtifactError(
                f"{name}: the artifact has {list(rows.shape)}, config.json says {list(self.shapes[name])}"
            )
        return rows


@dataclass(frozen=True, slots=True)
class _Expected:
    """What the checkpoint has: config.json, tensors with their shapes, gains of norms in the order in which the
    decoder applies them, and names of constants that are made of the configuration."""

    config: dict[str, object]
    shapes: dict[str, tuple[int, ...]]
    gains: tuple[str, ...] = ()
    constants: frozenset[str] = frozenset()


def checkpoint_parts(source: Exportable) -> CheckpointParts:
    """Find the tensors of the checkpoint that the artifact was made of.

    Raises ArtifactError for one that carries no config.json, and where the program has a weight that is in no tensor of
    the checkpoint, or the checkpoint a tensor that is in no weight.
    """
    expected = _expected(source)
    config, shapes = expected.config, expected.shapes
    parts = _parts(source, expected)
    if OUTPUT in parts and OUTPUT not in shapes:
        shapes[OUTPUT] = shapes[EMBEDDING]
    config["tie_word_embeddings"] = OUTPUT not in shapes and EMBEDDING in shapes
    return CheckpointParts(source, config, shapes, parts)


def _expected(source: Exportable) -> _Expected:
    artifact = source.artifact
    if CONFIG not in source.files():
        raise ArtifactError(f"{source.label}: it carries no {CONFIG}; build it again with this pyc")
    data = artifact.blob(CONFIG)
    config, label = msgspec.json.decode(data, type=HuggingFaceConfig), source.label
    traits = find_architecture(config, label).decoder
    document: dict[str, object] = json.loads(data)
    if traits is None:
        return _Expected(document, dict(bert.weight_shapes(bert.read_config(config, label))))
    read = read_decoder_config(config, traits, label)
    shapes = weight_shapes(read)
    constants = {name: constant.shape for name, constant in rotary_weights(read).items()}
    graph = build_decoder(read, {**shapes, **constants}, 1, 1, 1)
    return _Expected(document, dict(shapes), tuple(o.weights[0] for o in _norms(graph)), frozenset(constants))


def _norms(graph: Graph) -> list[Operation]:
    return [operation for operation in graph.function("forward").operations if operation.kind == "rms_norm"]


def _parts(source: Exportable, expected: _Expected) -> dict[str, Part]:
    """Return where each tensor of the checkpoint is in the artifact; gains that were folded are in none."""
    found: dict[str, Part] = {}
    shapes, folded = expected.shapes, set[str]()
    norms = _norms(source.graph) if expected.gains else []
    if len(norms) != len(expected.gains):
        raise ArtifactError(
            f"{source.label}: the program has {len(norms)} norms, {CONFIG} says {len(expected.gains)}"
        )
    for gain, operation in zip(expected.gains, norms, strict=True):
        if operation.weights[0]:
            found[gain] = Part(operation, 0, 0, shapes[gain][0])
        else:
            folded.add(gain)
    placed = {part.operation.weights[0] for part in found.values()}
    for function in source.graph.functions:
        for operation in function.operations:
            for index, weight in enumerate(operation.weights):
                if not weight or _is_scale(operation, index) or weight in placed or weight in expected.constants:
                    continue
                name = weight.partition("@")[0].removesuffix(".codes")
                start = 0
                for part in _names(name):
                    if part not in shapes and part != OUTPUT:
                        raise ArtifactError(
                            f"{source.label}: {weight} of the program is no tensor of the checkpoint; build "
                            "it again with this pyc"
                        )
                    rows = shapes.get(part, shapes.get(EMBEDDING, (0,)))[0]
                    found.setdefault(part, Part(operation, index, start, start + rows))
                    start += rows
    for name in shapes:
        if name not in found and name not in folded:
            raise ArtifactError(f"{source.label}: the program has no weight {name}")
    return found


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


def _rows(source: Exportable, shape: tuple[int, ...], part: Part | None) -> NDArray[np.float32]:
    """Return the values of a tensor of the checkpoint; ones for a gain that was folded."""
    if part is None:
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
