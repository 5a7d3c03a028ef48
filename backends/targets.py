"""The backends by name, and what identifies the code that they generate."""

from __future__ import annotations

import platform
from functools import lru_cache
from importlib.resources import files

from blake3 import blake3

from pyc.backends.isa import ISAS, Isa
from pyc.backends.protocol import Backend
from pyc.backends.toolchain import Toolchain
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.cpu.features import cpu_features


def backend_for(name: str, toolchain: Toolchain | None = None) -> Backend:
    """Return the backend called `name`, which compiles C with `toolchain`; LowerError lists those that exist."""
    if name == "tvm":
        from pyc.backends.tvm.build import TvmCpuBackend

        return TvmCpuBackend(toolchain)
    raise LowerError(f"no backend is called {name!r}; there is: tvm")


@lru_cache(maxsize=1)
def kernel_sources_digest() -> str:
    """Return the digest of templates, code generators and layouts: it keys compiled programs in the cache."""
    hasher = blake3()
    for package in ("pyc.templates.c", "pyc.templates.include", "pyc.backends", "pyc.backends.tvm", "pyc.compiler"):
        for entry in sorted(files(package).iterdir(), key=lambda item: item.name):
            if entry.is_file() and entry.name.endswith((".py", ".j2", ".c", ".h")):
                hasher.update(entry.name.encode() + b"\0")
                hasher.update(entry.read_bytes())
    return hasher.hexdigest()


def host_isa() -> Isa | None:
    """Return the best instruction set of this machine, or None."""
    machine, features = platform.machine(), cpu_features()
    runs = [isa for isa in ISAS.values() if isa.arch == machine and set(isa.features) <= features]
    return max(runs, key=lambda isa: isa.rank, default=None)
