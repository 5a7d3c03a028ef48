"""runtime/sources/object_store.py: an object of an S3-compatible store on this machine."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from range_server import RangeServer, range_server
from remote_artifacts import write_artifact
from stalling_store import SIZE_BYTES, StallingStore, stalling_store

from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError, FetchError, MissingArtifactError, MissingExtraError
from pyc.runtime.sources import store_calls
from pyc.runtime.sources.object_store import ObjectSource

__all__ = ["range_server", "stalling_store"]


@pytest.fixture
def store(range_server: RangeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RangeServer:
    pytest.importorskip("obstore")
    monkeypatch.setenv("PYC_CHUNK_CACHE", "off")
    for name, value in (
        ("AWS_ENDPOINT_URL", range_server.url),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "here-1"),
        ("AWS_SKIP_SIGNATURE", "true"),
    ):
        monkeypatch.setenv(name, value)
    range_server.files["/bucket/models/m.pyca"] = write_artifact(tmp_path / "m.pyca")
    return range_server


def test_an_artifact_of_a_bucket(store: RangeServer, tmp_path: Path) -> None:
    with open_artifact("s3://bucket/models/m.pyca") as got, open_artifact(tmp_path / "m.pyca") as expected:
        assert str(got.path) == "s3://bucket/models/m.pyca" and got.is_remote
        arrays = expected.tensors()
        assert all(np.array_equal(array, arrays[name]) for name, array in got.tensors().items())
        got.verify_all()
    assert store.count() < 2.5 * len(store.files["/bucket/models/m.pyca"])
    with pytest.raises(ArtifactError, match="already closed"):
        got.verify_all()


def test_another_version_in_the_middle(store: RangeServer) -> None:
    with open_artifact("s3://bucket/models/m.pyca") as artifact:
        store.files["/bucket/models/m.pyca"] = b"new" + store.files["/bucket/models/m.pyca"]
        with pytest.raises(ArtifactError, match="replaced while it was being fetched") as caught:
            artifact.verify_all()
        assert not isinstance(caught.value, FetchError)


def test_what_is_not_there(store: RangeServer) -> None:
    with pytest.raises(MissingArtifactError, match="there is no such object"):
        open_artifact("s3://bucket/none.pyca")


@pytest.mark.parametrize("status", [401, 403])
def test_refused(store: RangeServer, status: int) -> None:
    store.statuses["/bucket/models/m.pyca"] = status
    with pytest.raises(FetchError, match=r"s3://bucket/models/m\.pyca: ") as caught:
        open_artifact("s3://bucket/models/m.pyca")
    assert "\n" not in str(caught.value)


def test_who_has_no_credentials_hears_of_them_and_not_of_the_clouds_address(store: RangeServer) -> None:
    from pyc.runtime.sources.object_store import ObjectSource

    source = ObjectSource("s3://bucket/models/m.pyca")
    told = source._explained(OSError("Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token"))
    assert isinstance(told, FetchError) and "no credentials were found; set the store's variables" in str(told)
    assert "169.254" not in str(told)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://", "s3:///x", "gs://bucket/"])
def test_urls_without_an_object(url: str) -> None:
    pytest.importorskip("obstore")
    with pytest.raises(FetchError, match=r"expected (s3|gs)://bucket/path"):
        open_artifact(url)


def test_a_query_is_not_part_of_a_key() -> None:
    pytest.importorskip("obstore")
    with pytest.raises(FetchError, match=r"s3://bucket/m\.pyca: has a query behind it") as caught:
        open_artifact("s3://bucket/m.pyca?versionId=secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_store_that_never_answers_can_be_interrupted(number: signal.Signals) -> None:
    """Before, signals waited for the last of ten tries, three minutes."""
    pytest.importorskip("obstore")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_SKIP_SIGNATURE": "true"}
        settings["AWS_REGION"] = "here-1"
        command = [sys.executable, "-m", "pyc", "verify", "s3://bucket/m.pyca"]
        with subprocess.Popen(command, env=os.environ | settings, stderr=subprocess.PIPE, text=True) as process:
            held, _ = silent.accept()  # the request is on its way
            with held:
                time.sleep(0.5)
                process.send_signal(number)
                try:
                    _, said = process.communicate(timeout=60)
                finally:
                    process.kill()
    assert process.returncode == 128 + number
    assert "Traceback" not in said


REMEDY = "check the network and the store's endpoint, and try again"


@pytest.mark.parametrize("kind", ["connect", "answer"])
def test_a_store_that_stalls_has_so_long(
    kind: str, stalling_store: Callable[[str], StallingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long each of its requests may take."""
    pytest.importorskip("obstore")
    stalling_store(kind)
    monkeypatch.setattr(store_calls, "PATIENCE_S", 0.3)
    with pytest.raises(FetchError) as caught:
        open_artifact("s3://user:secret@bucket/models/m.pyca")
    assert str(caught.value) == f"s3://bucket/models/m.pyca: stalled: waited 0 s for the object's size; {REMEDY}"
    assert caught.value.exit_code == 14


def test_a_store_that_stalls_within_a_body_has_so_long(
    stalling_store: Callable[[str], StallingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the longer, the more it has to send."""
    pytest.importorskip("obstore")
    store = stalling_store("body")
    source = ObjectSource("s3://bucket/m.pyca")
    monkeypatch.setattr(store_calls, "PATIENCE_S", 0.3)
    monkeypatch.setattr(store_calls, "LEAST_BYTES_PER_S", 4000)
    with pytest.raises(FetchError) as caught:
        source.read_into(0, memoryview(bytearray(SIZE_BYTES)))
    assert str(caught.value) == f"s3://bucket/m.pyca: stalled: waited 1 s for bytes 0 to 4,000 of 4,000; {REMEDY}"
    assert [line.split()[0] for line in store.requests] == ["HEAD", "GET"]
    assert store_calls.limit_s(8000) == 2.3


@pytest.mark.parametrize(
    ("kind", "variable"), [("connect", "CONNECT_TIMEOUT"), ("answer", "TIMEOUT"), ("body", "TIMEOUT")]
)
def test_a_request_that_stalls_has_the_limits_of_the_stores_variables(
    kind: str, variable: str, stalling_store: Callable[[str], StallingStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so many tries; what obstore says of it says neither what was waited for nor how long."""
    pytest.importorskip("obstore")
    store = stalling_store(kind)
    monkeypatch.setenv(f"AWS_{variable}", "200ms")
    monkeypatch.setitem(store_calls.RETRIES, "max_retries", 1)
    what = "the object's size" if kind != "body" else "bytes 0 to 4,000 of 4,000"
    with pytest.raises(FetchError) as caught:
        ObjectSource("s3://bucket/m.pyca").read_into(0, memoryview(bytearray(SIZE_BYTES)))
    assert re.fullmatch(
        rf"s3://bucket/m\.pyca: stalled: waited \d s, in all tries, for {re.escape(what)}; {REMEDY}", str(caught.value)
    )
    assert len(store.requests) == {"connect": 0, "answer": 2, "body": 3}[kind]


def test_the_limits_are_those_of_obstore() -> None:
    """Of which CONNECT_S and REQUEST_S tell users."""
    obstore = pytest.importorskip("obstore")
    said = (Path(obstore.__file__).parent / "_store" / "_client.pyi").read_text("utf-8")
    for name, limit_s in (("connect_timeout", store_calls.CONNECT_S), ("timeout", store_calls.REQUEST_S)):
        about = said.partition(f"    {name}: str | timedelta")[2].partition(": str | timedelta")[0]
        assert f"Default is {limit_s} seconds." in about


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"object-stores"):
        open_artifact("s3://bucket/m.pyca")
