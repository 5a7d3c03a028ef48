"""Executes an artifact's ONNX graphs with ONNX Runtime, over the tensors that the artifact has verified.

ONNX Runtime opens no file: each weight is handed over as memory. What it multiplies by it packs for the processor once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.artifact.format import Program
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.batches import rows_by_sequence
from pyc.runtime.executors.cpu.threads import default_threads, usable_cpus
from pyc.runtime.executors.onnx.engine import Binding, Engine
from pyc.runtime.executors.onnx.kv_cache import check_cache, make_caches
from pyc.runtime.executors.onnx.program import CONVENTION, decode_program
from pyc.runtime.executors.prefix import read_prefix
from pyc.runtime.executors.protocol import ExecutorOptions, FloatArray, InputArray, IntArray
from pyc.runtime.host.machine import most_memory_bytes

BACKEND = "onnx"

Arrays = Mapping[str, NDArray[np.generic]]
Bind = Callable[[Arrays, Arrays], Binding]


def choose_program(programs: Sequence[Program], isa: str | None) -> Program:
    """Return the artifact's program for ONNX Runtime; RunError when there is none that this executor runs."""
    found = [program for program in programs if program.backend == BACKEND and isa in (None, program.isa)]
    if not found:
        raise RunError(f"isa: no program for ONNX Runtime is called {isa!r}")
    versions = {tool.name: tool.version for tool in found[0].abi}
    name, version = CONVENTION
    if versions.get(name) != version:
        raise RunError(
            f"the program for ONNX Runtime is of version {versions.get(name)} of {name}, this pyc runs {version}; "
            "build the artifact again, or run it with the pyc that built it"
        )
    return found[0]


class OnnxExecutor:
    """Runs the graphs of an artifact. Not for use by several threads at once."""

    is_arriving, sampler = False, None

    def __init__(self, artifact: Artifact, options: ExecutorOptions) -> None:
        """Hand graphs and weights to ONNX Runtime. Raises RunError and ArtifactError; the caller has checked trust.

        Weights are copied, not mapped: ONNX Runtime does not survive a file that is cut while it reads. The cache has
        `kv_blocks` blocks, the same share for each sequence, and takes memory where it is written.
        """
        program = choose_program(artifact.header.programs, options.isa)
        self.isa = program.isa
        self.threads = min(options.threads, usable_cpus()) if options.threads else default_threads()
        engine = Engine(self.threads, options.providers)
        decoded = decode_program(artifact.blob(program.library))
        info = artifact.header.model
        check_cache(decoded, info.kv_cache)
        most = info.max_sequences * info.context
        self._buckets = _buckets(program, {graph.name for graph in decoded.graphs}, most)
        tensors = artifact.tensors(
            dict.fromkeys(name for graph in decoded.graphs for i in graph.initializers for name in i.tensors),
            is_mapped=False,
        )
        sessions = {graph.name: engine.session(graph, tensors) for graph in decoded.graphs}
        self._sessions = sessions
        self._widths = {"forward": info.hidden_size, "logits": info.vocab_size, "embed": info.hidden_size}
        for name in self._widths.keys() & sessions.keys():
            sessions[name].check_width(name, self._widths[name])
        self._decoder: _Decoder | None = None
        if info.kv_cache is not None:
            positions = options.kv_blocks * info.kv_cache.block_tokens // info.max_sequences
            caches = make_caches(decoded, info.max_sequences, max(positions, 1), most_memory_bytes())
            prefix = read_prefix(artifact)
            self._decoder = _Decoder(sessions["forward"].bind, caches, info.hidden_size, prefix)

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
        if name == "forward":
            assert self._decoder is not None
            return self._decoder.forward(bucket, inputs)
        if name == "embed":
            rows = int((inputs["positions"] >= 0).sum())
            of_rows = ("token_ids", "positions", "span_start", "span_end")
            inputs = {key: array[:rows] if key in of_rows else array for key, array in inputs.items()}
        return checked_rows(self._sessions[name].run(inputs), name, self._widths[name])


def checked_rows(result: FloatArray, graph: str, width: int) -> FloatArray:
    """Return what a graph has computed, rows of `width` values. Raises ArtifactError when it is not that."""
    if result.ndim != 2 or result.shape[1] != width:
        raise ArtifactError(
            f"the program for ONNX Runtime is not valid: graph {graph!r} gives {list(result.shape)}, "
            f"expected rows of {width}"
        )
    return result


@dataclass(frozen=True, slots=True)
class _Step:
    """A run of `last - first` sequences next to each other, each with as many rows."""

    token_ids: IntArray
    positions: IntArray
    totals: IntArray
    longest: IntArray
    hidden: FloatArray
    binding: Binding


class _Decoder:
    """Divides the rows of a step by sequence, as graphs take a batch of sequences with equally many rows."""

    def __init__(
        self, bind: Bind, caches: Mapping[str, NDArray[np.float32]], hidden_size: int, prefix: FloatArray | None
    ) -> None:
        self._bind, self._caches, self._hidden_size, self._prefix = bind, caches, hidden_size, prefix
        self._steps: dict[tuple[int, int], _Step] = {}
        self._results: dict[int, FloatArray] = {}

    def write_prefix(self, sequence: int) -> None:
        """Copy the virtual tokens, [layers, 2, kv_heads, tokens, head_dim], to the beginning of a sequence."""
        assert self._prefix is not None
        tokens, head_dim = self._prefix.shape[3:]
        for name, cache in self._caches.items():
            _, layer, kind = name.split(".")
            cache[sequence, :, :tokens, :head_dim] = self._prefix[int(layer), ("key", "value").index(kind)]

    def forward(self, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        """Return hidden rows f32 [bucket, hidden]; those of padding are of no meaning."""
        ids, positions, sequences = (
            cast("IntArray", inputs[name]) for name in ("token_ids", "positions", "sequences")
        )
        result = self._results.get(bucket)
        if result is None:
            result = self._results[bucket] = np.zeros((bucket, self._hidden_size), np.float32)
        for rows in rows_by_sequence(positions, sequences):
            first = int(sequences[rows[0, 0]])
            step = self._step(first, first + len(rows), rows.shape[1])
            step.token_ids[:], step.positions[:] = ids[rows], positions[rows]
            step.totals[:] = step.positions[:, -1]
            step.longest[()] = step.totals.max() + 1
            step.binding.run()
            result[rows] = step.hidden
        return result

    def _step(self, first: int, last: int, length: int) -> _Step:
        """Return a run of the sequences from `first` to `last`; those of one row each are kept."""
        found = self._steps.get((first, last)) if length == 1 else None
        if found is not None:
            return found
        count = last - first
        inputs: dict[str, IntArray] = {
            "token_ids": np.zeros((count, length), np.int32),
            "positions": np.zeros((count, length), np.int32),
            "totals": np.zeros(count, np.int32),
            "longest": np.zeros((), np.int32),
        }
        hidden = np.zeros((count, length, self._hidden_size), np.float32)
        past = {name: cache[first:last] for name, cache in self._caches.items()}
        present = {name.replace("past", "present", 1): cache for name, cache in past.items()}
        binding = self._bind({**inputs, **past}, {"hidden": hidden, **present})
        step = _Step(**inputs, hidden=hidden, binding=binding)
        if length == 1:
            self._steps[first, last] = step
        return step


def _buckets(program: Program, names: set[str], most: int) -> dict[str, tuple[int, ...]]:
    """Return the row counts of each function, none above `most`, which no step has: graphs take any number, and inputs
    are made for them. Raises ArtifactError for one that has no graph."""
    buckets: dict[str, set[int]] = {}
    for function in program.functions:
        if function.name not in names:
            raise ArtifactError(f"the program for ONNX Runtime has no graph {function.name!r}, which its header names")
        buckets.setdefault(function.name, set()).add(min(function.tokens, most))
    return {name: tuple(sorted(rows)) for name, rows in buckets.items()}
