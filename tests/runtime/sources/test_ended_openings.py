"""A source that is closed ends connections that another thread is about to open, whatever the server does not do."""

import socket
import threading
from collections.abc import Iterator

import pytest
from range_server import RangeServer, range_server

from pyc.runtime.errors import ArtifactError
from pyc.runtime.sources import http
from pyc.runtime.sources.address import parse_address
from pyc.runtime.sources.connection import Opening, connect
from pyc.runtime.sources.http import HttpSource
from pyc.runtime.sources.protocol import PATIENT

__all__ = ["range_server"]

SOON_S = 5.0
"""Far below `PATIENT.connect_s`, far above what it takes."""


@pytest.fixture
def full() -> Iterator[socket.socket]:
    """A server that takes no connection: as many wait as the system keeps for it."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(server.getsockname())
        yield server
        for each in waiting:
            each.close()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        yield server


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_connection_that_is_being_opened_is_ended(scheme: str, request: pytest.FixtureRequest) -> None:
    """By a server that takes none, and by one that says nothing of its certificate."""
    assert PATIENT.connect_s > SOON_S
    server: socket.socket = request.getfixturevalue("full" if scheme == "http" else "silent")
    address = parse_address(f"{scheme}://127.0.0.1:{server.getsockname()[1]}/m")
    opening, problems = Opening(), []

    def open_it() -> None:
        try:
            connect(address, http.tls_context() if scheme == "https" else None, PATIENT, opening)
        except OSError as error:
            problems.append(error)

    thread = threading.Thread(target=open_it, daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive() and not problems  # it waits
    opening.end()
    thread.join(SOON_S)
    assert not thread.is_alive() and len(problems) == 1
    thread = threading.Thread(target=open_it, daemon=True)  # and what comes later does not begin
    thread.start()
    thread.join(SOON_S)
    assert not thread.is_alive() and len(problems) == 2


def test_a_source_that_is_closed_waits_for_no_connection(range_server: RangeServer, full: socket.socket) -> None:
    range_server.files["/m"] = bytes(1 << 20)
    source = HttpSource(f"{range_server.url}/m", PATIENT)
    source._target = parse_address(f"http://127.0.0.1:{full.getsockname()[1]}/m")  # as a redirect to another host
    problems: list[ArtifactError] = []

    def read() -> None:
        try:
            source.read_into(1 << 19, memoryview(bytearray(1000)))
        except ArtifactError as error:
            problems.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    source.close()
    thread.join(SOON_S)
    assert not thread.is_alive() and "already closed" in str(problems[0])
