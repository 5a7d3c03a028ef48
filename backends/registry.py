"""The backends by name."""

from __future__ import annotations

from collections.abc import Callable

from pyc.backends.protocol import Backend
from pyc.compiler.files.cache import Cache
from pyc.runtime.errors import LowerError


def _cpu(cache: Cache) -> Backend:
    from pyc.backends.cpu.backend import CpuBackend

    return CpuBackend(cache)


def _onnx(cache: Cache) -> Backend:
    from pyc.backends.onnx.backend import OnnxBackend

    return OnnxBackend()


def _tensorrt(cache: Cache) -> Backend:
    from pyc.backends.tensorrt.backend import TensorRtBackend

    return TensorRtBackend()


def _cuda(cache: Cache) -> Backend:
    from pyc.backends.cuda.backend import CudaBackend

    return CudaBackend()


BACKENDS: dict[str, Callable[[Cache], Backend]] = {"cpu": _cpu, "onnx": _onnx, "tensorrt": _tensorrt, "cuda": _cuda}
"""How each is made; it keeps what is worth keeping in the build's cache."""


def backend_for(name: str, cache: Cache) -> Backend:
    """Return the backend called `name`, for one build; LowerError lists those that exist."""
    if name not in BACKENDS:
        raise LowerError(f"no backend is called {name!r}; there is: {', '.join(BACKENDS)}")
    return BACKENDS[name](cache)
