"""Loads compiled code out of an artifact: only bytes that were verified, never a path that could change.

The bytes go to an anonymous memory file and are loaded from /proc/self/fd. That path is the library's name from then
on, and others open it: a debugger, a profiler, whatever prints a stack of native code, TVM's import among them. So the
descriptor stays open as long as the library is loaded: closed earlier, its number would soon stand for another file,
which they would take for the library. The linker takes a library whose name it has seen for that library, and one
that another thread holds may outlive its descriptor, so each load spells the path in a way of its own.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import os
import struct
import weakref
from _ctypes import dlclose

from pyc.runtime.artifact.format import Program
from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu.description import SYMBOL
from pyc.runtime.executors.protocol import STEP_CONVENTION
from pyc.runtime.host.forks import ForkSafeLock
from pyc.runtime.host.limits import limit_remedy
from pyc.runtime.host.memory_file import memory_file
from pyc.runtime.host.signal_handlers import unless_signalled

_FUNCTIONS = {
    "pyc_start": (ctypes.c_int64, [ctypes.c_int64]),
    "pyc_stop": (None, []),
    "pyc_set_distances": (None, [ctypes.c_void_p]),
    "pyc_describe": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]),
    "pyc_bind": (None, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]),
    "pyc_run": (ctypes.c_int64, [ctypes.c_void_p]),
    "pyc_guard": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]),
    "pyc_unguard": (None, [ctypes.c_void_p]),
    "pyc_watch": (None, [ctypes.c_void_p]),
}
"""What every library exports (docs/artifact-format.md): the types of the result and of the arguments."""

OPTIONAL_FUNCTIONS = {
    "pyc_run_calls": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]),
    "pyc_first_calls": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]),
}
"""What libraries export that run while weights arrive; older ones do not."""

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_ELF_HEADER_BYTES = 64
_SEGMENT = struct.Struct("<I4xQ16xQ16x")
"""A segment in an ELF file: its kind, where it is and how many bytes of the file it has."""
_LOADED = 1
"""PT_LOAD"""

_DESCRIPTORS = "/proc/self/fd"
_loads = itertools.count()
_SPELLINGS_BITS = 48
_kept: set[int] = set()
"""Handles of libraries that the process may call for ever."""


class MemoryLibrary(ctypes.CDLL):
    """A library that was loaded from bytes, and the descriptor of the memory file that holds them."""

    def __init__(self, path: str, descriptor: int) -> None:
        """Raise OSError."""
        super().__init__(path)
        self.descriptor = descriptor
        self._stopping = ForkSafeLock()  # a finalizer may run in the middle of another
        self._is_stopped = False

    def stop(self) -> None:
        """End the threads of a compiled program, once. Who comes second waits: what they use goes next."""
        with self._stopping.lock:
            if not self._is_stopped:
                self._is_stopped = True
                self.pyc_stop()


def load_bytes(name: str, data: bytes) -> MemoryLibrary:
    """Return the shared library whose file is `data`; `name` is what the system's tools show.

    It stays loaded unless `unload_with` names an owner. Raises OSError: no library, or no memory, or no descriptor
    left.
    """
    _check_whole(data)
    descriptor = memory_file(name, os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return MemoryLibrary(_spelled(descriptor, next(_loads)), descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def _check_whole(data: bytes) -> None:
    """Raise OSError for a library that is cut: the linker would touch what is not there, which ends the process.

    Of what has no complete list of segments the linker says so itself.
    """
    if len(data) < _ELF_HEADER_BYTES or data[:6] != _ELF64_LITTLE:
        return
    (first,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<2H", data, 54)
    for start in range(first, first + size * count, size or 1):
        if size != _SEGMENT.size or start + size > len(data):
            return
        kind, offset, stored = _SEGMENT.unpack_from(data, start)
        if kind == _LOADED and offset + stored > len(data):
            raise OSError(errno.ENOEXEC, f"the library is cut: it has {len(data)} bytes, expected {offset + stored}")


def unload_with(owner: object, library: MemoryLibrary) -> None:
    """Unload `library` when `owner` goes, but not at the end of the process: a thread may be in it then. One that is
    kept loaded stays."""
    weakref.finalize(owner, _unload, library._handle, library.descriptor).atexit = False


def keep_loaded(library: ctypes.CDLL) -> None:
    """Never unload this one, also where its owner's making is interrupted."""
    _kept.add(library._handle)


def _unload(handle: int, descriptor: int) -> None:
    if handle in _kept:
        return
    try:
        dlclose(handle)
    finally:
        os.close(descriptor)  # not before: its path is the library's name


def _spelled(descriptor: int, number: int) -> str:
    """The path of a descriptor, in the spelling `number`: a "/." for each bit that is set, a "/" for the others."""
    bits = ("/." if number >> bit & 1 else "/" for bit in range(_SPELLINGS_BITS))
    return f"{_DESCRIPTORS}{''.join(bits)}/{descriptor}"


def check_convention(program: Program) -> None:
    """Raise RunError unless this runtime makes steps as the code expects."""
    recorded = {tool.name: tool.version for tool in program.abi}
    name, version = STEP_CONVENTION
    if recorded.get(name, "1") != version:
        raise RunError(
            f"the artifact's code was compiled for {name} {recorded.get(name, '1')}, this pyc makes steps by version "
            f"{version}: build the artifact again, or run it with the pyc that built it"
        )


def load_library(data: bytes, isa: str) -> MemoryLibrary:
    """Return the library of a compiled program; RunError when it does not load or is none of ours."""
    try:
        library = load_bytes(f"pyc-{isa}", data)
    except unless_signalled(OSError) as error:
        raise RunError(f"the artifact's {isa} program does not load on this system: {error}{_remedy(error)}") from error
    try:
        for name, (result, arguments) in _FUNCTIONS.items():
            exported = getattr(library, name)  # which the library keeps
            exported.restype, exported.argtypes = result, arguments
        for name, (result, arguments) in OPTIONAL_FUNCTIONS.items():
            if hasattr(library, name):
                exported = getattr(library, name)
                exported.restype, exported.argtypes = result, arguments
    except BaseException as error:
        _unload(library._handle, library.descriptor)
        if isinstance(error, AttributeError):
            raise RunError(f"the artifact's {isa} program lacks {name}: build the artifact again") from error
        raise
    return library


def runs_calls(library: ctypes.CDLL) -> bool:
    """Whether functions of the library can be run in parts, as while their weights arrive."""
    return all(hasattr(library, name) for name in OPTIONAL_FUNCTIONS)


def _remedy(error: OSError) -> str:
    """What to do where the system, not the library, keeps it from loading; nothing otherwise."""
    if not os.path.isdir(_DESCRIPTORS):
        return f"; programs are loaded from {_DESCRIPTORS}, which is not there: mount /proc"
    remedy = limit_remedy(error)
    return "" if remedy in str(error) else remedy


def description_of(library: ctypes.CDLL) -> bytes:
    """Return what the library says that it was compiled for; RunError when it says nothing."""
    try:
        place = ctypes.addressof(ctypes.c_char.in_dll(library, SYMBOL))
    except ValueError as error:
        raise RunError(f"the artifact's program does not load on this system: {error}") from error
    return ctypes.string_at(place)
