"""runtime/sources/connection.py: proxies as the environment names them."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from range_server import RangeServer, range_server, serving
from remote_artifacts import QUICK
from self_signed import self_signed

from pyc.runtime.errors import FetchError
from pyc.runtime.sources import connection
from pyc.runtime.sources.http import HttpSource

__all__ = ["range_server"]

DATA = bytes(range(256)) * 2000


class Proxy:
    """Takes connections and answers one request each as a web server that has been asked for a whole URL."""

    def __init__(self, answer: bytes, more: bytes = b"") -> None:
        """`more` follows the answer without end."""
        self.asked: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self._answer, self._more = answer, more
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(1 << 16))
                with contextlib.suppress(OSError):
                    connection.sendall(self._answer)
                    while self._more:
                        connection.sendall(self._more)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy(b"HTTP/1.1 403 no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    yield made
    made.listener.close()


def test_http_through_a_proxy(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy.url)
    with pytest.raises(FetchError, match=r"http://models\.example/m\.pyca: access refused"):
        HttpSource("http://models.example/m.pyca", QUICK)
    assert proxy.asked[0].startswith(b"GET http://models.example/m.pyca HTTP/1.1\r\nHost: models.example\r\n")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://[::1", "the proxy for https: http://...: not a valid URL"),
        ("http://a..b:3128", r"models\.example/m: 'a\.\.b' is no name that a proxy can have"),
        ("http://no-such-proxy.invalid:3128", "there is no proxy 'no-such-proxy.invalid'"),
        ("http://127.0.0.1:1", "the proxy 127.0.0.1:1: Connection refused; gave up"),
    ],
)
def test_a_proxy_that_is_none_is_what_the_message_is_about(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(host: str, *arguments: object, **options: object) -> list[object]:
        if host.endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found(host, *arguments, **options)  # type: ignore[arg-type]

    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setenv("https_proxy", url)
    with pytest.raises(FetchError, match=message):
        HttpSource("https://models.example/m", QUICK)


def test_https_through_a_tunnel(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", proxy.url)
    with pytest.raises(FetchError, match="Tunnel connection failed: 403"):
        HttpSource("https://models.example/m.pyca", QUICK)
    assert proxy.asked[0].startswith(b"CONNECT models.example:443 HTTP/1.")


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 403 no\r\n"])
def test_a_proxy_whose_header_lines_do_not_end(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = start if b" 100 " in start else b"X: y\r\n"
    made = Proxy(start, endless * 1000)
    monkeypatch.setenv("https_proxy", made.url)
    with pytest.raises(FetchError, match=f"the proxy {made.url[7:]}: .*; gave up after 5 tries"):
        HttpSource("https://models.example/m.pyca", QUICK)
    assert len(made.asked) == 5
    made.listener.close()


def test_what_follows_the_head_of_a_tunnel_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal is one, whatever length its body says to have."""
    made = Proxy(b"HTTP/1.1 407 no\r\nContent-Length: 500\r\n\r\n")
    monkeypatch.setenv("https_proxy", made.url)
    with pytest.raises(FetchError, match="Tunnel connection failed: 407 no; gave up"):
        HttpSource("https://models.example/m.pyca", QUICK)
    made.listener.close()


class Tunnel:
    """A proxy that passes a connection on, as CONNECT asks for, and answers that with header lines of a body, too."""

    def __init__(self, port: int) -> None:
        self.asked: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self._port = port
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self.listener.accept()
            self.asked.append(near.recv(1 << 16))
            far = socket.create_connection(("127.0.0.1", self._port))
            near.sendall(b"HTTP/1.1 200 Connection established\r\nContent-Length: 5\r\n\r\n")
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_a_tunnel_is_used_for_several_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = self_signed(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with serving(context) as server:
        server.files["/m"] = DATA
        tunnel = Tunnel(int(server.url.rpartition(":")[2]))
        monkeypatch.setenv("https_proxy", tunnel.url)
        monkeypatch.setattr(connection, "is_private", lambda host: False)
        source = HttpSource(f"{server.url}/m", QUICK)
        target = memoryview(bytearray(10))
        source.read_into(400_000, target)
        assert bytes(target) == DATA[400_000:400_010] and server.connections == 1
        assert tunnel.asked[0].startswith(f"CONNECT {server.url[8:]} HTTP/1.1\r\nHost: {server.url[8:]}\r\n".encode())
        source.close()
        tunnel.listener.close()


def test_what_goes_past_it(range_server: RangeServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    range_server.files["/m"] = DATA
    monkeypatch.setenv("http_proxy", proxy.url)
    HttpSource(f"{range_server.url}/m", QUICK).close()
    assert not proxy.asked, "this machine"
    monkeypatch.setenv("no_proxy", ".invalid")
    with pytest.raises(FetchError, match=r"there is no host 'models\.invalid'"):
        HttpSource("http://models.invalid/m.pyca", QUICK)
    assert not proxy.asked


@pytest.mark.parametrize(
    ("proxy", "says"),
    [
        ("socks5://user:secret@127.0.0.1:1", r"the proxy socks5://\.\.\. cannot be used"),
        ("http://user:secret@[::1", r"http://\.\.\.: not a valid URL"),
        ("http://user:secret@a..b:3128", "is no name that a proxy can have"),
    ],
)
def test_a_proxy_that_is_none(proxy: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(FetchError, match=says) as caught:
        HttpSource("http://models.example/m.pyca", QUICK)
    assert "secret" not in str(caught.value)
