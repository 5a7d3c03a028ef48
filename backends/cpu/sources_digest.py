"""What identifies the code that generates programs of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from blake3 import blake3


@lru_cache(maxsize=1)
def kernel_sources_digest() -> str:
    """Return the digest of templates, code generators and layouts: it keys compiled programs in the cache."""
    hasher = blake3()
    for package in ("pyc.templates.cpu", "pyc.backends.cpu", "pyc.backends.lowering", "pyc.compiler"):
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
