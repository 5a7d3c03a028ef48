"""An object of S3, Google Cloud Storage or Azure, by ranges, through obstore (the extra `object-stores`).

Credentials, regions and endpoints are those of the store's own environment variables and files, as its tools read them.
obstore tries again by itself, and `store_calls` bounds all tries; the version is pinned by the object's entity tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyc.runtime.errors import ArtifactError, FetchError, MissingArtifactError
from pyc.runtime.host.extras import naming_missing_extras
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.sources.local import HeldFile
from pyc.runtime.sources.places import shown_url
from pyc.runtime.sources.protocol import Came, RefusedError
from pyc.runtime.sources.store_calls import RETRIES, answered, reason_of

_METADATA_HOSTS = ("169.254.169.254", "metadata.google.internal")
"""Whom obstore asks for a machine's own credentials, in the cloud, where no others are set."""
_CREDENTIALS = (
    "set the store's variables for them, such as AWS_ACCESS_KEY_ID, or AWS_SKIP_SIGNATURE=true where none are needed"
)


class ObjectSource:
    """An object of a bucket or a container."""

    def __init__(self, url: str) -> None:
        """Ask what the object is. Raises FetchError, MissingArtifactError, and MissingExtraError without obstore."""
        with naming_missing_extras():
            import obstore
            from obstore.store import from_url
        self._url = shown_url(url)
        bucket, _, path = url.partition("://")[2].partition("/")
        if not bucket or not path:
            raise FetchError(f"{self._url}: expected {url.partition(':')[0]}://bucket/path")
        if "?" in path:
            raise FetchError(f"{self._url}: has a query behind it, which is not taken here: name the object alone")
        try:
            root = f"{url.partition(':')[0]}://{bucket}"
            self._store: Any = from_url(root, retry_config=RETRIES)
            self._path = path
            about = answered(lambda: obstore.head(self._store, path), "the object's size")
        except unless_signalled(Exception) as error:  # obstore's, which has a class for each store's complaint
            raise self._explained(error) from error
        self.size_bytes = int(about["size"])
        self._etag = about.get("e_tag")
        self._is_closed = False

    def __str__(self) -> str:
        return self._url

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`. Raises ArtifactError."""
        self.read_parts(offset, [target])

    def read_parts(self, offset: int, parts: Sequence[memoryview], came: Came | None = None) -> None:
        """Fill `parts` with what follows `offset`, which comes at once. Raises ArtifactError."""
        import obstore

        stop = offset + sum(map(len, parts))
        if self._is_closed:
            raise ArtifactError(f"{self}: already closed")
        if stop > self.size_bytes:
            raise ArtifactError(f"{self}: ends at {self.size_bytes}, expected {stop} bytes")
        if stop == offset:
            return
        options: Any = {"range": (offset, stop)} | ({"if_match": self._etag} if self._etag else {})
        what = f"bytes {offset:,} to {stop:,} of {self.size_bytes:,}"
        try:
            got = answered(
                lambda: memoryview(obstore.get(self._store, self._path, options=options).bytes()), what, stop - offset
            )
        except unless_signalled(Exception) as error:
            raise self._explained(error) from error
        if len(got) != stop - offset:
            raise FetchError(f"{self}: gave {len(got)} bytes at {offset}, expected {stop - offset}")
        done = 0
        for part in parts:
            part[:] = got[done : done + len(part)]
            done += len(part)

    def expect(self, size_bytes: int) -> None:
        """Nothing: the size is known."""

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """None: nothing is mapped."""
        return None

    def hold(self) -> HeldFile | None:
        """None: nothing is mapped."""
        return None

    def close(self) -> None:
        """Ask for nothing more."""
        self._is_closed = True

    def _explained(self, error: Exception) -> ArtifactError:
        kind, reason = type(error).__name__, reason_of(error)
        if isinstance(error, FileNotFoundError) or kind == "NotFoundError":
            return MissingArtifactError(f"{self._url}: there is no such object")
        if kind == "PreconditionError":
            return ArtifactError(f"{self._url}: replaced while it was being fetched: load it again")
        if kind in ("PermissionDeniedError", "UnauthenticatedError"):
            return RefusedError(f"{self._url}: access refused: {reason}; {_CREDENTIALS}")
        if any(host in str(error) for host in _METADATA_HOSTS):
            return FetchError(f"{self._url}: no credentials were found; {_CREDENTIALS}")
        return FetchError(f"{self._url}: {reason}")
