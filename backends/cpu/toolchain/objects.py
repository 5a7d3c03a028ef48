"""Objects of C sources, each compiled once: libraries share units, and a build that changes little compiles little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from blake3 import blake3

from pyc.backends.cpu.isa import Isa
from pyc.backends.cpu.toolchain.zig import COMPILE_FLAGS, ENVIRONMENT, Toolchain
from pyc.compiler.files.cache import Cache


class ObjectCompiler(Protocol):
    """Turns C sources into ELF objects."""

    def compile_object(
        self, source: str, isa: Isa, headers: Mapping[str, str], flags: tuple[str, ...] = ()
    ) -> bytes:
        """Return the object of `source`, see `Toolchain.compile_object`."""
        ...


@dataclass(frozen=True)
class CachedObjects:
    """A compiler that takes from `cache` what it has compiled before. The counts of the cache leave it out."""

    toolchain: Toolchain
    cache: Cache

    def compile_object(
        self, source: str, isa: Isa, headers: Mapping[str, str], flags: tuple[str, ...] = ()
    ) -> bytes:
        """Return the object of `source`; raises LowerError when the compiler does."""
        target = isa.zig_target, isa.zig_cpu
        parts = source, sorted(headers.items()), target, COMPILE_FLAGS, flags, ENVIRONMENT, self.toolchain.version
        key = blake3(repr(("object", parts)).encode()).hexdigest()
        found = self.cache.get(key, counts=False)
        if found is None:
            found = self.toolchain.compile_object(source, isa, headers, flags)
            self.cache.put(key, found)
        return found
