"""Executes a compiled library: weights mapped from the artifact, a paged cache, one workspace."""

from __future__ import annotations

import ctypes
import weakref
from _ctypes import dlclose
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.aligned import aligned_zeros, is_aligned
from pyc.runtime.cpu import choose_program
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.libraries import check_convention, load_library
from pyc.runtime.executors.protocol import FloatArray, InputArray
from pyc.runtime.format import Function, KvCache, ModelInfo
from pyc.runtime.kv_blocks import head_bytes
from pyc.runtime.reader import Artifact
from pyc.runtime.threads import default_threads, usable_cpus

AnyArray = NDArray[np.generic]
Placed = tuple[int, int]
"""Where memory begins, and how many bytes of it there are."""

_PARAMETER = np.dtype([("bytes", np.int64), ("kind", np.int32), ("bits", np.int32)])
"""How a library describes a parameter; kinds are DLPack's."""

_KINDS = {0: np.int32, 2: np.float32}


class NativeExecutor:
    """Runs one program of an artifact. Not for use by several threads at once."""

    def __init__(self, artifact: Artifact, *, isa: str | None, threads: int | None, kv_blocks: int) -> None:
        """Load the best program for this CPU (or `isa`) and the weights it reads.

        The program's loops run on `threads` threads of its own, the caller's among them (at most 64 and at most the
        CPUs of the process). `kv_blocks` blocks of positions are reserved for the cache; memory is taken where it is
        written. Raises RunError (wrong CPU or version) and ArtifactError (damaged bytes). The caller has checked trust.
        """
        program = choose_program(artifact.header.programs, isa)
        check_convention(program)
        self.isa = program.isa
        library = load_library(artifact.blob(program.library), program.isa)
        # Not at the process's end: a thread may be in the library then.
        weakref.finalize(self, dlclose, library._handle).atexit = False
        self.threads = int(library.pyc_start(min(threads, usable_cpus()) if threads else default_threads()))
        info = artifact.header.model
        functions = [_NativeFunction(library, function, info) for function in program.functions]
        self._arrays = artifact.tensors(dict.fromkeys(name for f in program.functions for name in f.weights))
        self._caches = _caches(info.kv_cache, kv_blocks)
        self._workspace = aligned_zeros((max([1, *(f.workspace_bytes for f in functions)]),), np.uint8)
        caches = {name: _placed(name, array) for name, array in self._caches.items()}
        weights = {name: _placed(name, array) for name, array in self._arrays.items()}
        for function in functions:
            function.bind(caches, weights, self._workspace)
        self._functions: dict[tuple[str, int], _NativeFunction] = {function.key: function for function in functions}

    def functions(self, name: str) -> tuple[int, ...]:
        """Return the ascending bucket sizes of the function `name`; empty when there is none."""
        return tuple(sorted(tokens for found, tokens in self._functions if found == name))

    def run(self, name: str, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        """Execute `name` at `bucket` rows; see the protocol. The result is valid until the next run."""
        return self._functions[name, bucket].run(inputs)


class _NativeFunction:
    """A function of a library and the memory that it is bound to."""

    def __init__(self, library: ctypes.CDLL, function: Function, info: ModelInfo) -> None:
        self.key = function.name, function.tokens
        self._function, self._where = function, f"{function.name}, bucket {function.tokens}"
        self._library = library
        self._run = library.pyc_run
        self._handle = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(library, function.symbol)))
        count = len(function.inputs) + len(function.weights) + 2  # the result and the workspace
        self._parameters = np.empty(count, _PARAMETER)
        described = library.pyc_describe(self._handle, self._parameters.ctypes.data, count)
        if described != count:
            raise ArtifactError(f"{function.symbol}: the program has {described} parameters, the header {count}")
        self.workspace_bytes = int(self._parameters["bytes"][-1])
        rows = {"prompt": 1, "embed": info.max_sequences}.get(function.name, function.tokens)
        self._result = aligned_zeros((rows, int(self._parameters["bytes"][-2]) // (4 * rows)), np.float32)
        self._inputs: dict[str, int] = {}
        self._bound: dict[str, InputArray] = {}

    def bind(self, caches: Mapping[str, Placed], weights: Mapping[str, Placed], workspace: AnyArray) -> None:
        """Give the function all but its inputs: memory that outlives it. Raises ArtifactError."""
        inputs, sizes = self._function.inputs, self._parameters["bytes"].tolist()
        places: list[int] = []
        for index, name in enumerate(inputs):
            address, found = caches.get(name, (0, 0))
            if found % sizes[index]:
                raise ArtifactError(f"{name}: {found} bytes are no multiple of the program's blocks of {sizes[index]}")
            if name not in caches:
                self._inputs[name] = index
            places.append(address)
        for index, name in enumerate(self._function.weights, len(inputs)):
            address, found = weights[name]
            if found != sizes[index]:
                raise ArtifactError(f"{name}: it has {found} bytes, the program expects {sizes[index]}")
            places.append(address)
        self._place(0, [*places, _placed("result", self._result)[0], _placed("workspace", workspace)[0]])

    def run(self, inputs: Mapping[str, InputArray]) -> FloatArray:
        """Execute the function; inputs are bound again only where they are other arrays. Raises RunError."""
        for name, index in self._inputs.items():
            array = inputs[name]
            if self._bound.get(name) is not array:
                self._check(name, array, index)
                self._place(index, [_placed(name, array)[0]])
                self._bound[name] = array
        failed = self._run(self._handle)
        if failed:
            raise RunError(f"{self._where}: call {failed} of the program failed")
        return self._result

    def _check(self, name: str, array: InputArray, index: int) -> None:
        dtype = np.dtype(_KINDS[int(self._parameters["kind"][index])])
        values = int(self._parameters["bytes"][index]) // dtype.itemsize
        if array.dtype != dtype or array.size != values:
            raise RunError(
                f"{self._where}: {name}: got {array.dtype} of {list(array.shape)}, "
                f"expected {dtype}, {values} values"
            )

    def _place(self, first: int, addresses: list[int]) -> None:
        given = (ctypes.c_void_p * len(addresses))(*addresses)
        self._library.pyc_bind(self._handle, first, len(addresses), given)


def create_executor(
    artifact: Artifact, *, isa: str | None = None, threads: int | None = None, kv_blocks: int = 0
) -> NativeExecutor:
    """Return an executor over an artifact whose signature the caller has checked; see `NativeExecutor`."""
    return NativeExecutor(artifact, isa=isa, threads=threads, kv_blocks=kv_blocks)


def _placed(name: str, array: AnyArray) -> Placed:
    if not is_aligned(array):
        raise ArtifactError(f"{name}: its bytes are not 64-byte aligned, which compiled code requires")
    return array.ctypes.data, array.nbytes


def _caches(cache: KvCache | None, blocks: int) -> dict[str, AnyArray]:
    """Return the cache of every layer, u8 [blocks, 2, heads, head_bytes]."""
    if cache is None:
        return {}
    shape = (max(blocks, 1), 2, cache.heads, head_bytes(cache))
    return {f"kv_{layer}": aligned_zeros(shape, np.uint8) for layer in range(cache.layers)}
