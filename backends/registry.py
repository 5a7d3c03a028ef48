"""The backends by name, and what identifies the code that they generate."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from blake3 import blake3

from pyc.backends.cpu.isa import ISAS, Isa
from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.backends.protocol import Backend
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.cpu.features import cpu_features


def backend_for(name: str, toolchain: Toolchain | None = None) -> Backend:
    """Return the backend called `name`, which compiles C with `toolchain`; LowerError lists those that exist."""
    if name == "tvm":
        from pyc.backends.cpu.backend import CpuBackend

        return CpuBackend(toolchain)
    raise LowerError(f"no backend is called {name!r}; there is: tvm")


@lru_cache(maxsize=1)
def kernel_sources_digest() -> str:
    """Return the digest of templates, code generators and layouts: it keys compiled programs in the cache."""
    hasher = blake3()
    for package in ("pyc.templates.cpu", "pyc.backends", "pyc.compiler"):
        for name, entry in _sources(files(package), package):
            hasher.update(name.encode() + b"\0")
            hasher.update(entry.read_bytes())
    return hasher.hexdigest()


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    """Yield every source file below `folder`, with its path, in an order that no file system decides."""
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _sources(entry, name)
        elif entry.name.endswith((".py", ".j2", ".c", ".h")):
            yield name, entry


def host_isa() -> Isa | None:
    """Return the best instruction set of this machine, or None."""
    machine, features = platform.machine(), cpu_features()
    runs = [isa for isa in ISAS.values() if isa.arch == machine and set(isa.features) <= features]
    return max(runs, key=lambda isa: isa.rank, default=None)
