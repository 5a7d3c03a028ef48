"""Executes compiled TVM programs: one virtual machine, weights mapped from the artifact, a paged cache."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.aligned import aligned_zeros, is_aligned
from pyc.runtime.cpu import choose_program
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.libraries import check_abi, load_program, load_runtime
from pyc.runtime.executors.protocol import FloatArray, InputArray
from pyc.runtime.format import Function, KvCache
from pyc.runtime.kv_blocks import head_bytes
from pyc.runtime.reader import Artifact
from pyc.runtime.threads import default_threads, usable_cpus

if TYPE_CHECKING:
    import tvm_ffi

_CPU_DEVICE = (1, 0)
_POOLED_ALLOCATOR = 2


class _Entry(Protocol):
    """A function of the virtual machine."""

    def __call__(self, *arguments: tvm_ffi.Tensor) -> tvm_ffi.Tensor: ...


class TvmExecutor:
    """Runs one program of an artifact. Not for use by several threads at once."""

    def __init__(self, artifact: Artifact, *, isa: str | None, threads: int | None, kv_blocks: int) -> None:
        """Load the best program for this CPU (or `isa`) and the weights it reads.

        The program's loops run on `threads` threads of its own, the caller's among them (at most 64 and at most the
        CPUs of the process). `kv_blocks` blocks of positions are reserved for the cache; memory is taken where it is
        written. Raises RunError (wrong CPU or library version) and ArtifactError (damaged bytes). The caller has
        checked trust.
        """
        program = choose_program(artifact.header.programs, isa)
        check_abi(program)
        load_runtime(artifact.blob(program.runtime_library))
        self.isa = program.isa
        self._library = load_program(artifact.blob(program.library), program.isa)
        wanted = min(threads, usable_cpus()) if threads else default_threads()
        self.threads = int(self._library.get_function("pyc_start", query_imports=True)(wanted))
        self._machine = self._library["vm_load_executable"]()
        self._machine["vm_initialization"](*_CPU_DEVICE, _POOLED_ALLOCATOR, *_CPU_DEVICE, _POOLED_ALLOCATOR)
        names = dict.fromkeys(name for function in program.functions for name in function.weights)
        arrays = artifact.tensors(names)
        self._weights = {name: _exported(array, name) for name, array in arrays.items()}
        self._arrays = arrays
        self._caches = _caches(artifact.header.model.kv_cache, kv_blocks)
        self._inputs: dict[int, tuple[InputArray, tvm_ffi.Tensor]] = {}
        self._functions: dict[tuple[str, int], tuple[Function, _Entry]] = {
            (function.name, function.tokens): (function, self._machine[function.symbol])
            for function in program.functions
        }

    def functions(self, name: str) -> tuple[int, ...]:
        """Return the ascending bucket sizes of the function `name`; empty when there is none."""
        return tuple(sorted(tokens for found, tokens in self._functions if found == name))

    def run(self, name: str, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        """Execute `name` at `bucket` rows; see the protocol. The result is valid until the next run."""
        function, entry = self._functions[name, bucket]
        arguments = [self._argument(key, inputs) for key in function.inputs]
        arguments += [self._weights[key] for key in function.weights]
        try:
            result = entry(*arguments)
        except Exception as error:
            raise RunError(f"{name}, bucket {bucket}: the program failed: {error}") from error
        array = np.from_dlpack(result)
        assert array.dtype == np.float32
        return cast(FloatArray, array)

    def _argument(self, key: str, inputs: Mapping[str, InputArray]) -> tvm_ffi.Tensor:
        if key in self._caches:
            return self._caches[key]
        array = inputs[key]
        known = self._inputs.get(id(array))
        if known is None or known[0] is not array:
            if len(self._inputs) > 256:
                self._inputs.clear()
            known = self._inputs[id(array)] = (array, _exported(array, key))
        return known[1]


def create_executor(
    artifact: Artifact, *, isa: str | None = None, threads: int | None = None, kv_blocks: int = 0
) -> TvmExecutor:
    """Return an executor over an artifact whose signature the caller has checked; see `TvmExecutor`."""
    return TvmExecutor(artifact, isa=isa, threads=threads, kv_blocks=kv_blocks)


def _exported(array: NDArray[np.generic], name: str) -> tvm_ffi.Tensor:
    """Return the array as a tensor that compiled code can read, without a copy.

    Mapped weights are read-only, which DLPack cannot say to older readers; no kernel writes a weight, so a writable
    alias of the same memory is handed over. The caller keeps `array` alive.
    """
    import tvm_ffi

    if not is_aligned(array):
        raise ArtifactError(f"{name}: its bytes are not 64-byte aligned, which compiled code requires")
    if not array.flags.writeable:
        memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
        array = np.frombuffer(memoryview(memory), dtype=array.dtype).reshape(array.shape)
    return tvm_ffi.from_dlpack(array)


def _caches(cache: KvCache | None, blocks: int) -> dict[str, tvm_ffi.Tensor]:
    """Return the cache of every layer, u8 [blocks, 2, heads, head_bytes]."""
    if cache is None:
        return {}
    shape = (max(blocks, 1), 2, cache.heads, head_bytes(cache))
    return {f"kv_{layer}": _exported(aligned_zeros(shape, np.uint8), f"kv_{layer}") for layer in range(cache.layers)}
