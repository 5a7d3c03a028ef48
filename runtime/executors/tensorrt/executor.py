"""Executes an artifact's graphs with TensorRT: engines of this machine, the cache on its GPU, steps as CUDA graphs.

None of this has run on a GPU. Tests run it with a double of TensorRT and CUDA that computes by ONNX Runtime.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from pyc.runtime.artifact.format import Program
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.batches import rows_by_sequence
from pyc.runtime.executors.prefix import read_prefix
from pyc.runtime.executors.protocol import ExecutorOptions, FloatArray, InputArray, IntArray
from pyc.runtime.executors.tensorrt.device import Device
from pyc.runtime.executors.tensorrt.documented import Handle
from pyc.runtime.executors.tensorrt.engine import Context, Engine
from pyc.runtime.executors.tensorrt.engines import prepare_engines
from pyc.runtime.executors.tensorrt.kv_cache import F32, DeviceCache
from pyc.runtime.executors.tensorrt.program import CONVENTION, Graph, TensorRtProgram, decode_program
from pyc.runtime.executors.tensorrt.toolkit import open_toolkit

BACKEND = "tensorrt"
I64 = 8


def choose_program(programs: Sequence[Program], isa: str | None) -> Program:
    """Return the artifact's program for TensorRT; RunError when there is none that this executor runs."""
    found = [program for program in programs if program.backend == BACKEND and isa in (None, program.isa)]
    if not found:
        there = ", ".join(dict.fromkeys(program.backend for program in programs)) or "nothing"
        raise RunError(
            f"the artifact has no program for TensorRT{f' called {isa!r}' if isa else ''}, only for {there}; add "
            "`- backend: tensorrt` to the recipe's targets and build it again"
        )
    versions = {tool.name: tool.version for tool in found[0].abi}
    name, version = CONVENTION
    if versions.get(name) != version:
        raise RunError(
            f"the program for TensorRT is of version {versions.get(name)} of {name}, this pyc runs {version}; "
            "build the artifact again, or run it with the pyc that built it"
        )
    return found[0]


class TensorRtExecutor:
    """Runs the engines of an artifact. Not for use by several threads at once."""

    is_arriving, sampler = False, None

    def __init__(self, artifact: Artifact, options: ExecutorOptions) -> None:
        """Load the engines, building those that are not there. Raises RunError and ArtifactError; the caller has
        checked trust. The cache may grow to `kv_blocks` blocks, the same share for each sequence."""
        program = choose_program(artifact.header.programs, options.isa)
        self.isa, self.threads = program.isa, 1
        decoded = decode_program(artifact.blob(program.library))
        self._buckets = buckets_of(program, decoded)
        toolkit = open_toolkit()
        self._process = os.getpid()
        self._device = toolkit.device
        engines = {
            prepared.graph: Engine(toolkit, prepared.graph, prepared.engine, len(graph.profiles))
            for prepared, graph in zip(prepare_engines(artifact, decoded, toolkit), decoded.graphs, strict=True)
        }
        info = artifact.header.model
        self._decoder: Decoder | None = None
        self._logits: Flat | None = None
        self._encoder: Encoder | None = None
        if info.kv_cache is not None:
            positions = max(options.kv_blocks * info.kv_cache.block_tokens // info.max_sequences, 1)
            cache = DeviceCache(self._device, decoded, info.max_sequences, positions)
            graph, rows, width = _graph(decoded, "forward"), self._buckets["forward"][-1], info.hidden_size
            prefix = read_prefix(artifact)
            self._decoder = Decoder(self._device, graph, engines["forward"], cache, rows, width, prefix)
            most = self._buckets["logits"][-1]
            self._logits = Flat(self._device, engines["logits"], most, width, info.vocab_size)
        else:
            graph = _graph(decoded, "embed")
            self._encoder = Encoder(self._device, graph, engines["embed"], info.hidden_size)

    def functions(self, name: str) -> tuple[int, ...]:
        """Return the ascending bucket sizes of the function `name`; empty when there is none."""
        return self._buckets.get(name, ())

    def write_prefix(self, sequence: int, blocks: IntArray) -> None:
        """Copy the virtual tokens into a sequence's cache; see the protocol."""
        assert self._decoder is not None
        self._decoder.write_prefix(sequence)

    def check_file(self) -> None:
        """Nothing is read from the file any more."""

    def wait(self) -> None:
        """Nothing: all weights were here when this was made."""

    def stop_arriving(self) -> None:
        """Nothing: all weights were here when this was made."""

    def run(self, name: str, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        """Execute `name` over the rows that are not padding; see the protocol."""
        if os.getpid() != self._process:
            raise RunError("CUDA: this model was loaded by another process, whose child this is; load it here")
        if name == "forward":
            assert self._decoder is not None
            return self._decoder.forward(bucket, inputs)
        if name == "logits":
            assert self._logits is not None
            return self._logits.run(cast("FloatArray", inputs["hidden"]))
        assert self._encoder is not None
        return self._encoder.embed(inputs)


@dataclass(slots=True)
class _Captured:
    """A step that was put into the stream once: its context, which holds what it needs, and the work."""

    context: Context
    work: Handle


class Decoder:
    """Runs steps: one row of sequences that follow each other, or several rows of one."""

    def __init__(
        self,
        device: Device,
        graph: Graph,
        engine: Engine,
        cache: DeviceCache,
        rows: int,
        width: int,
        prefix: FloatArray | None,
    ) -> None:
        """`rows` are the most of a step, `width` the features of one; `prefix` is that of the artifact."""
        self._device, self._engine, self._cache, self._width = device, engine, cache, width
        self._profiles = [profile.name for profile in graph.profiles]
        self._contexts: dict[str, Context] = {}
        self._captured: dict[int, _Captured] = {}
        _, heads, _, features = cache.shape(1)
        self._ids = device.allocate(rows * I64, "the input of a step")
        self._positions = device.allocate(rows * I64, "the input of a step")
        self._hidden = device.allocate(rows * width * F32, "the result of a step")
        self._rows = device.allocate(len(cache.inputs) * rows * heads * features * F32, "the keys of a step")
        self._prefix_tokens = self._prefix = 0
        if prefix is not None:
            layers, two, heads, self._prefix_tokens, head_dim = prefix.shape
            padded = np.zeros((layers * two, heads, self._prefix_tokens, features), np.float32)
            padded[..., :head_dim] = prefix.reshape(layers * two, heads, -1, head_dim)
            self._prefix = device.allocate(padded.nbytes, "the virtual tokens")
            device.upload(padded, self._prefix)
            device.wait()

    def write_prefix(self, sequence: int) -> None:
        """Copy the virtual tokens to the beginning of a sequence."""
        if self._cache.reserve(self._prefix_tokens):
            self._drop_captured()
        self._cache.store(self._prefix, sequence, [0], self._prefix_tokens)

    def forward(self, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        """Return hidden rows f32 [bucket, hidden]; those of padding are zeros."""
        ids, positions, sequences = (
            cast("IntArray", inputs[name]) for name in ("token_ids", "positions", "sequences")
        )
        result = np.zeros((bucket, self._width), np.float32)
        for rows in rows_by_sequence(positions, sequences):
            first = int(sequences[rows[0, 0]])
            result[rows] = self._step(first, ids[rows], positions[rows])
        return result

    def _step(self, first: int, ids: IntArray, positions: IntArray) -> FloatArray:
        """Run [sequences, rows] from sequence `first` on, and keep their keys and values."""
        count, length = ids.shape
        if self._cache.reserve(int(positions.max()) + 1):
            self._drop_captured()
        device = self._device
        given = ids.astype(np.int64), positions.astype(np.int64)
        device.upload(given[0], self._ids)
        device.upload(given[1], self._positions)
        if length == 1 and first == 0:
            self._decode(count)
        else:
            name = "decode" if length == 1 else "prompt"
            context = self._contexts.get(name)
            if context is None:
                context = self._contexts[name] = self._engine.context(self._profiles.index(name))
            self._bind(context, first, count, length)
            context.run()
        self._cache.store(self._rows, first, [int(start) for start in positions[:, 0]], length)
        hidden = np.empty((count, length, self._width), np.float32)
        device.download(self._hidden, hidden)
        device.wait()
        return hidden

    def _decode(self, count: int) -> None:
        """Run a row of each of the first `count` sequences: by the graph that was captured, or to capture one.

        A context is run once before, as TensorRT prepares itself then, and is not used for other shapes afterwards.
        """
        captured = self._captured.get(count)
        if captured is not None:
            self._device.launch(captured.work)
            return
        context = self._engine.context(self._profiles.index("decode"))
        self._bind(context, 0, count, 1)
        context.run()
        self._device.wait()
        self._captured[count] = _Captured(context, self._device.captured(context.run))

    def _bind(self, context: Context, first: int, count: int, length: int) -> None:
        cache = self._cache
        shape = cache.shape(count)
        inputs: dict[str, tuple[tuple[int, ...], int]] = {
            "input_ids": ((count, length), self._ids),
            "position_ids": ((count, length), self._positions),
        }
        inputs |= {name: (shape, cache.address(place, first)) for name, place in cache.inputs.items()}
        context.bind(inputs, {"hidden": self._hidden, "new_key_values": self._rows})

    def _drop_captured(self) -> None:
        """What was captured reads the cache where it lay before."""
        for captured in self._captured.values():
            self._device.drop(captured.work)
        self._captured.clear()


class Flat:
    """Runs the head: rows of features to rows of logits."""

    def __init__(self, device: Device, engine: Engine, rows: int, width: int, outputs: int) -> None:
        self._device, self._outputs = device, outputs
        self._context = engine.context(0)
        self._given = device.allocate(rows * width * F32, "the input of the head")
        self._made = device.allocate(rows * outputs * F32, "the result of the head")

    def run(self, hidden: FloatArray) -> FloatArray:
        """Return logits f32 [rows, vocabulary]."""
        given = np.ascontiguousarray(hidden)
        self._device.upload(given, self._given)
        self._context.bind({"hidden": (given.shape, self._given)}, {"logits": self._made})
        self._context.run()
        made = np.empty((len(given), self._outputs), np.float32)
        self._device.download(self._made, made)
        self._device.wait()
        return made


class Encoder:
    """Runs texts of a batch side by side, each padded to the longest."""

    def __init__(self, device: Device, graph: Graph, engine: Engine, width: int) -> None:
        self._device, self._width = device, width
        self._context = engine.context(0)
        most, longest = graph.profiles[0].extents[0].largest
        self._ids = device.allocate(most * longest * I64, "the input of the encoder")
        self._mask = device.allocate(most * longest * I64, "the input of the encoder")
        self._made = device.allocate(most * width * F32, "the result of the encoder")

    def embed(self, inputs: Mapping[str, InputArray]) -> FloatArray:
        """Return f32 [sequences, hidden]; zeros where a text has no tokens."""
        starts, ends = inputs["seq_start"], inputs["seq_end"]
        result = np.zeros((len(starts), self._width), np.float32)
        texts = np.flatnonzero(ends > starts)
        longest = int((ends - starts).max())
        ids, mask = (np.zeros((len(texts), longest), np.int64) for _ in range(2))
        for row, text in enumerate(texts):
            start, end = int(starts[text]), int(ends[text])
            ids[row, : end - start] = inputs["token_ids"][start:end]
            mask[row, : end - start] = 1
        self._device.upload(ids, self._ids)
        self._device.upload(mask, self._mask)
        given = {"input_ids": (ids.shape, self._ids), "attention_mask": (mask.shape, self._mask)}
        self._context.bind(given, {"sentence_embedding": self._made})
        self._context.run()
        made = np.empty((len(texts), self._width), np.float32)
        self._device.download(self._made, made)
        self._device.wait()
        result[texts] = made
        return result


def _graph(program: TensorRtProgram, name: str) -> Graph:
    found = program.graph(name)
    assert found is not None  # `buckets_of` has seen it
    return found


def buckets_of(program: Program, decoded: TensorRtProgram) -> dict[str, tuple[int, ...]]:
    """Return the row counts of each function. Raises ArtifactError for one that has no graph."""
    buckets: dict[str, set[int]] = {}
    for function in program.functions:
        if decoded.graph(function.name) is None:
            raise ArtifactError(f"the program for TensorRT has no graph {function.name!r}, which its header names")
        buckets.setdefault(function.name, set()).add(function.tokens)
    return {name: tuple(sorted(rows)) for name, rows in buckets.items()}
