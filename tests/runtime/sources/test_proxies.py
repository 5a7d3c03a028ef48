"""runtime/sources/connection.py: proxies as the environment names them."""

import socket
import threading
from collections.abc import Iterator

import pytest
from range_server import RangeServer, range_server
from remote_artifacts import QUICK

from pyc.runtime.errors import FetchError
from pyc.runtime.sources.http import HttpSource

__all__ = ["range_server"]

DATA = bytes(range(256)) * 2000


class Proxy:
    """Takes connections and answers one request each as a web server that has been asked for a whole URL."""

    def __init__(self, answer: bytes) -> None:
        self.asked: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self._answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                self.asked.append(connection.recv(1 << 16))
                connection.sendall(self._answer)


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
