"""runtime/sources/http.py: ranges, versions, redirects, credentials, and what each answer means."""

import logging
import os
import signal
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from range_server import RangeServer, range_server, serving
from remote_artifacts import QUICK
from self_signed import self_signed

from pyc.runtime.errors import ArtifactError, FetchError, MissingArtifactError
from pyc.runtime.sources import http
from pyc.runtime.sources.address import parse_address
from pyc.runtime.sources.http import HttpSource, open_http
from pyc.runtime.sources.protocol import Retries
from pyc.runtime.sources.response import check_whole
from pyc.runtime.sources.sequential import SequentialSource

__all__ = ["range_server"]

DATA = bytes(range(256)) * 4000


@pytest.fixture
def server(range_server: RangeServer) -> RangeServer:
    range_server.files["/m"] = DATA
    return range_server


@pytest.fixture
def other() -> Iterator[RangeServer]:
    """Another server: another port is another host, where credentials are concerned."""
    with serving() as server:
        server.files["/m"] = DATA
        yield server


def opened(server: RangeServer, path: str = "/m") -> HttpSource:
    return HttpSource(server.url + path, QUICK)


def read(source: HttpSource, offset: int, *sizes: int) -> list[bytes]:
    parts = [memoryview(bytearray(size)) for size in sizes]
    source.read_parts(offset, parts)
    return [bytes(part) for part in parts]


def test_parts_lie_one_behind_the_other(server: RangeServer) -> None:
    source = opened(server)
    assert source.size_bytes == len(DATA)
    assert read(source, 300_001, 10, 1, 500) == [DATA[300_001:300_011], DATA[300_011:300_012], DATA[300_012:300_512]]
    assert read(source, 262_000, 100, 400_000) == [DATA[262_000:262_100], DATA[262_100:662_100]]
    assert read(source, len(DATA) - 5, 5) == [DATA[-5:]]
    source.close()


def test_what_the_first_answer_had_is_not_asked_for_again(server: RangeServer) -> None:
    source = opened(server)
    read(source, 0, 160)
    read(source, 160, 200_000)
    assert [(first, last) for _, first, last, _ in server.asked] == [(0, http.START_BYTES - 1)]
    source.close()


def test_threads_read_at_once_over_connections_that_are_kept(server: RangeServer) -> None:
    source = opened(server)
    got: dict[int, bytes] = {}

    def work(start: int) -> None:
        for offset in range(start, start + 50_000, 10_000):
            got[offset] = read(source, offset, 10_000)[0]

    threads = [threading.Thread(target=work, args=(start,)) for start in range(300_000, 500_000, 50_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 20 and all(got[offset] == DATA[offset : offset + 10_000] for offset in got)
    assert server.connections <= 4
    source.close()


def test_a_transfer_goes_on_at_the_byte_where_it_broke_off(server: RangeServer) -> None:
    source = opened(server)
    server.plan = lambda number, path, first, last: "truncate" if number == 1 else ""
    assert read(source, 400_000, 100_000) == [DATA[400_000:500_000]]
    firsts = [first for _, first, _, _ in server.asked[1:]]
    assert firsts == [400_000, 449_999]
    source.close()


@pytest.mark.parametrize("kind", ["trailers", "trailers_early"])
def test_header_lines_without_end_behind_a_body(server: RangeServer, kind: str) -> None:
    """Bytes that are whole are used, and the connection is not."""
    source = opened(server)
    server.plan = lambda number, path, first, last: kind if number in (1, 2) else ""
    assert read(source, 400_000, 100_000) == [DATA[400_000:500_000]]
    assert read(source, 500_000, 10) == [DATA[500_000:500_010]]
    firsts = [first for _, first, _, _ in server.asked[1:]]
    assert firsts == [400_000, *[400_000] * (2 if kind == "trailers_early" else 0), 500_000]
    assert server.connections == (3 if kind == "trailers_early" else 2)
    source.close()


def test_a_server_that_gives_a_part_of_a_range_at_once(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes on is no failure: nothing is waited for, however many parts there are."""
    waits: list[int] = []
    monkeypatch.setattr(Retries, "wait_s", lambda patience, failures, chance: waits.append(failures) or 0.0)
    server.most_range_bytes = 10_000
    source = opened(server)
    assert read(source, 400_000, 100_000, 50_000) == [DATA[400_000:500_000], DATA[500_000:550_000]]
    assert len(server.asked) == 27 + 15 and not waits and server.connections == 1
    monkeypatch.undo()
    server.most_range_bytes = 10
    with pytest.raises(FetchError, match="answers 10 bytes of 9960 that it was asked for; gave up after 5 tries"):
        read(source, 600_000, 10_000)
    source.close()


def test_parts_between_failures_count_together(server: RangeServer) -> None:
    """A link that breaks behind every second part gets on."""
    server.most_range_bytes = 150_000
    source = opened(server)
    server.plan = lambda number, path, first, last: "busy" if number % 3 == 0 else ""
    assert read(source, 0, len(DATA)) == [DATA]
    source.close()


def test_a_server_that_ends_each_answer_after_50_kb(server: RangeServer) -> None:
    """What broke off after so much is progress, also of a first answer."""
    server.plan = lambda number, path, first, last: "cut_at_50_kb"
    source = opened(server)
    assert read(source, 0, len(DATA)) == [DATA]
    assert [first for _, first, _, _ in server.asked[1:4]] == [50_000, 100_000, 150_000]
    source.close()


@pytest.mark.parametrize(("told_s", "level"), [(0.1, logging.WARNING), (30.0, logging.INFO)])
def test_a_stall_is_told_as_it_lasts(
    server: RangeServer, caplog: pytest.LogCaptureFixture, told_s: float, level: int
) -> None:
    source = HttpSource(f"{server.url}/m", replace(QUICK, told_s=told_s, stall_s=5.0))
    server.plan = lambda number, path, first, last: "stall" if number == 1 else ""
    with caplog.at_level(logging.INFO, logger="pyc"):
        assert read(source, 400_000, 100_000) == [DATA[400_000:500_000]]
    lines = [(record.levelno, record.getMessage()) for record in caplog.records if "again" in record.getMessage()]
    assert [found for found, _ in lines] == [level]
    assert lines[0][1].startswith(f"{server.url}/m: ") and lines[0][1].endswith("; trying again")
    source.close()


def test_a_whole_file_that_is_cut(server: RangeServer) -> None:
    """As a network does it: another artifact would not help."""
    server.knows_ranges = False
    server.cut_bytes = 300_000
    source = open_http(f"{server.url}/m")
    with pytest.raises(FetchError, match=r"the answer is cut, 724000 bytes are missing; .* begin again"):
        source.read_into(0, memoryview(bytearray(len(DATA))))
    source.close()


def test_a_forked_child_has_connections_of_its_own(server: RangeServer) -> None:
    """Closing it must not end those of its parent, and another thread may hold the lock at the fork."""
    source = opened(server)
    taken, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with source._lock:
            taken.set()
            go_on.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        is_right = read(source, 400_000, 10) == [DATA[400_000:400_010]]
        source.close()
        os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go_on.set()
    thread.join()
    before = server.connections
    assert read(source, 500_000, 10) == [DATA[500_000:500_010]]
    assert server.connections == before, "the one that was there is used"
    source.close()


@pytest.mark.parametrize("status", [401, 403])
def test_refused(server: RangeServer, status: int) -> None:
    server.statuses["/m"] = status
    with pytest.raises(FetchError, match=r"access refused .* PYC_HTTP_TOKEN="):
        opened(server)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_where_a_redirect_leads(
    server: RangeServer, other: RangeServer, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask for credentials would ask for what is not sent, though they are there."""
    monkeypatch.setenv("PYC_HTTP_TOKEN", f"{other.url.partition('//')[2]}=token")
    server.redirects["/away"] = f"{other.url}/m"
    other.statuses["/m"] = status
    with pytest.raises(FetchError, match=r"access refused .*, where http://.* leads; .* give the URL there itself"):
        opened(server, "/away")


@pytest.mark.parametrize("status", [404, 410])
def test_not_there(server: RangeServer, status: int) -> None:
    server.statuses["/m"] = status
    with pytest.raises(MissingArtifactError, match="has no such file"):
        opened(server)


def test_an_answer_that_means_nothing_here(server: RangeServer) -> None:
    server.statuses["/m"] = 418
    with pytest.raises(FetchError, match="answers 418 I'm a Teapot, expected 206"):
        opened(server)


@pytest.mark.parametrize("has_tag", [True, False])
def test_another_version_in_the_middle(server: RangeServer, has_tag: bool) -> None:
    server.etag = has_tag
    source = opened(server)
    server.files["/m"] = b"new" + DATA
    with pytest.raises(ArtifactError, match="replaced while it was being fetched") as caught:
        read(source, 400_000, 10)
    assert not isinstance(caught.value, FetchError)
    source.close()


def test_the_version_is_asked_for(server: RangeServer) -> None:
    source = opened(server)
    read(source, 300_000, 10)
    assert "If-Match" not in server.asked[0][3]
    assert server.asked[1][3]["If-Match"].startswith('"')
    assert server.asked[1][3]["Accept-Encoding"] == "identity"
    source.close()


def test_redirects_are_followed_once_and_then_known(server: RangeServer) -> None:
    server.redirects["/old"] = "/m"
    source = opened(server, "/old")
    read(source, 300_000, 10)
    assert [path for path, _, _, _ in server.asked] == ["/m", "/m"]
    source.close()


def test_redirects_in_a_circle(server: RangeServer) -> None:
    server.redirects |= {"/a": "/b", "/b": "/a"}
    with pytest.raises(FetchError, match="more than 5 redirects"):
        opened(server, "/a")


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://host/x", "http://[::1"])
def test_redirects_to_what_is_no_url(server: RangeServer, location: str) -> None:
    server.redirects["/a"] = location
    with pytest.raises(FetchError, match="redirects to"):
        opened(server, "/a")


def test_a_signed_address_that_has_expired_is_asked_for_again(server: RangeServer) -> None:
    server.files["/signed-1"] = server.files["/signed-2"] = DATA
    server.redirects["/m"] = "/signed-1"
    source = opened(server)
    server.redirects["/m"], server.statuses["/signed-1"] = "/signed-2", 403
    assert read(source, 300_000, 10) == [DATA[300_000:300_010]]
    source.close()


def test_credentials_stay_with_their_host(
    server: RangeServer, other: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYC_HTTP_TOKEN", f"{server.url.partition('//')[2]}=abc")
    opened(server).close()
    assert server.asked[-1][3]["Authorization"] == "Bearer abc"
    server.redirects["/away"] = f"{other.url}/m"
    opened(server, "/away").close()
    assert "Authorization" not in other.asked[-1][3]
    other.redirects["/back"] = f"{server.url}/m"
    opened(other, "/back").close()
    assert "Authorization" not in server.asked[-1][3], "whom a redirect names gets none either"


def test_a_server_without_ranges_is_read_in_order(server: RangeServer) -> None:
    server.knows_ranges = False
    source = open_http(f"{server.url}/m")
    assert isinstance(source, SequentialSource) and source.size_bytes == len(DATA)
    target = memoryview(bytearray(10))
    source.read_into(500_000, target)
    assert bytes(target) == DATA[500_000:500_010]
    source.read_into(3, target)
    assert bytes(target) == DATA[3:13]
    source.close()
    assert len(server.asked) == 1


def test_a_length_that_no_file_has() -> None:
    answer = SimpleNamespace(length=10**20 - 1, getheader=lambda name, default="": default)
    with pytest.raises(FetchError, match=r"says that the file has 9{20} bytes"):
        check_whole(answer, parse_address("https://host/m"))  # type: ignore[arg-type]


@pytest.mark.parametrize("headers", [{}, {"Content-Encoding": "gzip"}])
def test_a_page_that_is_made_for_the_answer(headers: dict[str, str]) -> None:
    """It has no size, or is coded although nobody asked for that: a hub's page about a file is so."""
    sent = {"Content-Type": "text/html; charset=utf-8", **headers}
    length = 100 if headers else None
    response = SimpleNamespace(getheader=lambda name, default="": sent.get(name, default), length=length)
    with pytest.raises(ArtifactError, match=r"not a pyc artifact: this is a web page; take the link"):
        check_whole(response, parse_address("http://host/m"))  # type: ignore[arg-type]


def test_nobody_is_there() -> None:
    with pytest.raises(FetchError, match="Connection refused; gave up after 5 tries"):
        HttpSource("http://127.0.0.1:9/m", QUICK)


def test_closing_ends_a_read(server: RangeServer) -> None:
    source = opened(server)
    server.bytes_per_s = 1000
    caught: list[BaseException] = []

    def work() -> None:
        try:
            read(source, 300_000, 200_000)
        except ArtifactError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while len(server.asked) < 2:
        pass
    source.close()
    thread.join(5)
    assert not thread.is_alive() and "already closed" in str(caught[0])
    with pytest.raises(ArtifactError, match="already closed"):
        read(source, 300_000, 10)


def test_certificates_are_checked(tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with serving(context) as secure:
        secure.files["/m"] = DATA
        with pytest.raises(FetchError, match=r"its certificate is not valid here: self.signed .*SSL_CERT_FILE"):
            opened(secure)
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        source = opened(secure)
        assert read(source, 300_000, 300_000) == [DATA[300_000:600_000]]
        source.close()
        with pytest.raises(FetchError, match=r"its certificate is not valid here: .*mismatch.* it is of another host"):
            HttpSource(secure.url.replace("127.0.0.1", "localhost") + "/m", QUICK)
        secure.redirects["/down"] = f"{server.url}/m"
        with pytest.raises(FetchError, match="which is not encrypted"):
            opened(secure, "/down")
    assert not server.asked
