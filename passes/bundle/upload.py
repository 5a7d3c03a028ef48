"""Gives blobs and a manifest to an OCI registry, as the distribution specification says.

    HEAD  .../blobs/<digest>                 there already: nothing is sent
    POST  .../blobs/uploads/                 where to send it, and in what pieces at least
    PATCH <there>    Content-Range: a-b      a piece; what breaks off goes on where the registry says that it is
    GET   <there>                            how far that is
    PUT   <there>?digest=<digest>            the registry compares the digest
    PUT   .../manifests/<tag>                last of all: until then the tag means what it meant before
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyc.passes.bundle.files import BundleFile
from pyc.runtime.errors import ArtifactError, FetchError
from pyc.runtime.sources.address import Address, parse_address, redirected
from pyc.runtime.sources.local import safe_open
from pyc.runtime.sources.protocol import Retries
from pyc.runtime.sources.registry import MANIFEST
from pyc.runtime.sources.registry_session import DIGEST, Answer, Reference, RegistrySession, patiently
from pyc.runtime.sources.response import TEMPORARY, TryAgainError, asked_wait_s

PIECE_BYTES = 32 << 20
SEND_BYTES = 64 << 10
DIGESTING_S = 600.0
"""How long a registry may compare the digest of what it was given."""
QUESTION = "is the registry there, and has it space?"
_range = re.compile(r"(?:bytes=)?0-(\d{1,40})")
_GONE = frozenset({400, 404, 416})
"""An upload that the registry does not know, or not so far."""
_NOT_WHOLE = frozenset(range(400, 500)) - TEMPORARY - {401, 403}
"""A blob that is closed and not whole, where the registry did not confirm its pieces."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that a registry is to have; `digest` is `sha256:` and the SHA-256 of the `size_bytes` that the file had."""

    digest: str
    size_bytes: int
    file: BundleFile

    def pieces(self, first: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes [first, stop). Raises ArtifactError for a file that cannot be read or has become shorter."""
        content = self.file.content
        if isinstance(content, bytes):
            yield content[first:stop]
            return
        assert isinstance(content, Path), "what is sent may be asked for again, from anywhere in it"
        descriptor, _ = safe_open(content)
        try:
            while first < stop:
                try:
                    piece = os.pread(descriptor, min(SEND_BYTES, stop - first), first)
                except OSError as error:
                    raise ArtifactError(f"{content}: cannot be read: {error.strerror}") from error
                if not piece:
                    raise ArtifactError(f"{content}: has become shorter while it was sent; push it again")
                first += len(piece)
                yield piece
        finally:
            os.close(descriptor)


class Uploader:
    """Sends blobs to one repository; `advance` is told how many bytes are there, also of those that were."""

    def __init__(self, reference: Reference, advance: Callable[[int], None], patience: Retries) -> None:
        self._reference = reference
        self._session = RegistrySession(reference, patience)
        self._patience = patience
        self._advance = advance
        self.sent_bytes = 0

    def give(self, blob: Blob) -> None:
        """Have the registry hold a blob. Raises FetchError, and ArtifactError when its bytes are not of the digest."""
        address = parse_address(self._reference.url("blobs", blob.digest))
        if self._tried(address, lambda: self._ask("HEAD", address, (200, 404))).status == 200:
            self._advance(blob.size_bytes)
            return
        upload = _Upload(blob)
        self._tried(address, lambda: self._send(upload))

    def current(self) -> str:
        """The digest that the tag has now; empty for none. Raises FetchError."""
        address = parse_address(self._reference.url("manifests", self._reference.version))
        answer = self._tried(address, lambda: self._ask("HEAD", address, (200, 404), {"Accept": MANIFEST}))
        found = answer.getheader("docker-content-digest")
        return found if answer.status == 200 and DIGEST.fullmatch(found) else ""

    def name(self, manifest: bytes, digest: str) -> None:
        """Have the tag mean the manifest, all of whose blobs are there. Raises FetchError, and ArtifactError."""
        address = parse_address(self._reference.url("manifests", self._reference.version))
        headers = {"Content-Type": MANIFEST, "Content-Length": str(len(manifest))}
        answer = self._tried(address, lambda: self._ask("PUT", address, (201,), headers, lambda: (manifest,)))
        found = answer.getheader("docker-content-digest", digest)
        if found != digest:
            raise ArtifactError(f"{address}: the registry has {found[:80]!a}, expected {digest}; push it again")

    # --- one try

    def _send(self, upload: _Upload) -> Answer:
        """Go on with an upload to its end. Raises TryAgainError where it breaks off."""
        blob = upload.blob
        if upload.place is None:
            self._begin(upload)
        elif upload.has_broken:
            self._find(upload)
        while upload.done < blob.size_bytes:
            stop = min(upload.done + upload.piece_bytes, blob.size_bytes)
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(stop - upload.done),
                "Content-Range": f"{upload.done}-{stop - 1}",
            }
            upload.has_broken, upload.most = True, max(upload.most, stop)
            answer = self._at(upload, "PATCH", (202,), headers, partial(blob.pieces, upload.done, stop))
            self._move(upload, answer)
            self._confirm(upload, stop, _end_of(answer, stop, stop))
        assert upload.place is not None
        separator = "&" if "?" in upload.place.target else "?"
        place = replace(upload.place, target=f"{upload.place.target}{separator}digest={blob.digest}")
        patience = replace(self._patience, stall_s=max(self._patience.stall_s, DIGESTING_S))
        upload.has_broken = True
        return self._at(upload, "PUT", (201,), {"Content-Length": "0"}, place=place, patience=patience)

    def _begin(self, upload: _Upload) -> None:
        address = parse_address(self._reference.url("blobs", "uploads/"))
        upload.place, upload.has_broken, upload.most = None, False, 0
        upload.confirmed, upload.is_assumed, upload.is_part = 0, False, False
        answer = self._ask("POST", address, (202,), {"Content-Length": "0"})
        self._move(upload, answer)
        least = answer.getheader("oci-chunk-min-length")
        upload.piece_bytes = max(PIECE_BYTES, int(least) if re.fullmatch(r"\d{1,12}", least) else 0)
        self._count(upload, 0)

    def _find(self, upload: _Upload) -> None:
        """Ask how much of an upload arrived; begin anew where the registry cannot go on, as Docker's can with a whole
        piece alone."""
        assert upload.place is not None
        answer = self._session.ask("GET", upload.place, {})
        if answer.status in _GONE:
            self._begin(upload)
            return
        self._move(upload, _checked(answer, (204,)))
        end = _end_of(answer, 0, upload.most)
        if end > upload.most:
            end = 0
        if upload.is_assumed and end < upload.done:
            if upload.done < upload.blob.size_bytes:
                self._renew(upload, f"broke off, and says that it has {end} bytes of {upload.done}")
                self._begin(upload)
                return
            end = upload.done  # it was the closing PUT that broke off
        self._count(upload, end)
        upload.has_broken = False

    def _confirm(self, upload: _Upload, stop: int, end: int) -> None:
        """Note that the registry says to have `end` bytes, of `stop` that it was sent.

        Some registries keep every piece and name the end of the first in each answer. Where neither the answer nor the
        upload's status advances, the piece counts as there, since it was accepted, and the closing PUT decides. So it
        does where an earlier try went on from a part of a piece, and the registry was somewhere else (416).

        Raises TryAgainError for an end beyond `stop`, for one before what was confirmed, and for one that advances so
        little that to go on at once may be to go on for ever.
        """
        if end > stop:
            raise TryAgainError(f"says that it has {end} bytes, and was sent {stop}")
        before, least = upload.done, min(stop, upload.done + self._patience.progress_bytes)
        if end < least:
            end = max(end, self._status(upload, stop))
        upload.has_broken = False
        known, upload.confirmed = upload.confirmed, end
        if end < known:
            self._count(upload, end)
            self._renew(upload, f"says that it has {end} bytes, and said {known} before")
            raise TryAgainError(f"says that it has {end} bytes, and was sent {stop}")
        if end <= before or (upload.is_understated and end < stop):
            upload.is_assumed, end = True, stop
        upload.is_part = end < stop
        self._count(upload, end)
        if end < least:
            raise TryAgainError(f"says that it has {end} bytes, and was sent {stop}")

    def _status(self, upload: _Upload, stop: int) -> int:
        """How many bytes of `stop` the registry says to have when it is asked; 0 where it does not say."""
        assert upload.place is not None
        answer = self._session.ask("GET", upload.place, {})
        if answer.status in TEMPORARY:
            _checked(answer, (204,))
        if answer.status != 204:
            return 0
        self._move(upload, answer)
        end = _end_of(answer, 0, stop)
        return end if end <= stop else 0

    def _renew(self, upload: _Upload, reason: str) -> None:
        """Allow for what was there and is not there any more, so often. Raises FetchError after that."""
        upload.renewed += 1
        if upload.renewed > self._patience.tries:
            address = upload.place or parse_address(self._reference.url("blobs", upload.blob.digest))
            raise FetchError(f"{address}: {reason}; gave up after {upload.renewed} times; {QUESTION}")

    def _move(self, upload: _Upload, answer: Answer) -> None:
        """Go on where the registry says."""
        if location := answer.getheader("location"):
            upload.place = redirected(answer.address, location)
        elif upload.place is None:
            raise FetchError(f"{answer.address}: begins an upload and does not say where; is it an OCI registry?")

    def _count(self, upload: _Upload, done: int) -> None:
        self._advance(done - upload.done)
        self.sent_bytes += done - upload.done
        upload.done = done

    def _at(
        self,
        upload: _Upload,
        method: str,
        expected: tuple[int, ...],
        headers: Mapping[str, str] | None = None,
        body: Callable[[], Iterator[bytes]] | None = None,
        *,
        place: Address | None = None,
        patience: Retries | None = None,
    ) -> Answer:
        """Ask at an upload's place; one that the registry does not go on with begins anew."""
        address = place or upload.place
        assert address is not None
        answer = self._session.ask(method, address, headers or {}, body or tuple, patience)
        is_assumed = upload.is_assumed and method == "PUT"
        is_gone = answer.status in _GONE or (is_assumed and answer.status in _NOT_WHOLE)
        if is_gone and upload.renewed < self._patience.tries:
            if answer.status == 400 and method == "PUT" and not is_assumed and "DIGEST_INVALID" in answer.complaint:
                raise ArtifactError(
                    f"{upload.blob.file.name}: the registry was given other bytes than {upload.blob.digest}: "
                    "the file has changed while it was sent; push it again"
                )
            upload.is_understated |= upload.is_part and answer.status == 416
            self._count(upload, 0)
            upload.renewed, upload.place, upload.has_broken = upload.renewed + 1, None, False
            said = f", and said that it has {upload.confirmed} bytes" if is_assumed else ""
            raise TryAgainError(f"answers {answer.complaint}{said}")
        return _checked(answer, expected)

    def _ask(
        self,
        method: str,
        address: Address,
        expected: tuple[int, ...],
        headers: Mapping[str, str] | None = None,
        body: Callable[[], tuple[bytes, ...]] = tuple,
    ) -> Answer:
        return _checked(self._session.ask(method, address, headers or {}, body), expected)

    def _tried(self, address: Address, attempt: Callable[[], Answer]) -> Answer:
        """What `attempt` returns, as patient as it was told to be: a try that sent enough counts as none."""
        return patiently(address, attempt, self._patience, lambda: self.sent_bytes, QUESTION)


@dataclass(slots=True)
class _Upload:
    """How far a blob is: `done` bytes of `most` that were sent are there, at `place`; `has_broken` says that only the
    registry knows. It said that it has `confirmed`; `is_assumed` says that more was accepted and never confirmed,
    `is_part` that it confirmed a part of the last piece, and `is_understated` that it did not go on from there."""

    blob: Blob
    place: Address | None = None
    piece_bytes: int = PIECE_BYTES
    done: int = 0
    most: int = 0
    confirmed: int = 0
    is_assumed: bool = False
    is_part: bool = False
    is_understated: bool = False
    has_broken: bool = False
    renewed: int = 0


def _end_of(answer: Answer, otherwise: int, sent: int) -> int:
    """How many bytes an answer says are there; of none registries say "0-0", and some name the byte behind the last of
    those that were `sent`."""
    found = _range.fullmatch(answer.getheader("range"))
    if found is None:
        return otherwise
    last = int(found[1])
    if last == sent:
        return sent
    return last + 1 if last or otherwise == 1 else 0


def _checked(answer: Answer, expected: tuple[int, ...]) -> Answer:
    if answer.status in expected:
        return answer
    if answer.status in TEMPORARY:
        raise TryAgainError(f"answers {answer.complaint}", asked_wait_s(answer))
    if answer.status in (401, 403):
        answer.check()
    raise FetchError(f"{answer.address}: answers {answer.complaint}, expected {' or '.join(map(str, expected))}")
