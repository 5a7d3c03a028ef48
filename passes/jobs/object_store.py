"""Results of jobs in a bucket of S3, Google Cloud Storage or Azure, through obstore (the extra `object-stores`).

An object is named and laid out as an entry of the build cache. Stores make an object appear whole. Of a result, which
is at most a job's, all bytes are in memory while it is sent or read. Nothing is ever removed: give the bucket a rule
that deletes old objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from blake3 import blake3

from pyc.compiler.files.cache import DIGEST_BYTES
from pyc.passes.jobs.job import Bytes
from pyc.runtime.errors import ClusterError
from pyc.runtime.host.extras import naming_missing_extras
from pyc.runtime.sources.places import shown_url
from pyc.runtime.sources.store_calls import RETRIES, answered, reason_of

T = TypeVar("T")


class ObjectStore:
    """Entries below a prefix of a bucket; for use by several threads."""

    def __init__(self, url: str) -> None:
        """`url` is s3://bucket/prefix, gs:// or az://; raises MissingExtraError without obstore, and ClusterError."""
        with naming_missing_extras():
            import obstore
            from obstore.store import from_url
        self._obstore: Any = obstore
        self._url = shown_url(url)
        self._store: Any = self._answered(lambda: from_url(url, retry_config=RETRIES), "its settings")

    def has(self, key: str) -> bool:
        """Return whether there is an entry, whole or not."""
        return self._found(lambda: self._obstore.head(self._store, _path(key)), f"whether {key} is there") is not None

    def opened(self, key: str, *, counts: bool = True) -> Iterator[bytes] | None:
        """Return the bytes of an entry, verified, or None."""
        found = self._found(lambda: self._obstore.get(self._store, _path(key)), f"the result {key}")
        if found is None:
            return None
        size_bytes = int(found.meta["size"])
        answer = self._answered(lambda: bytes(found.bytes()), f"{size_bytes:,} bytes, the result {key}", size_bytes)
        if _digest(key, memoryview(answer)[:-DIGEST_BYTES]) != answer[-DIGEST_BYTES:]:
            return None
        return iter((answer[:-DIGEST_BYTES],))

    def kept(self, key: str, pieces: Iterable[Bytes]) -> Iterator[Bytes]:
        """Yield `pieces`, and publish them as an entry once all were read."""
        data = bytearray()
        for piece in pieces:
            data += piece
            yield piece
        self.put(key, data)

    def put(self, key: str, data: bytes | bytearray) -> None:
        """Publish an entry."""
        whole = bytes(data) + _digest(key, data)
        what = f"the store to take {len(whole):,} bytes, the result {key}"
        self._answered(lambda: self._obstore.put(self._store, _path(key), whole), what, len(whole))

    def remove(self, key: str) -> None:
        """Drop an entry, if there is one."""
        self._found(lambda: self._obstore.delete(self._store, _path(key)), f"the store to drop {key}")

    def _found(self, ask: Callable[[], T], what: str) -> T | None:
        try:
            return self._answered(ask, what)
        except ClusterError as error:
            if isinstance(error.__cause__, FileNotFoundError) or type(error.__cause__).__name__ == "NotFoundError":
                return None
            raise

    def _answered(self, ask: Callable[[], T], what: str, size_bytes: int = 0) -> T:
        try:
            return answered(ask, what, size_bytes)
        except Exception as error:  # obstore's, which has a class for each store's complaint
            raise ClusterError(
                f"{self._url}: {reason_of(error)}; results of jobs go there (PYC_SHARED_CACHE)"
            ) from error


def _path(key: str) -> str:
    return f"entries/{key[:2]}/{key}"


def _digest(key: str, data: Bytes | bytearray) -> bytes:
    hasher = blake3(key.encode())
    hasher.update(data)
    return hasher.digest()
