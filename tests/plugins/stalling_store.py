"""A store on this machine that stalls: it does not take a connection, answers nothing, or stops within a body.

    store = stalling_store("body")       # or "connect", "answer"; a fixture that also sets the variables of S3
    store.requests                       # what it was asked
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

SIZE_BYTES = 4000
SENT_BYTES = 10
"""Of a body, before nothing more comes."""
HEAD = (
    f"HTTP/1.1 206 Partial Content\r\nContent-Length: {SIZE_BYTES}\r\nETag: \"a\"\r\n"
    "Last-Modified: Thu, 26 Nov 2026 00:00:00 GMT\r\n"
    f"Content-Range: bytes 0-{SIZE_BYTES - 1}/{SIZE_BYTES}\r\n\r\n"
).encode()


@dataclass
class StallingStore:
    """`requests` are first lines in order. Connections stay open until `close`."""

    url: str
    kind: str
    listener: socket.socket
    requests: list[str] = field(default_factory=list)
    held: list[socket.socket] = field(default_factory=list)

    def serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.held.append(connection)
                threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        asked = b""
        with contextlib.suppress(OSError):
            while came := connection.recv(1 << 16):
                asked += came
                if b"\r\n\r\n" not in asked:
                    continue
                first, asked = asked.partition(b"\r\n")[0].decode(), b""
                self.requests.append(first)
                if self.kind == "body":
                    connection.sendall(HEAD + (b"" if first.startswith("HEAD") else b"x" * SENT_BYTES))

    def fill(self) -> None:
        """Take all the room that the system has for connections that nobody accepted."""
        for _ in range(8):
            waiting = socket.socket()
            waiting.setblocking(False)
            waiting.connect_ex(self.listener.getsockname())
            self.held.append(waiting)

    def close(self) -> None:
        for each in (self.listener, *self.held):
            each.close()


@pytest.fixture
def stalling_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], StallingStore]]:
    """`stalling_store(kind)`: the store; what asks for s3:// asks it."""
    made: list[StallingStore] = []

    def make(kind: str) -> StallingStore:
        listener = socket.create_server(("127.0.0.1", 0), backlog=0 if kind == "connect" else 50)
        store = StallingStore(f"http://127.0.0.1:{listener.getsockname()[1]}", kind, listener)
        made.append(store)
        if kind == "connect":
            store.fill()
        else:
            threading.Thread(target=store.serve, daemon=True).start()
        variables = {"ENDPOINT_URL": store.url, "ALLOW_HTTP": "true", "REGION": "here-1", "SKIP_SIGNATURE": "true"}
        for name, value in variables.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        return store

    yield make
    for store in made:
        store.close()
