"""The engines of an artifact on this machine: those that are kept here, and those that have to be built first."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.tensorrt.builder import build_engine
from pyc.runtime.executors.tensorrt.engine_cache import EngineCache, Label
from pyc.runtime.executors.tensorrt.initializers import contents
from pyc.runtime.executors.tensorrt.program import Graph, TensorRtProgram
from pyc.runtime.executors.tensorrt.toolkit import Toolkit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """An engine that is there: its graph, its bytes, and what was done for it.

    `seconds` are those of building; `refusal` says why a file that was there was not taken.
    """

    graph: str
    engine: bytes
    is_built: bool = False
    seconds: float = 0.0
    refusal: str | None = None


def prepare_engines(
    artifact: Artifact,
    program: TensorRtProgram,
    toolkit: Toolkit,
    *,
    again: bool = False,
    begins: Callable[[str, str | None], None] = lambda graph, refusal: None,
) -> list[Prepared]:
    """Return the engine of each graph, built where there is none, or `again` is asked for.

    `begins` is told of each that is built, and why a file that was there was not taken. The caller has checked trust.
    Raises RunError and ArtifactError.
    """
    cache = EngineCache()
    prepared = []
    for graph in program.graphs:
        label = _label(toolkit, _made_of(artifact, graph, program.is_exact))
        found = cache.get(label)
        if found.payload is not None and not again:
            prepared.append(Prepared(graph.name, found.payload))
            continue
        cache.prepare()
        begins(graph.name, found.refusal)
        logger.debug("engine of %s: built; what was there: %s", graph.name, found.refusal)
        prepared.append(_built(artifact, program, graph, toolkit, cache, label, found.refusal))
    return prepared


def _built(
    artifact: Artifact,
    program: TensorRtProgram,
    graph: Graph,
    toolkit: Toolkit,
    cache: EngineCache,
    label: Label,
    refusal: str | None,
) -> Prepared:
    timings_label = _label(toolkit, "")
    timings = cache.get(timings_label).payload or b""
    began = time.monotonic()

    def read() -> list[tuple[str, NDArray[np.uint8]]]:
        names = dict.fromkeys(name for initializer in graph.initializers for name in initializer.tensors)
        tensors = artifact.tensors(names, is_mapped=False)
        return [(initializer.name, contents(initializer, tensors)) for initializer in graph.initializers]

    engine, timings = build_engine(toolkit, graph, read, is_exact=program.is_exact, timings=timings)
    seconds = time.monotonic() - began
    cache.put(label, engine)
    cache.put(timings_label, timings)
    return Prepared(graph.name, engine, True, seconds, refusal)


def _label(toolkit: Toolkit, made_of: str) -> Label:
    device = toolkit.device
    return Label(made_of, device.name, device.capability, device.driver, toolkit.version)


def _made_of(artifact: Artifact, graph: Graph, is_exact: bool) -> str:
    """Return the digest of a graph and of the bytes of its weights; two artifacts that have both share the engine."""
    header = artifact.header
    spans = {tensor.name: tensor.span for tensor in header.tensors}
    digest = blake3(msgspec.msgpack.encode((graph, is_exact)))
    for name in dict.fromkeys(name for initializer in graph.initializers for name in initializer.tensors):
        if name not in spans:
            raise ArtifactError(f"{artifact.path}: the program for TensorRT reads {name!r}, which is not there")
        first = spans[name].first_chunk
        for chunk in header.chunks[first : first + spans[name].chunk_count]:
            digest.update(chunk.blake3.encode())
    return digest.hexdigest()
