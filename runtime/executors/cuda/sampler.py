"""Chooses tokens on the device: a step, the head and the choice are one graph, of which a token a row is read back.

The formulas are those of `generation.sampling`. Settings of a row, f32 [8]: 1 / temperature (0 for the likeliest
token), top-k, top-p, min-p, the penalties of repetition, frequency and presence, and nothing. The random number is the
host's, so the stream of a seed is that of its generator. Results differ from the host's only where rounding decides: by
the last bits of a weight at the border of top-p, or by a number that falls on the border between two tokens.

Penalties go by counts [sequences, vocab] that stay on the device. A sequence's are copied there when they are not those
that the device has counted itself: at the first token of a request, and after a step that is repeated.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.cuda.device import Device
from pyc.runtime.executors.cuda.function_memory import FunctionMemory, SharedMemory
from pyc.runtime.executors.cuda.graph import BoundFunctions, Kernels
from pyc.runtime.executors.cuda.program import CudaProgram, DeviceFunction, InputArray
from pyc.runtime.executors.protocol import FloatArray, IntArray, RowSampling, TokenCounts
from pyc.runtime.executors.protocol import InputArray as HostArray

SETTINGS = ("inverse_temperature", "top_k", "top_p", "min_p", "repetition", "frequency", "presence", "unused")
"""What a row of settings holds."""
STEEPEST = 1e30
"""The largest inverse temperature."""
COUNT_BYTES = 4


class CudaSampler:
    """Runs functions and chooses tokens by their logits; see the protocol."""

    def __init__(
        self,
        device: Device,
        kernels: Kernels,
        memories: Mapping[tuple[str, int], FunctionMemory],
        program: CudaProgram,
        shared: SharedMemory,
    ) -> None:
        """`memories` are those of all functions, by name and rows. Raises RunError for lack of memory."""
        self._device, self._kernels, self._memories, self._shared = device, kernels, memories, shared
        samplers = {sampler.rows: sampler for sampler in program.samplers}
        self._likeliest = {rows: FunctionMemory(device, sampler.likeliest) for rows, sampler in samplers.items()}
        self._drawn = {rows: FunctionMemory(device, sampler.drawn) for rows, sampler in samplers.items()}
        self._graphs: dict[tuple[str, int, bool], BoundFunctions] = {}
        self._held: dict[int, tuple[weakref.ref[TokenCounts], int]] = {}
        """Of each sequence whose counts the device has: what counts them here, and how many tokens there are."""

    def buckets(self, name: str) -> tuple[int, ...]:
        """Return the bucket sizes at which tokens of `name` are chosen: those whose rows the head takes together."""
        return tuple(
            sorted(rows for found, rows in self._memories if found == name and self._rows(name, rows) in self._drawn)
        )

    def run(
        self, name: str, bucket: int, inputs: Mapping[str, HostArray], rows: Sequence[RowSampling | None]
    ) -> list[int | FloatArray]:
        """Execute `name` at `bucket` rows and choose tokens; see the protocol."""
        device, count = self._device, self._rows(name, bucket)
        device.enter()
        is_likeliest = all(row is None or row.is_likeliest for row in rows)
        chosen = (self._likeliest if is_likeliest else self._drawn)[count]
        logits = self._memories["logits", count]
        self._memories[name, bucket].put(inputs)
        kept: list[IntArray] = []
        if not is_likeliest:
            _write(chosen, rows)
            chosen.upload()
            kept = [self._send_counts(row) for row in rows if row is not None and row.counts is not None]
        self._graph(name, bucket, is_likeliest).run()
        chosen.download()
        for number, row in enumerate(rows):
            if row is None:
                logits.download_row(number)
        device.wait()
        del kept  # copied by now
        for row in rows:
            if row is not None and row.counts is not None:
                self._held[row.sequence] = weakref.ref(row.counts), row.counts.tokens + 1
        return self._found(rows, chosen.arrived[: len(rows)].tolist(), logits)

    def _found(
        self, rows: Sequence[RowSampling | None], tokens: Sequence[int], logits: FunctionMemory
    ) -> list[int | FloatArray]:
        """Return tokens, and logits where there is none."""
        broken = [number for number, row in enumerate(rows) if row is not None and tokens[number] < 0]
        for number in broken:
            logits.download_row(number)
        if broken:
            self._device.wait()
        return [
            np.array(logits.arrived[number], np.float32) if row is None or number in broken else tokens[number]
            for number, row in enumerate(rows)
        ]

    def _rows(self, name: str, bucket: int) -> int:
        """Rows of what a function returns."""
        return self._memories[name, bucket].function.result.shape[0]

    def _send_counts(self, row: RowSampling) -> IntArray:
        """Copy a sequence's counts to the device, unless it has them; what is returned is read until `Device.wait`."""
        assert row.counts is not None
        held, tokens = self._held.pop(row.sequence, (None, 0))
        if held is not None and held() is row.counts and tokens == row.counts.tokens:
            return np.zeros(0, np.int32)
        counts = row.counts.array()
        self._device.upload(counts.ctypes.data, self._shared.counts + row.sequence * counts.nbytes, counts.nbytes)
        return counts

    def _graph(self, name: str, bucket: int, is_likeliest: bool) -> BoundFunctions:
        """Return the graph of a function, the head over its result, and the choice."""
        key = name, bucket, is_likeliest
        if key not in self._graphs:
            first, count, shared = self._memories[name, bucket], self._rows(name, bucket), self._shared
            logits, chosen = self._memories["logits", count], (self._likeliest if is_likeliest else self._drawn)[count]
            parts = [
                (first.function, first.addresses(shared)),
                (logits.function, logits.addresses(shared, {"hidden": first.result_address})),
                (chosen.function, chosen.addresses(shared, logits=logits.result_address)),
            ]
            self._graphs[key] = BoundFunctions(self._device, self._kernels, parts)
        return self._graphs[key]


def _write(memory: FunctionMemory, rows: Sequence[RowSampling | None]) -> None:
    """Write settings, random numbers and sequences of rows to what is uploaded."""
    settings, uniforms, sequences = (memory.inputs[name] for name in ("settings", "uniforms", "sequences"))
    sequences[...] = -1
    for number, row in enumerate(rows):
        if row is None:
            continue
        inverse = min(1.0 / row.temperature, STEEPEST) if row.temperature > 0.0 else 0.0
        penalties = (row.repetition, row.frequency, row.presence) if row.counts is not None else (1.0, 0.0, 0.0)
        settings[number] = inverse, row.top_k, row.top_p, row.min_p, *penalties, 0.0
        uniforms[number], sequences[number] = row.uniform, row.sequence


def counts_bytes(program: CudaProgram, info: ModelInfo) -> int:
    """Return the bytes of all sequences' counts; 0 for a program without samplers."""
    return info.max_sequences * info.vocab_size * COUNT_BYTES if program.samplers else 0


def check_samplers(program: CudaProgram, functions: Collection[tuple[str, int]], info: ModelInfo) -> None:
    """Raise ArtifactError for samplers that read or return another thing than `TokenSampler` says, or of rows that none
    of `functions`, by name and rows, has logits of."""
    for sampler in program.samplers:
        rows = sampler.rows
        drawn = (
            InputArray("settings", "f32", (rows, len(SETTINGS))),
            InputArray("uniforms", "f64", (rows,)),
            InputArray("sequences", "i32", (rows,)),
        )
        sizes = {"logits": rows * info.vocab_size * 4, "counts": counts_bytes(program, info)}
        for function, inputs in ((sampler.likeliest, ()), (sampler.drawn, drawn)):
            if function.inputs != inputs or not _is_chosen(function, rows) or ("logits", rows) not in functions:
                raise ArtifactError(f"{function.symbol[:100]!a}: the program for CUDA chooses tokens by other arrays")
            for buffer in function.buffers:
                if buffer.kind in ("weight", "cache") or buffer.size_bytes != sizes.get(buffer.kind, buffer.size_bytes):
                    raise ArtifactError(f"{function.symbol[:100]!a}: the program for CUDA reads other logits or counts")


def _is_chosen(function: DeviceFunction, rows: int) -> bool:
    return (function.result.dtype, function.result.shape) == ("i32", (rows,))
