"""What identifies the code that generates a backend's programs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from blake3 import blake3

_SUFFIXES = (".py", ".j2", ".c", ".h", ".cuh")


@lru_cache
def sources_digest(*packages: str) -> str:
    """Return the digest of every source file of packages: it keys compiled programs in the cache."""
    hasher = blake3()
    for package in packages:
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
        elif entry.name.endswith(_SUFFIXES):
            yield name, entry
