"""Executes a compiled library: weights mapped from the artifact, a paged cache, one workspace."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Mapping
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.artifact.arrival import Arrival
from pyc.runtime.artifact.format import Function, KvCache
from pyc.runtime.artifact.reader import Artifact
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.cpu.arriving import ArrivingFunction
from pyc.runtime.executors.cpu.description import check_description
from pyc.runtime.executors.cpu.features import choose_program
from pyc.runtime.executors.cpu.guard import Guard
from pyc.runtime.executors.cpu.kv_cache import check_memory, head_bytes
from pyc.runtime.executors.cpu.libraries import (
    check_convention,
    description_of,
    load_library,
    runs_calls,
    unload_with,
)
from pyc.runtime.executors.cpu.prefetch import Distances, distances_for
from pyc.runtime.executors.cpu.prefix import Bytes, cache_values, packed_prefix
from pyc.runtime.executors.cpu.stacks import BASE_BYTES, BYTES_A_COLUMN, require_stack
from pyc.runtime.executors.cpu.threads import default_threads, usable_cpus
from pyc.runtime.executors.prefix import read_prefix
from pyc.runtime.executors.protocol import FloatArray, InputArray, IntArray, RandomWeights
from pyc.runtime.executors.random_weights import filled_tensors
from pyc.runtime.host.aligned import aligned_zeros, is_aligned
from pyc.runtime.host.machine import most_memory_bytes

AnyArray = NDArray[np.generic]

A_WHILE_S = 0.5
"""What is left of a transfer that a prompt is run behind. On less it waits: to run meanwhile takes cores from it."""

_PARAMETER = np.dtype(
    [("shape", np.int64, 5), ("rank", np.int32), ("kind", np.int32), ("bits", np.int32), ("zero", np.int32)]
)
"""How a library describes a parameter."""

_DTYPES = {(0, 32): np.int32, (1, 8): np.uint8, (2, 16): np.float16, (2, 32): np.float32}
"""By DLPack's code and bits."""


class Placed(NamedTuple):
    """An array that a library may read: where it is, and what."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class CpuExecutor:
    """Runs one program of an artifact. Not for use by several threads at once."""

    sampler = None

    def __init__(
        self,
        artifact: Artifact,
        *,
        isa: str | None,
        threads: int | None,
        kv_blocks: int,
        random_weights: RandomWeights | None = None,
    ) -> None:
        """Load the best program for this CPU (or `isa`) and the weights it reads, or random ones of their shapes.

        The program's loops run on `threads` threads of its own, the caller's among them (at most 64 and at most the
        CPUs of the process). `kv_blocks` blocks of positions are reserved for the cache; memory is taken where it is
        written. Raises RunError (wrong CPU or version, too little memory) and ArtifactError (damaged bytes, a header
        that disagrees with the code). The caller has checked trust.
        """
        program = choose_program(artifact.header.programs, isa)
        check_convention(program)
        self.isa = program.isa
        library = load_library(artifact.blob(program.library), program.isa)
        unload_with(self, library)
        check_description(description_of(library), artifact.header, program)
        info = artifact.header.model
        self._stack_bytes = BASE_BYTES
        if info.kv_cache is not None:
            self._stack_bytes += info.kv_cache.head_dim * BYTES_A_COLUMN
            check_memory(info.kv_cache, kv_blocks, info.max_sequences, most_memory_bytes())
        file = artifact.hold_file()
        self._guard = Guard(library, file) if file else None
        if self._guard:
            weakref.finalize(self, self._guard.release).atexit = False
        # At the process's end too, and before those above, as the last finalizer runs first: the library's threads
        # read weights ahead, which nothing keeps afterwards.
        # Twice, as the process's end may be in the middle of the one while another thread lets go of this.
        weakref.finalize(self, library.stop).atexit = False
        weakref.finalize(self, library.stop)
        self._library = library
        self.set_distances(distances_for(program.isa))
        self.threads = int(library.pyc_start(min(threads, usable_cpus()) if threads else default_threads()))
        functions = [_CpuFunction(library, function, self._guard) for function in program.functions]
        names = list(dict.fromkeys(name for f in program.functions for name in f.weights))
        self._arrival = artifact.arriving(names) if runs_calls(library) else None
        if self._arrival is not None:
            weakref.finalize(self, self._arrival.stop)
        if self._arrival is not None:
            self._arrays = self._arrival.arrays
        elif random_weights is not None:
            self._arrays = filled_tensors(artifact.header, names, random_weights)
        else:
            self._arrays = artifact.tensors(names)
        try:
            self._caches = _caches(info.kv_cache, kv_blocks)
        except MemoryError as error:
            raise RunError(
                f"context: the system grants no memory for the cache of {kv_blocks} blocks; load with a smaller context"
            ) from error
        self._prefix: list[Bytes] = []
        prefix = read_prefix(artifact, random_weights)
        if info.kv_cache is not None and prefix is not None:
            self._prefix = packed_prefix(prefix, info.kv_cache, cache_values(program, info.kv_cache))
        self._workspace = aligned_zeros((max([1, *(f.workspace_bytes for f in functions)]),), np.uint8)
        caches = {name: _placed(name, array) for name, array in self._caches.items()}
        weights = {name: _placed(name, array) for name, array in self._arrays.items()}
        for function in functions:
            function.bind(caches, weights, self._workspace)
            if self._arrival is not None:
                function.await_weights()
        self.check_file()  # what was verified is what is mapped
        self._functions: dict[tuple[str, int], _CpuFunction] = {function.key: function for function in functions}

    def functions(self, name: str) -> tuple[int, ...]:
        """Return the ascending bucket sizes of the function `name`; empty when there is none."""
        return tuple(sorted(tokens for found, tokens in self._functions if found == name))

    def write_prefix(self, sequence: int, blocks: IntArray) -> None:
        """Copy the virtual tokens into the first of `blocks`; see the protocol."""
        for cache, packed in zip(self._caches.values(), self._prefix, strict=True):
            cache[blocks[: len(packed)]] = packed

    def set_distances(self, distances: Distances) -> None:
        """Say how far ahead weights are asked for from the next run on. No result depends on it."""
        self._library.pyc_set_distances(distances.as_c())

    def check_file(self) -> None:
        """Raise ArtifactError when the file that weights are mapped from has been written to."""
        if self._guard:
            self._guard.check()

    def stop_arriving(self) -> None:
        """End what fetches weights; a run that waits for some raises ArtifactError.

        On a thread of its own: who asks may be a signal handler in the middle of such a wait, or a coroutine.
        """
        arrival = self._arrival
        if arrival is not None and not arrival.is_complete:
            with contextlib.suppress(RuntimeError):  # no thread can be started: they end with this executor
                threading.Thread(target=arrival.stop, name="pyc-stop", daemon=True).start()

    @property
    def is_arriving(self) -> bool:
        """Whether weights are on their way, and will be for a while."""
        return self._arrival is not None and self._arrival.left_s > A_WHILE_S

    def wait(self) -> None:
        """Return when every weight is here, and close what they came from. Raises ArtifactError, FetchError."""
        arrival = self._arrival
        if arrival is not None:
            arrival.wait()
            arrival.stop()
            self._arrival = None

    def run(self, name: str, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        """Execute `name` at `bucket` rows; see the protocol. The result is valid until the next run.

        While weights arrive it waits for each where it is read first, and raises ArtifactError where one does not come.
        """
        require_stack(self._stack_bytes)
        if self._arrival is not None and not self.is_arriving:
            self.wait()
        return self._functions[name, bucket].run(inputs, self._arrival)


class _CpuFunction:
    """A function of a library and the memory that it is bound to."""

    def __init__(self, library: ctypes.CDLL, function: Function, guard: Guard | None) -> None:
        self.key = function.name, function.tokens
        self._function, self._where = function, f"{function.name}, bucket {function.tokens}"
        self._library, self._guard = library, guard
        self._run = library.pyc_run
        self._handle = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, function.symbol)))
        count = len(function.inputs) + len(function.weights) + 2  # the result and the workspace
        described = np.empty(count, _PARAMETER)
        found = library.pyc_describe(self._handle, described.ctypes.data, count)
        if found != count:
            raise ArtifactError(f"{function.symbol}: the program has {found} parameters, the header {count}")
        rows = cast("list[tuple[list[int], int, int, int, int]]", described.tolist())
        self._shapes = [tuple(shape[:rank]) for shape, rank, *_ in rows]
        self._dtypes = [np.dtype(_DTYPES[kind, bits]) for _, _, kind, bits, _ in rows]
        (self.workspace_bytes,) = self._shapes[-1]
        self._result = aligned_zeros(self._shapes[-2], np.float32)
        self._arriving: ArrivingFunction | None = None
        self._inputs: dict[str, int] = {}
        self._bound: dict[str, InputArray] = {}

    def bind(self, caches: Mapping[str, Placed], weights: Mapping[str, Placed], workspace: AnyArray) -> None:
        """Give the function all but its inputs: memory that outlives it. Raises ArtifactError."""
        places: list[int] = []
        for index, name in enumerate(self._function.inputs):
            if name in caches:
                blocks = caches[name].shape[0]
                places.append(self._checked(index, name, caches[name], (blocks, *self._shapes[index][1:])))
            else:
                self._inputs[name] = index
                places.append(0)
        for index, name in enumerate(self._function.weights, len(places)):
            places.append(self._checked(index, name, weights[name], self._shapes[index]))
        self._place(0, [*places, _placed("result", self._result).address, _placed("workspace", workspace).address])

    def await_weights(self) -> None:
        """Be able to run while weights arrive. Raises ArtifactError."""
        function = self._function
        self._arriving = ArrivingFunction(
            self._library, self._handle, function.symbol, len(function.inputs), function.weights
        )

    def run(self, inputs: Mapping[str, InputArray], arrival: Arrival | None = None) -> FloatArray:
        """Execute the function; inputs are bound again only where they are other arrays. Raises as Executor.run."""
        for name, index in self._inputs.items():
            array = inputs[name]
            if self._bound.get(name) is not array:
                self._check(name, array, index)
                self._bound.pop(name, None)  # an exception of a signal's handler may come between the next two
                self._place(index, [_placed(name, array).address])
                self._bound[name] = array
        failed = self._run(self._handle) if arrival is None or not self._arriving else self._arriving.run(arrival)
        if failed:
            if failed < 0 and self._guard:
                raise self._guard.error()
            raise RunError(f"{self._where}: call {failed} of the program failed")
        return self._result

    def _check(self, name: str, array: InputArray, index: int) -> None:
        shape, dtype = self._shapes[index], self._dtypes[index]
        if array.dtype != dtype or array.shape != shape:
            got, expected = (f"{kind} {list(size)}" for kind, size in ((array.dtype, array.shape), (dtype, shape)))
            raise RunError(f"{self._where}: {name}: got {got}, expected {expected}")

    def _checked(self, index: int, name: str, placed: Placed, shape: tuple[int, ...]) -> int:
        if placed.shape != shape or placed.dtype != self._dtypes[index]:
            raise ArtifactError(
                f"{name}: it is {placed.dtype} {list(placed.shape)}, the program expects "
                f"{self._dtypes[index]} {list(shape)}"
            )
        return placed.address

    def _place(self, first: int, addresses: list[int]) -> None:
        given = (ctypes.c_void_p * len(addresses))(*addresses)
        self._library.pyc_bind(self._handle, first, len(addresses), given)


def create_executor(
    artifact: Artifact,
    *,
    isa: str | None = None,
    threads: int | None = None,
    kv_blocks: int = 0,
    random_weights: RandomWeights | None = None,
) -> CpuExecutor:
    """Return an executor over an artifact whose signature the caller has checked; see `CpuExecutor`."""
    return CpuExecutor(artifact, isa=isa, threads=threads, kv_blocks=kv_blocks, random_weights=random_weights)


def _placed(name: str, array: AnyArray) -> Placed:
    if not is_aligned(array):
        raise ArtifactError(f"{name}: its bytes are not 64-byte aligned, which compiled code requires")
    return Placed(array.ctypes.data, array.shape, array.dtype)


def _caches(cache: KvCache | None, blocks: int) -> dict[str, AnyArray]:
    """Return the cache of every layer, u8 [blocks, 2, heads, head_bytes]."""
    if cache is None:
        return {}
    shape = (max(blocks, 1), 2, cache.heads, head_bytes(cache))
    return {f"kv_{layer}": aligned_zeros(shape, np.uint8) for layer in range(cache.layers)}
