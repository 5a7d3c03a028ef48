"""A web server on this machine that serves bytes by ranges, slowly or wrongly when told.

    server.files["/model.pyca"] = data
    server.plan = lambda number, path, first, last: "reset"     # what each request for bytes gets; "" is right

The names of misbehaviours are the methods of `_Handler` that begin with `do_wrong_`.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

Plan = Callable[[int, str, int, int], str]
MISBEHAVIOURS = (
    "reset", "stall", "truncate", "whole", "wrong_range", "short", "unsatisfiable", "busy", "failing", "changed",
    "coded", "redirect_away", "garbage", "flipped", "loris", "no_range_header", "longer",
    "continues", "trailers", "trailers_early",
)  # fmt: skip


@dataclass
class RangeServer:
    """`asked` are the requests in order: path, first and last byte, and headers. `bytes_per_s` limits all together.
    `sent_bytes` of bodies went out.

    `most_range_bytes` are given of a range, `cut_bytes`, if any, of a file as a whole before the connection ends.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    plan: Plan = lambda number, path, first, last: ""
    redirects: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    etag: bool = True
    knows_ranges: bool = True
    most_range_bytes: int = 1 << 62
    cut_bytes: int = 0
    keeps_alive: bool = True
    bytes_per_s: float = 0.0
    asked: list[tuple[str, int, int, dict[str, str]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    sent_until_s: float = 0.0
    sent_bytes: int = 0
    connections: int = 0

    def count(self) -> int:
        return sum(last + 1 - first for _, first, last, _ in self.asked)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "test"
    range_server: RangeServer

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 -- the name of the base class
        pass

    def setup(self) -> None:
        super().setup()
        self.range_server.connections += 1

    def do_HEAD(self) -> None:
        data = self.range_server.files.get(self.path)
        status = self.range_server.statuses.get(self.path, 404 if data is None else 200)
        modified = {"Last-Modified": "Thu, 26 Nov 2026 00:00:00 GMT"}
        self.answer(status, {"ETag": tag_of(data or b""), **modified}, size=len(data or b""))

    def do_GET(self) -> None:
        state = self.range_server
        path = self.path.partition("?")[0]
        wanted = self.headers.get("Range", "")
        if path in state.redirects:
            return self.answer(302, {"Location": state.redirects[path]})
        if path in state.statuses:
            return self.answer(state.statuses[path], {})
        data = state.files.get(path)
        if data is None:
            return self.answer(404, {})
        tag = tag_of(data)
        first, last = 0, len(data) - 1
        if wanted:
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end or last), last, int(start) + self.range_server.most_range_bytes - 1)
        with state.lock:
            number = len(state.asked)
            state.asked.append((path, first, last, dict(self.headers.items())))
        headers = {"ETag": tag} if state.etag else {}
        headers["Last-Modified"] = "Thu, 26 Nov 2026 00:00:00 GMT"
        if self.headers.get("If-Match", tag) != tag:
            return self.answer(412, {})
        if first >= len(data):
            return self.answer(416, {"Content-Range": f"bytes */{len(data)}"})
        if not wanted or not state.knows_ranges:
            self.answer(200, headers, data[: state.cut_bytes or len(data)], size=len(data))
            return self.hang_up() if state.cut_bytes else None
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        wrong = state.plan(number, path, first, last)
        if wrong:
            return getattr(self, f"do_wrong_{wrong}")(data, first, last, headers)
        self.answer(206, headers, memoryview(data)[first : last + 1])

    def answer(self, status: int, headers: dict[str, str], body: bytes | memoryview = b"", *, size: int = -1) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if size < 0 else size))
        if not self.range_server.keeps_alive:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.send(memoryview(body))

    def send(self, body: memoryview) -> None:
        rate = self.range_server.bytes_per_s
        step = 64 << 10 if rate else max(len(body), 1)
        with contextlib.suppress(OSError):
            for start in range(0, len(body), step):
                part = body[start : start + step]
                if rate:
                    self.pace(len(part), rate)
                self.wfile.write(part)
                with self.range_server.lock:
                    self.range_server.sent_bytes += len(part)

    def pace(self, size: int, rate: float) -> None:
        """Wait until the link would have let so many bytes through."""
        state = self.range_server
        with state.lock:
            now = time.monotonic()
            state.sent_until_s = max(state.sent_until_s, now - 0.002) + size / rate
            wait = state.sent_until_s - now
        if wait > 0:
            time.sleep(wait)

    def hang_up(self, *, reset: bool = False) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            if reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            else:
                self.connection.shutdown(socket.SHUT_RDWR)

    # --- what servers, proxies and networks do

    def do_wrong_reset(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.answer(206, headers, data[first : (first + last) // 2], size=last + 1 - first)
        self.hang_up(reset=True)

    def do_wrong_stall(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.answer(206, headers, data[first : (first + last) // 2], size=last + 1 - first)
        time.sleep(0.5)
        self.hang_up()

    def do_wrong_truncate(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.answer(206, headers, data[first : (first + last) // 2], size=last + 1 - first)
        self.hang_up()

    def do_wrong_cut_at_50_kb(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.answer(206, headers, data[first : min(first + 50_000, last + 1)], size=last + 1 - first)
        self.hang_up()

    def do_wrong_whole(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        del headers["Content-Range"]
        self.answer(200, headers, data)

    def do_wrong_wrong_range(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        other = max(first - 1, 0) if first else 1
        headers["Content-Range"] = f"bytes {other}-{other + last - first}/{len(data)}"
        self.answer(206, headers, data[other : other + last + 1 - first], size=last + 1 - first)
        self.hang_up()

    def do_wrong_short(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        middle = (first + last) // 2
        headers["Content-Range"] = f"bytes {first}-{middle}/{len(data)}"
        self.answer(206, headers, data[first : middle + 1])

    def do_wrong_longer(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.answer(206, headers, data[first : last + 1] + b"\0" * 100)

    def do_wrong_unsatisfiable(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.answer(416, {"Content-Range": f"bytes */{len(data)}"})

    def do_wrong_busy(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.answer(429, {"Retry-After": "0"})

    def do_wrong_failing(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.answer(random.choice((500, 502, 503, 504)), {}, b"<html>sorry</html>")

    def do_wrong_changed(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        headers["ETag"] = '"another"'
        self.answer(206, headers, bytes(last + 1 - first))

    def do_wrong_coded(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        import gzip

        headers["Content-Encoding"] = "gzip"
        self.answer(206, headers, gzip.compress(data[first : last + 1]))

    def do_wrong_redirect_away(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.answer(302, {"Location": "/elsewhere"})

    def do_wrong_garbage(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.wfile.write(b"\x16\x03\x01 no http at all\r\n\r\n")
        self.hang_up()

    def do_wrong_flipped(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        body = bytearray(data[first : last + 1])
        body[len(body) // 3] ^= 4
        self.answer(206, headers, bytes(body))

    def do_wrong_loris(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        self.send_response(206)
        self.send_header("Content-Range", headers["Content-Range"])
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        with contextlib.suppress(OSError):
            for byte in data[first : first + 20]:
                self.wfile.write(bytes([byte]))
                time.sleep(0.03)
        self.hang_up()

    def do_wrong_continues(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        """Say for ever that the request may go on."""
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    def do_wrong_trailers(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        """End a body in chunks with header lines that do not end."""
        self.send_response(206)
        for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        body = data[first : last + 1]
        with contextlib.suppress(OSError):
            self.wfile.write(b"%x\r\n%b\r\n0\r\n" % (len(body), body))
            while True:
                self.wfile.write(b"X: y\r\n" * 1000)

    def do_wrong_trailers_early(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        """The same behind half of what was promised."""
        self.do_wrong_trailers(data, first, (first + last) // 2, headers)

    def do_wrong_no_range_header(self, data: bytes, first: int, last: int, headers: dict[str, str]) -> None:
        del headers["Content-Range"]
        self.answer(206, headers, data[first : last + 1])


def tag_of(data: bytes) -> str:
    return f'"{hashlib.sha256(data[:4096]).hexdigest()[:16]}-{len(data)}"'


@contextlib.contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[RangeServer]:
    """Yield a server without files, listening on this machine; over TLS with a `context`."""
    state = RangeServer()
    handler = type("Handler", (_Handler,), {"range_server": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    server.handle_error = lambda request, address: None  # type: ignore[method-assign]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    state.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def range_server() -> Iterator[RangeServer]:
    """A server without files, listening on this machine."""
    with serving() as server:
        yield server
