"""The backend cuda without a GPU: kernels compiled for the host, and the driver emulated (tests/emulation/cuda)."""

import ctypes
from contextlib import contextmanager

import pytest
from cuda_emulation import compile_emulated, emulated_driver

from pyc.backends.cuda.backend import CudaBackend
from pyc.backends.cuda.toolchain.nvrtc import program_text
from pyc.backends.registry import BACKENDS
from pyc.runtime.artifact.format import Tool
from pyc.runtime.executors.cuda import executor
from pyc.runtime.executors.cuda.driver import Driver

CUDA = {"backend": "cuda", "isa": ["sm_90a"]}
"""The target; the emulated device says that it has compute capability 9.0."""


class EmulatedCompiler:
    """Stands for NVRTC."""

    def compile(self, sources, arch):
        return compile_emulated(program_text(sources))

    def tools(self):
        return (Tool("emulated-nvrtc", "1"),)


@contextmanager
def emulated():
    """Builds and loads for cuda go to the emulated device meanwhile; gives the target, and the driver's library."""
    library = ctypes.CDLL(str(emulated_driver()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKENDS, "cuda", lambda cache: CudaBackend(EmulatedCompiler()))
        patch.setattr(executor, "open_driver", lambda: Driver(library))
        try:
            yield library
        finally:
            library.emulated_reset()  # a fault stays with a device, as with a real one


OLDER = {"backend": "cuda", "isa": ["sm_89"]}
"""The target of a GPU whose warpgroups do not multiply, and whose launches do not begin early: `older_gpu`."""


@pytest.fixture
def older_gpu(emulated_cuda):
    """The emulated device is one of compute capability 8.9 meanwhile; gives its target."""
    emulated_cuda.emulated_configure(b"capability", ctypes.c_uint64(89))
    yield OLDER
    emulated_cuda.emulated_configure(b"capability", ctypes.c_uint64(90))


@pytest.fixture
def emulated_cuda():
    """The same for a test: the driver's library."""
    with emulated() as library:
        yield library
