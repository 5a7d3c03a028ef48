"""Where results of jobs lie for all machines of a cluster: a folder that they share, or a bucket of an object store.

Either has the entries of the build cache: under a job's key its bytes, and behind them the BLAKE3 of key and bytes, so
that a damaged entry is none. An entry appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from pyc.compiler.files.cache import Cache
from pyc.passes.jobs.job import Bytes


class ResultStore(Protocol):
    """Entries by key."""

    def has(self, key: str) -> bool:
        """Return whether there is an entry, whole or not."""
        ...

    def opened(self, key: str, *, counts: bool = True) -> Iterator[bytes] | None:
        """Return the bytes of an entry, verified, or None."""
        ...

    def kept(self, key: str, pieces: Iterable[Bytes]) -> Iterator[Bytes]:
        """Yield `pieces`, and publish them as an entry once all were read."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Publish an entry."""
        ...

    def remove(self, key: str) -> None:
        """Drop an entry, if there is one."""
        ...


def open_store(place: str) -> ResultStore:
    """Return the store at `place`, a folder or the URL of a bucket. Raises MissingExtraError and ClusterError."""
    if "://" in place:
        from pyc.passes.jobs.object_store import ObjectStore

        return ObjectStore(place)
    return Cache(Path(place))
