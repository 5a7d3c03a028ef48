"""NVRTC, NVIDIA's runtime compiler, as the compiler of every CUDA kernel: of its wheel alone, without a GPU.

The library compiles in memory. A program's text and its headers have fixed names, and nothing looks for files, so the
bytes depend on the text, the kind of GPU and NVRTC's version only.
"""

from __future__ import annotations

import ctypes
import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from importlib.resources import files

from pyc.backends.cuda.archs import Arch
from pyc.runtime.errors import LowerError, MissingExtraError
from pyc.runtime.host.extras import install_line

logger = logging.getLogger(__name__)

DISTRIBUTION = "nvidia-cuda-nvrtc"
HEADERS = "pyc.templates.cuda.include"

# No fast-math: kernels call the approximations that they mean. FMAs are contracted, as everywhere on GPUs.
FLAGS = ("-std=c++17", "--no-source-include", "--disable-warnings")
ERROR_LINES = 12
"""Lines of a failed compilation that an error message quotes."""

_INCLUDE = re.compile(r'^#include "([^"]+)"\n', re.MULTILINE)


def compile_kernels(sources: Sequence[str], arch: Arch) -> bytes:
    """Return the cubin or PTX with all kernels of `sources`, each the CUDA C++ of a kernel that includes headers of
    `templates/cuda/include` by name.

    Raises MissingExtraError without the wheel, LowerError with the compiler's first lines.
    """
    return compile_text(program_text(sources), arch, headers())


def program_text(sources: Sequence[str]) -> str:
    """Return one text with what `sources` include, once, and then the rest of each."""
    included = dict.fromkeys(name for source in sources for name in _INCLUDE.findall(source))
    lines = [f'#include "{name}"\n' for name in included]
    return "".join([*lines, *(_INCLUDE.sub("", source) for source in sources)])


def compile_text(text: str, arch: Arch, named: Mapping[str, str]) -> bytes:
    """Return the cubin or PTX of one text, which may include what is `named`; raises as `compile_kernels`."""
    nvrtc = _library()
    started = time.perf_counter()
    program = ctypes.c_void_p()
    included = len(named), _strings(named.values()), _strings(named)
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", *included))
    try:
        options = (f"--gpu-architecture={arch.name}", *FLAGS)
        status = nvrtc.nvrtcCompileProgram(program, len(options), _strings(options))
        if status:
            log = _bytes_of(nvrtc, program, "ProgramLog").rstrip(b"\0").decode("utf-8", "replace")
            raise LowerError(f"the CUDA compiler failed for {arch.name} (NVRTC {version()}): {_quoted(log, status)}")
        code = _bytes_of(nvrtc, program, "PTX" if arch.is_ptx else "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    logger.debug("NVRTC for %s: elapsed_s=%.3f size_bytes=%d", arch.name, time.perf_counter() - started, len(code))
    return code


@lru_cache(maxsize=1)
def headers() -> dict[str, str]:
    """Return the text of every header that kernels may include, by its name."""
    entries = sorted(files(HEADERS).iterdir(), key=lambda entry: entry.name)
    return {entry.name: entry.read_text("utf-8") for entry in entries if entry.name.endswith(".cuh")}


def version() -> str:
    """Return the version of the wheel; raises MissingExtraError without it."""
    return _distribution().version


def has_compiler() -> bool:
    """Return whether the wheel is installed."""
    try:
        _distribution()
    except MissingExtraError:
        return False
    return True


def _distribution() -> metadata.Distribution:
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise MissingExtraError(f"the CUDA compiler is missing; to install it, {install_line('cuda')}") from None


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    """Return the loaded library. It looks for its built-ins by name alone, so these are loaded first, by path."""
    distribution = _distribution()
    paths = [str(distribution.locate_file(file)) for file in distribution.files or ()]
    loaded = None
    for name in ("libnvrtc-builtins.so.", "libnvrtc.so."):
        path = next((path for path in paths if path.rpartition("/")[2].startswith(name)), None)
        if path is None:
            raise LowerError(f"{DISTRIBUTION} {distribution.version} has no {name}N; install it again")
        try:
            loaded = ctypes.CDLL(path)
        except OSError as error:
            raise LowerError(f"the CUDA compiler does not load: {error}; install {DISTRIBUTION} again") from error
    assert loaded is not None
    loaded.nvrtcGetErrorString.restype = ctypes.c_char_p
    return loaded


def _strings(values: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _bytes_of(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(nvrtc: ctypes.CDLL, status: int) -> None:
    if status:
        raise LowerError(f"the CUDA compiler failed: {nvrtc.nvrtcGetErrorString(status).decode()}")


def _quoted(log: str, status: int) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return " | ".join(lines[:ERROR_LINES]) or f"no message, status {status}"
