"""A connection to a server that neither stalls for ever nor is believed without a certificate.

`http.client` speaks the protocol; what it reads goes through `_Watched`, which ends a response that trickles: a limit
of time on each `recv` alone would let a byte every few seconds last for days.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import io
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.request import getproxies_environment, proxy_bypass

from pyc.runtime.errors import FetchError
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.sources.address import Address, parse_address
from pyc.runtime.sources.credentials import is_private
from pyc.runtime.sources.protocol import Retries
from pyc.runtime.sources.response import reason_of

BUFFER_BYTES = 1 << 16
MOST_HEAD_BYTES = 1 << 20
"""What may come before a response's body, where `http.client` reads any number of responses with status 100."""
MOST_TRAILER_BYTES = 1 << 16
"""What may come behind it, where `http.client` reads any number of lines."""
_OF_ANOTHER_HOST = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


class StalledError(OSError):
    """A server sent next to nothing for too long."""


class Opening:
    """Sockets on their way to be connections, which other threads may end: `connect` waits for a server otherwise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_ended = False

    @contextlib.contextmanager
    def held(self, raw: socket.socket) -> Iterator[None]:
        """In the context `end` ends what waits for this socket. Raises OSError where it was before."""
        try:
            with self._lock:
                self._sockets.add(raw)
                is_ended = self._is_ended
            if is_ended:
                raise ConnectionAbortedError(errno.ECONNABORTED, "closed meanwhile")
            yield
        finally:
            with self._lock:
                self._sockets.discard(raw)

    def end(self) -> None:
        """End what is on its way, and what will be."""
        with self._lock:
            self._is_ended = True
            for raw in self._sockets:
                try:
                    socket.socket.shutdown(raw, socket.SHUT_RDWR)
                except unless_signalled(OSError):
                    pass


class Connection:
    """One connection, to whom an address names; `send` and the response of `http.client` take turns."""

    def __init__(
        self,
        address: Address,
        context: ssl.SSLContext | None,
        patience: Retries,
        proxy: Address | None,
        opening: Opening,
    ) -> None:
        """Connect, by way of the proxy if there is one. Raises OSError, ssl.SSLError and http.client.HTTPException."""
        self.origin = address.origin
        self._patience = patience
        first = proxy or address
        made = http.client.HTTPConnection(first.host, first.port, timeout=patience.connect_s)
        made.auto_open = 0  # a connection that is lost is made anew, here
        made.response_class = _Response
        made._create_connection = partial(_connected, opening)  # type: ignore[attr-defined]  # unknown to typeshed
        self._http = made
        self._prefix = f"http://{address.authority}" if proxy is not None and address.scheme == "http" else ""
        try:
            made.connect()
            if proxy is not None and address.scheme == "https":
                with opening.held(made.sock):
                    _ask_for_tunnel(made, address, patience)
        except unless_signalled(OSError, http.client.HTTPException) as error:
            if proxy is None or isinstance(error, socket.gaierror):
                raise
            number = getattr(error, "errno", None)
            raise OSError(number, f"the proxy {proxy.authority}: {reason_of(error)}") from error
        raw = made.sock
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except unless_signalled(OSError):
            pass
        if context is not None:
            try:
                raw = context.wrap_socket(raw, server_hostname=address.host, do_handshake_on_connect=False)
                with opening.held(raw):
                    raw.do_handshake()
            except BaseException:
                raw.close()
                made.close()
                raise
        self._socket = _WatchedSocket(raw, patience)
        made.sock = self._socket

    def ask(
        self, address: Address, headers: Mapping[str, str], method: str = "GET", body: Iterable[bytes] = ()
    ) -> http.client.HTTPResponse:
        """Send a request and return the response, its headers read. Raises OSError and http.client.HTTPException.

        Of a body `headers` say how long it is. A server may answer before it has all of it, and hang up.
        """
        self._socket.begin()
        self._http.putrequest(method, self._prefix + address.target, skip_host=True, skip_accept_encoding=True)
        self._http.putheader("Host", address.authority)
        for name, value in headers.items():
            self._http.putheader(name, value)
        self._http.endheaders()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for piece in body:
                self._http.send(piece)
        self._socket.begin(MOST_HEAD_BYTES)
        try:
            return self._http.getresponse()
        finally:
            self._socket.begin()

    def take_end(self, response: http.client.HTTPResponse) -> bool:
        """Read the end of a body all of whose bytes are there; whether the connection may be used once more.

        What is wrong with the end is nobody's loss. It is waited for as long as for any other read, `stall_s`: what has
        not ended by then is not used again.
        """
        if response.will_close:
            return False
        try:
            return response.isclosed() or not response.read(1)
        except unless_signalled(OSError, http.client.HTTPException):
            return False

    def close(self) -> None:
        """Close it, also in the middle of another thread's read, which fails then."""
        raw = self._socket.raw
        for end in (partial(raw.shutdown, socket.SHUT_RDWR), self._http.close, raw.close):
            try:
                end()
            except unless_signalled(OSError):
                pass


def _connected(
    opening: Opening, place: tuple[str, int], timeout_s: float, source: object = None
) -> socket.socket:
    """A connection to the first of a host's addresses that answers. Raises OSError, of the last.

    `socket.create_connection`, too, goes on to the next address where a signal handler raises an OSError.
    """
    problem = OSError("the host has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(*place, type=socket.SOCK_STREAM):
        raw: socket.socket | None = None
        try:
            raw = socket.socket(family, kind, protocol)
            raw.settimeout(timeout_s)
            with opening.held(raw):
                raw.connect(address)
            return raw
        except BaseException as error:
            if raw is not None:
                raw.close()
            if not isinstance(error, unless_signalled(OSError)):
                raise
            problem = error
    raise problem


def _ask_for_tunnel(made: http.client.HTTPConnection, address: Address, patience: Retries) -> None:
    """Have a proxy pass on what follows, as RFC 9110, 9.3.6 says. Raises OSError and http.client.HTTPException.

    `http.client` does it, too, and reads header lines without end. What a proxy says of a body means nothing there.
    """
    raw = made.sock
    watched = _WatchedSocket(raw, replace(patience, stall_s=patience.connect_s))
    made.sock = watched
    try:
        host = f"[{address.host}]" if ":" in address.host else address.host
        made.putrequest("CONNECT", f"{host}:{address.port}", skip_host=True, skip_accept_encoding=True)
        made.putheader("Host", f"{host}:{address.port}")
        made.endheaders()
        watched.begin(MOST_HEAD_BYTES)
        response = made.getresponse()
        if not 200 <= response.status < 300:
            raise OSError(f"Tunnel connection failed: {response.status} {response.reason}"[:200])
        response.close()
        made.sock = raw
    except BaseException:
        raw.close()
        raise


def connect(
    address: Address, context: ssl.SSLContext | None, patience: Retries, opening: Opening | None = None
) -> Connection:
    """Return a connection; what may go away is an OSError. Raises FetchError for a certificate that is not valid and a
    host that is not there. Another thread may end the wait by `opening`."""
    proxy = _proxy_for(address)
    asked = address if proxy is None else proxy
    what = "host" if proxy is None else "proxy"
    try:
        return Connection(address, context, patience, proxy, opening or Opening())
    except ssl.SSLCertVerificationError as error:
        remedy = "set SSL_CERT_FILE to the authorities that signed it"
        if error.verify_code in _OF_ANOTHER_HOST:
            remedy = "it is of another host: ask for the name that it has, or look who answers in its place"
        raise FetchError(f"{address}: its certificate is not valid here: {error.verify_message}; {remedy}") from error
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise
        raise FetchError(f"{address}: there is no {what} {asked.host[:100]!r}: {error.strerror}") from error
    except UnicodeError as error:  # a label that is empty, or of more than 63 letters
        raise FetchError(f"{address}: {asked.host[:100]!r} is no name that a {what} can have") from error


def tls_context() -> ssl.SSLContext:
    """What checks servers' certificates, by the system's authorities or those that $SSL_CERT_FILE names."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class _Response(http.client.HTTPResponse):
    """A response whose trailers, the header lines behind a body in chunks, are bounded as those before it are.

    `http.client` reads and drops them wherever it meets them: also at the end of a body that is too short.
    """

    def __init__(self, sock: _WatchedSocket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)  # type: ignore[arg-type]  # it has what a response asks of one
        self._watched = sock

    def _read_and_discard_trailer(self) -> None:
        self._watched.begin(MOST_TRAILER_BYTES)
        try:
            super()._read_and_discard_trailer()  # type: ignore[misc]  # not among what typeshed knows
        finally:
            self._watched.begin()


class _WatchedSocket:
    """A socket as `http.client` uses one, whose reads are watched."""

    def __init__(self, raw: socket.socket, patience: Retries) -> None:
        self.raw = raw
        self._patience = patience
        self._began_s = time.monotonic()
        self._received = 0
        self._left: int | None = None

    def begin(self, most_bytes: int | None = None) -> None:
        """Count anew: a request is about to be sent, or header lines of at most so many bytes to be read.

        Those have `stall_s` in all, and a body has it for each `least_bytes`.
        """
        self._began_s, self._received, self._left = time.monotonic(), 0, most_bytes
        self.raw.settimeout(self._patience.stall_s)

    def sendall(self, data: bytes) -> None:
        self.raw.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Watched(self), BUFFER_BYTES)

    def receive(self, target: memoryview) -> int:
        """As `recv_into`. Raises StalledError where too little has come since the last time that enough had."""
        try:  # its own limit is `stall_s`, too, and setting another one each time would be a system call more
            if time.monotonic() - self._began_s > self._patience.stall_s:
                raise TimeoutError
            count = self.raw.recv_into(target)
        except unless_signalled(TimeoutError):
            raise StalledError(f"{self._received} bytes in {self._patience.stall_s:g} s") from None
        if self._left is not None:
            self._left -= count
            if self._left < 0:
                raise http.client.HTTPException("header lines without end")
        self._received += count
        if self._received >= self._patience.least_bytes and self._left is None:
            self._began_s, self._received = time.monotonic(), 0
        return count

    def close(self) -> None:
        """Nothing: `http.client` closes a connection that the server ends while the response is yet to be read."""


class _Watched(io.RawIOBase):
    """What is read from a watched socket."""

    def __init__(self, source: _WatchedSocket) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]  # a buffer, in the types' words
        return self._source.receive(target)


def _proxy_for(address: Address) -> Address | None:
    """The proxy of this address by $https_proxy, $http_proxy, $all_proxy and $no_proxy; none for this machine's own.

    Raises FetchError.
    """
    proxies = getproxies_environment()
    if "REQUEST_METHOD" in os.environ:  # in a CGI, $HTTP_PROXY is a header of the request
        proxies.pop("http", None)
    found = proxies.get(address.scheme) or proxies.get("all")
    if not found or is_private(address.host) or proxy_bypass(f"{address.host}:{address.port}"):
        return None
    url = found if "://" in found else f"http://{found}"
    scheme = url.partition("://")[0]
    if scheme.lower() != "http":
        raise FetchError(f"{address}: the proxy {scheme[:20]}://... cannot be used, expected http://host:port")
    try:
        return parse_address(url)
    except FetchError as error:
        raise FetchError(f"{address}: the proxy for {address.scheme}: {error}") from error
