"""Loads compiled code out of an artifact: only bytes that were verified, never a path that could change.

The bytes go to an anonymous memory file and are loaded from /proc/self/fd. The descriptor stays open for the life
of the process, because the dynamic linker knows a library by that name.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib.metadata
import os
from threading import Lock
from typing import TYPE_CHECKING

from pyc.runtime.errors import RunError
from pyc.runtime.executors.ffi import import_without_torch
from pyc.runtime.executors.protocol import STEP_CONVENTION
from pyc.runtime.format import Program

if TYPE_CHECKING:
    import tvm_ffi

_LOADER = "ffi.Module.load_from_file.so"
_VIRTUAL_MACHINE = "ffi.Module.load_from_bytes.relax.VMExecutable"
_lock = Lock()


def memory_file(name: str, data: bytes) -> str:
    """Return a path to a sealed anonymous file that holds `data`; it stays open for the life of the process."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return f"/proc/self/fd/{descriptor}"


def check_abi(program: Program) -> None:
    """Raise RunError unless this runtime makes steps as the code expects, and the installed tvm-ffi can call it.

    The calling convention of tvm-ffi is stable within a minor version and later patches only add to it.
    """
    recorded = {tool.name: tool.version for tool in program.abi}
    name, version = STEP_CONVENTION
    if recorded.get(name, "1") != version:
        raise RunError(
            f"the artifact's code was compiled for {name} {recorded.get(name, '1')}, this pyc makes steps by version "
            f"{version}: build the artifact again, or run it with the pyc that built it"
        )
    built = recorded.get("apache-tvm-ffi")
    if built is None:
        raise RunError("the artifact does not say which apache-tvm-ffi its code was built against")
    installed = importlib.metadata.version("apache-tvm-ffi")
    if _numbers(installed)[:2] != _numbers(built)[:2] or _numbers(installed) < _numbers(built):
        raise RunError(
            f"the artifact's code was built against apache-tvm-ffi {built}, but {installed} is installed; "
            f"pip install 'apache-tvm-ffi>={built},<{_numbers(built)[0]}.{_numbers(built)[1] + 1}' or rebuild it"
        )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:3]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)


def load_runtime(data: bytes) -> None:
    """Make TVM's virtual machine available to the process, once; RunError when it does not load."""
    import_without_torch("tvm_ffi")
    import tvm_ffi

    with _lock:
        if tvm_ffi.get_global_func(_VIRTUAL_MACHINE, allow_missing=True) is not None:
            return  # a build in this process has loaded it
        try:
            ctypes.CDLL(memory_file("libtvm_runtime", data), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise RunError(f"the artifact's TVM runtime does not load on this system: {error}") from error


def load_program(data: bytes, isa: str) -> tvm_ffi.Module:
    """Return the module of a compiled program; RunError when it does not load."""
    import tvm_ffi

    loader = tvm_ffi.get_global_func(_LOADER)
    try:
        module = loader(memory_file(f"pyc-{isa}", data), "so")
    except Exception as error:
        raise RunError(f"the artifact's {isa} program does not load on this system: {error}") from error
    assert isinstance(module, tvm_ffi.Module)
    return module
