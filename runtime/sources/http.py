"""A file behind a web server, by ranges: several threads read at once, each over a connection that is kept.

The first answer says how large the file is and which version (`Identity`); all later ones have to be of the same, by
If-Match and by what they say of themselves. What breaks off goes on at the byte where it did.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Sequence

from pyc.runtime.errors import ArtifactError, FetchError
from pyc.runtime.host import forks
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.sources import response as answers
from pyc.runtime.sources.address import Address, parse_address, redirected
from pyc.runtime.sources.connection import Connection, Opening, connect, tls_context
from pyc.runtime.sources.credentials import authorization
from pyc.runtime.sources.local import HeldFile
from pyc.runtime.sources.protocol import PATIENT, Came, RefusedError, Retries
from pyc.runtime.sources.response import Identity, TryAgainError
from pyc.runtime.sources.sequential import SequentialSource

logger = logging.getLogger(__name__)

START_BYTES = 256 << 10
"""Asked for first: a header of most models lies in it."""
TOLD_BYTES = 16 << 10
"""Whoever wants to know what has come is told each time that so much has: `readinto` waits for all that it may fill."""
MOST_REDIRECTS = 5
AGAIN = "the server knows no ranges, so begin again"
Authorize = Callable[[bool], str | None]
_BROKEN = (OSError, http.client.HTTPException)


class WithoutRanges(Exception):  # noqa: N818 -- no error: the server sends the whole file
    """The server answers a range with all of the file, whose body is about to be read."""

    def __init__(self, address: Address, response: http.client.HTTPResponse, connection: Connection) -> None:
        super().__init__(str(address))
        self.address, self.response, self.connection = address, response, connection


def open_http(url: str) -> HttpSource | SequentialSource:
    """Return the file at `url` as a source. Raises FetchError, MissingArtifactError and ArtifactError.

    A server that knows no ranges sends the file once, in order; it is kept in memory.
    """
    try:
        return HttpSource(url, PATIENT)
    except WithoutRanges as whole:
        address, response, connection = whole.address, whole.response, whole.connection
    try:
        size_bytes = answers.check_whole(response, address).size_bytes

        def read(target: memoryview) -> int:
            try:
                count = response.readinto(target)
            except unless_signalled(*_BROKEN) as error:
                raise FetchError(f"{address}: {answers.reason_of(error)}; {AGAIN}") from error
            if not count and response.length:
                raise FetchError(f"{address}: the answer is cut, {response.length} bytes are missing; {AGAIN}")
            return count

        return SequentialSource(str(address), read, size_bytes, connection.close)
    except TryAgainError as error:
        connection.close()
        raise FetchError(f"{address}: {error}") from error
    except BaseException:
        connection.close()
        raise


class HttpSource:
    """A file of a web server."""

    def __init__(self, url: str, patience: Retries, *, authorize: Authorize | None = None) -> None:
        """Ask for the start of the file. `authorize` gives the header Authorization in place of what is known of the
        host; it is asked again, with True, when that was refused. Raises FetchError, MissingArtifactError, and
        WithoutRanges.
        """
        self._origin = self._target = parse_address(url)
        self._patience = patience
        self._authorize = authorize
        self._authorization = authorization(self._origin) if authorize is None else authorize(False)
        self._context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._opening = Opening()
        self._is_ended = False
        self._end = _held_lock()  # until the end; no Event, whose locks are left held where a signal's handler raises
        forks.tell(self)
        self._identity: Identity | None = None
        start = memoryview(bytearray(START_BYTES))
        try:
            count = self._fetch(0, [start])
        except BaseException:
            self.close()
            raise
        self._start = start[:count]

    @property
    def size_bytes(self) -> int:
        """The file's size."""
        assert self._identity is not None
        return self._identity.size_bytes

    def __str__(self) -> str:
        return str(self._origin)

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset`. Raises ArtifactError."""
        self.read_parts(offset, [target])

    def read_parts(self, offset: int, parts: Sequence[memoryview], came: Came | None = None) -> None:
        """Fill `parts` with what follows `offset`, and tell `came` of each few bytes of it. Raises ArtifactError."""
        begun, stop = offset, offset + sum(map(len, parts))
        if stop > self.size_bytes:
            raise ArtifactError(f"{self}: ends at {self.size_bytes}, expected {stop} bytes")
        while parts and stop > offset and offset + len(parts[0]) <= len(self._start):
            parts[0][:] = self._start[offset : offset + len(parts[0])]
            offset, parts = offset + len(parts[0]), parts[1:]
        if offset < stop:
            known = offset - begun
            self._fetch(offset, parts, None if came is None else lambda done: came(known + done))

    def expect(self, size_bytes: int) -> None:
        """Nothing: the size is known."""

    def view(self, offset: int, size_bytes: int) -> memoryview | None:
        """None: nothing is mapped."""
        return None

    def hold(self) -> HeldFile | None:
        """None: nothing is mapped."""
        return None

    def close(self) -> None:
        """End all connections."""
        self._is_ended = True
        with contextlib.suppress(RuntimeError):  # it was before
            self._end.release()
        with self._lock:
            connections = [*self._idle, *self._busy]
            self._idle = []
        self._opening.end()
        for connection in connections:
            connection.close()

    def after_fork(self) -> None:
        """In a child: connections are the parent's, and other threads' locks and waits are not there."""
        self._lock = threading.Lock()
        self._idle, self._busy = [], set()
        self._opening = Opening()
        if not self._has_ended():
            self._end = _held_lock()

    def _has_ended(self) -> bool:
        return self._is_ended  # which other threads set meanwhile

    # --- one range

    def _fetch(self, offset: int, parts: Sequence[memoryview], came: Came | None = None) -> int:
        """Fill `parts`, or, where nothing is known of the file and it is shorter, a start of them; how many bytes.

        As patient as it was told to be. Raises FetchError, MissingArtifactError, ArtifactError.
        """
        failures, filling = 0, _Filling(offset, parts, came)
        before = 0
        while True:
            began_s = time.monotonic()
            try:
                self._try(filling)
                if filling.offset + filling.done == filling.stop:
                    return filling.done
            except unless_signalled(TryAgainError, AttributeError, ValueError, *_BROKEN) as error:
                if self._has_ended():  # http.client meets its own response half closed
                    raise ArtifactError(f"{self}: already closed") from error
                if isinstance(error, AttributeError | ValueError):
                    raise
                failures = 1 if filling.done - before >= self._patience.progress_bytes else failures + 1
                before = filling.done
                if failures >= self._patience.tries:
                    answers.fail(self._target, error, failures)
                asked_s = error.after_s if isinstance(error, TryAgainError) else 0.0
                level = self._patience.level(max(time.monotonic() - began_s, asked_s))
                logger.log(level, "%s: %s; trying again", self._target, answers.reason_of(error))
                if self._end.acquire(timeout=max(self._patience.wait_s(failures, random.random()), asked_s)):
                    with contextlib.suppress(RuntimeError):  # a second `close` was in between
                        self._end.release()  # for others that wait

    def _try(self, filling: _Filling) -> None:
        """Ask for what is left to fill and take what comes: a start of it, where the server gives no more at once.

        Raises TryAgainError, also for a start that is next to nothing, `_BROKEN`, and final errors.
        """
        first, last = filling.offset + filling.done, filling.stop - 1
        connection, response = self._ask(first, last)
        if response.status == 200 and self._identity is None:
            with self._lock:
                self._busy.discard(connection)
            raise WithoutRanges(self._target, response, connection)
        is_kept = False
        try:
            if response.status == 200:
                raise TryAgainError("answers a range with the whole file")
            part = answers.check_part(response, self._target, first, last, self._identity)
            if self._identity is None:
                self._identity = part.identity
                filling.stop = min(filling.stop, part.identity.size_bytes)
            filling.take(response, part.stop - first)
            is_kept = connection.take_end(response)
        finally:
            self._give_back(connection, is_kept)
        if filling.offset + filling.done < filling.stop and part.stop - first < self._patience.least_bytes:
            raise TryAgainError(f"answers {part.stop - first} bytes of {last + 1 - first} that it was asked for")

    def _ask(self, first: int, last: int) -> tuple[Connection, http.client.HTTPResponse]:
        """Send one request, following redirects, and return the answer, whose status is 200 or 206."""
        address = self._target
        for _ in range(MOST_REDIRECTS + 1):
            connection = self._connection(address)
            try:
                response = connection.ask(address, self._headers(address, first, last))
                location = response.getheader("Location")
                if response.status in answers.REDIRECTS and location:
                    self._give_back(connection, is_kept=False)
                    address = redirected(address, location)
                    continue
                self._check(response, address)
                self._target = address
                return connection, response
            except BaseException:
                self._give_back(connection, is_kept=False)
                raise
        raise FetchError(f"{self}: more than {MOST_REDIRECTS} redirects")

    def _check(self, response: http.client.HTTPResponse, address: Address) -> None:
        """Raise what the status says; a signed address that was redirected to may have expired, so ask again."""
        has_led = self._target is not self._origin and address is self._target
        if has_led and response.status in (400, 401, 403, 404, 410):
            self._target = self._origin
            raise TryAgainError(f"answers {response.status}")
        if response.status == 401 and self._authorize is not None and address.origin == self._origin.origin:
            self._authorization = self._authorize(True)
            raise TryAgainError("answers 401")
        if response.status in (401, 403) and address.origin != self._origin.origin:
            raise RefusedError(
                f"{address}: access refused ({response.status}), where {self._origin} leads; credentials go to no host "
                "that a redirect names: give the URL there itself"
            )
        answers.check_status(response, address, self._identity)

    def _headers(self, address: Address, first: int, last: int) -> dict[str, str]:
        headers = {
            "Range": f"bytes={first}-{last}",
            "Accept-Encoding": "identity",
            "User-Agent": "pyc",
            "Accept": "*/*",
        }
        if self._identity is not None:
            headers |= self._identity.condition
        if self._authorization is not None and address.origin == self._origin.origin:
            headers["Authorization"] = self._authorization
        return headers

    def _connection(self, address: Address) -> Connection:
        with self._lock:
            for index, connection in enumerate(self._idle):
                if connection.origin == address.origin:
                    self._busy.add(connection)
                    return self._idle.pop(index)
            if address.scheme == "https" and self._context is None:
                self._context = tls_context()
        if self._has_ended():
            raise ArtifactError(f"{self}: already closed")
        context = self._context if address.scheme == "https" else None
        made = connect(address, context, self._patience, self._opening)
        with self._lock:
            self._busy.add(made)
        if self._has_ended():  # closed meanwhile
            made.close()
        return made

    def _give_back(self, connection: Connection, is_kept: bool) -> None:
        with self._lock:
            self._busy.discard(connection)
            if is_kept and not self._has_ended():
                self._idle.append(connection)
                return
        connection.close()


def _held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


class _Filling:
    """Memory that is filled with the bytes from `offset` on, as far as `done`."""

    def __init__(self, offset: int, parts: Sequence[memoryview], came: Came | None) -> None:
        self.offset = offset
        self._came = came
        self.stop = offset + sum(map(len, parts))
        self.done = 0
        self._parts = list(parts)
        self._in_part = 0

    def take(self, response: http.client.HTTPResponse, size_bytes: int) -> None:
        """Fill in `size_bytes` of a body. Raises TryAgainError when it has fewer, `_BROKEN` when it breaks."""
        while size_bytes:
            part = self._parts[0][self._in_part :]
            if not part:
                del self._parts[0]
                self._in_part = 0
                continue
            most = size_bytes if self._came is None else min(size_bytes, TOLD_BYTES)
            count = response.readinto(part[:most])
            if not count:
                raise TryAgainError("the answer is cut")
            self.done += count
            if self._came is not None:
                self._came(self.done)
            self._in_part += count
            size_bytes -= count
