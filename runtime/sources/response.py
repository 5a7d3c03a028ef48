"""Whether a server's answer is what was asked for, and what to say where it is not.

    206 with exactly the range, or a start of it     the bytes, and a request for the rest
    301 302 303 307 308                              another address
    408 425 429 500 502 503 504, a broken body       once more, after a while
    200 to a range, another range, a coded body      once more: a cache between may have mixed things up
    401 403, 404 410, 412, the rest                  an error of its own
"""

from __future__ import annotations

import http.client
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NoReturn, Protocol

from pyc.runtime.errors import ArtifactError, FetchError, MissingArtifactError
from pyc.runtime.sources.address import Address
from pyc.runtime.sources.credentials import VARIABLE
from pyc.runtime.sources.protocol import LINK_REMEDY, EmptyFileError, RefusedError

REDIRECTS = frozenset({301, 302, 303, 307, 308})
TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504})
MOST_RETRY_AFTER_S = 30.0
MOST_BYTES = 1 << 62
"""No file is larger."""
_content_range = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


class Answered(Protocol):
    """A response, or what was read of one."""

    @property
    def status(self) -> int:
        """The code."""

    @property
    def reason(self) -> str:
        """What stands behind it."""

    def getheader(self, name: str, default: str = "") -> str:
        """A header's value."""


class TryAgainError(Exception):
    """What may go away by itself: `after_s` is how long the server asks to wait."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class Identity:
    """Which version of an object bytes are of: its size in bytes, its entity tag, and when it was written."""

    size_bytes: int
    etag: str = ""
    modified: str = ""

    @property
    def condition(self) -> dict[str, str]:
        """The header that has a server refuse another version; a weak tag cannot be asked for."""
        return {"If-Match": self.etag} if self.etag.startswith('"') else {}


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes `[first, stop)` of an object are about to follow."""

    first: int
    stop: int
    identity: Identity


def identity_of(response: http.client.HTTPResponse, size_bytes: int) -> Identity:
    """Which version the response is of."""
    return Identity(size_bytes, response.getheader("ETag", ""), response.getheader("Last-Modified", ""))


def check_status(response: Answered | http.client.HTTPResponse, address: Address, identity: Identity | None) -> None:
    """Return for 200 and 206. Raises TryAgainError, FetchError, MissingArtifactError and ArtifactError."""
    status = response.status
    if status in (200, 206):
        return
    if status in TEMPORARY:
        raise TryAgainError(f"answers {status} {response.reason}"[:100], asked_wait_s(response))
    if status in (401, 403):
        raise RefusedError(
            f"{address}: access refused ({status}); give credentials: {VARIABLE}='{address.authority}=TOKEN', "
            "a netrc file, or a URL that is signed"
        )
    if status in (404, 410):
        raise MissingArtifactError(f"{address}: the server has no such file ({status})")
    if status == 412 or (status == 416 and identity is not None):
        raise changed(address, f"the server answers {status}")
    if status == 416:
        raise EmptyFileError(f"{address}: the server has no first byte of it ({status}): the file is empty")
    raise FetchError(f"{address}: answers {status} {response.reason[:60]}, expected 206")


def asked_wait_s(response: Answered | http.client.HTTPResponse) -> float:
    """How many seconds the header Retry-After asks to wait, as a number or as a date; 0 where it does not, and never
    more than MOST_RETRY_AFTER_S."""
    value = response.getheader("Retry-After", "").strip()
    if value.isdecimal() and len(value) < 20:
        return min(float(value), MOST_RETRY_AFTER_S)
    try:
        wait_s = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError, OverflowError):  # no date, or one without a time zone
        return 0.0
    return max(0.0, min(wait_s, MOST_RETRY_AFTER_S))


def check_part(
    response: http.client.HTTPResponse, address: Address, first: int, last: int, identity: Identity | None
) -> Part:
    """Return what a 206 holds: `first` to at most `last`. Raises TryAgainError, and ArtifactError for another version
    than `identity`."""
    _check_coding(response)
    value = response.getheader("Content-Range", "")
    found = _content_range.fullmatch(value)
    if found is None:
        raise TryAgainError(f"Content-Range is {value[:60]!r}, expected bytes {first}-{last}/SIZE")
    start, end = int(found[1]), int(found[2])
    if identity is None and found[3] == "*":
        raise FetchError(f"{address}: the server does not say how large the file is")
    size = identity.size_bytes if identity is not None and found[3] == "*" else int(found[3])
    got = identity_of(response, size)
    if identity is not None:
        check_same(identity, got, address)
    most = min(last, size - 1)
    if start != first or not first <= end <= most:
        raise TryAgainError(f"answers bytes {start}-{end} of {size}, expected {first}-{most}")
    if response.length is not None and response.length != end + 1 - start:
        raise TryAgainError(f"Content-Length is {response.length}, Content-Range has {end + 1 - start} bytes")
    return Part(start, end + 1, got)


def check_whole(response: http.client.HTTPResponse, address: Address) -> Identity:
    """Return which version a 200 holds, all of it. Raises TryAgainError, FetchError when its size is unknown, and
    ArtifactError for a page that was made for this answer: nobody knows its size, or it is coded."""
    is_page = response.getheader("Content-Type", "").lower().startswith("text/html")
    if is_page and (response.length is None or response.getheader("Content-Encoding")):
        raise ArtifactError(f"{address}: not a pyc artifact: this is a web page; {LINK_REMEDY}")
    _check_coding(response)
    if response.length is None:
        raise FetchError(f"{address}: the server knows no ranges and does not say how large the file is")
    if response.length > MOST_BYTES:
        raise FetchError(f"{address}: the server says that the file has {str(response.length)[:40]} bytes")
    return identity_of(response, response.length)


def check_same(pinned: Identity, got: Identity, address: Address) -> None:
    """Raise ArtifactError when `got` is another version than the one that was opened."""
    for what, before, now in (
        ("size", pinned.size_bytes, got.size_bytes),
        ("ETag", pinned.etag, got.etag),
        ("Last-Modified", pinned.modified, got.modified),
    ):
        if before != now and (what == "size" or (before and now and not (what == "Last-Modified" and pinned.etag))):
            raise changed(address, f"{what} was {before}, is {now}")


def changed(address: Address, how: str) -> ArtifactError:
    """The error of an object that is not the one that was opened."""
    return ArtifactError(f"{address}: replaced while it was being fetched ({how[:200]}): load it again")


def _check_coding(response: http.client.HTTPResponse) -> None:
    coding = response.getheader("Content-Encoding", "identity")
    if coding.strip().lower() not in ("", "identity"):
        raise TryAgainError(f"the body is coded ({coding[:40]!r}), which was not asked for")


def reason_of(error: Exception) -> str:
    """Why a try failed, in a line."""
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return f"answers what is no HTTP ({type(error).__name__})"
    return str(getattr(error, "strerror", None) or str(error) or type(error).__name__)[:300]


def fail(
    address: Address, error: Exception, tries: int, question: str = "is the server there, and the network?"
) -> NoReturn:
    """Raise the FetchError of an address that failed so often, the last time with `error`."""
    raise FetchError(f"{address}: {reason_of(error)}; gave up after {tries} tries; {question}") from error
