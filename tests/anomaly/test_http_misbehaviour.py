"""Servers, proxies and networks that misbehave while an artifact is fetched: the same bytes, or one clean error.

Every kind of misbehaviour strikes requests drawn by a seed: often, or always. PYC_HTTP_SEEDS is how many (default 3;
`make test-long` sets 50).
"""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from range_server import MISBEHAVIOURS, RangeServer, serving
from remote_artifacts import QUICK, write_artifact

from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError
from pyc.runtime.sources import http

SEEDS = int(os.environ.get("PYC_HTTP_SEEDS", "3"))
NEVER_PASSES = {"changed", "unsatisfiable"}
"""What ends it where it happens once."""


@pytest.fixture(scope="module")
def server() -> Iterator[RangeServer]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, np.ndarray]]:
    path = tmp_path_factory.mktemp("served") / "m.pyca"
    data = write_artifact(path)
    with open_artifact(path, mode="pread") as artifact:
        return data, artifact.tensors()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENT", QUICK)
    monkeypatch.setattr(http, "START_BYTES", 8192)
    monkeypatch.setenv("PYC_CHUNK_CACHE", "off")
    for name, size in (("LEAST_PIECE_BYTES", 32 << 10), ("MOST_PIECE_BYTES", 100_000)):
        monkeypatch.setattr(f"pyc.runtime.artifact.chunk_fetcher.{name}", size)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", MISBEHAVIOURS)
def test_the_same_bytes_or_one_clean_error(
    kind: str, seed: int, server: RangeServer, whole: tuple[bytes, dict[str, np.ndarray]]
) -> None:
    data, expected = whole
    noise = random.Random(f"{kind} {seed}")
    share = noise.choice((0.1, 0.3, 1.0)) if seed else 1.0
    lock = threading.Lock()
    struck = 0

    def plan(number: int, path: str, first: int, last: int) -> str:
        nonlocal struck
        with lock:
            strikes = (first > 0 and noise.random() < share) or (first == 0 and noise.random() < share / 4)
            struck += strikes
        return kind if strikes else ""

    server.files = {"/m.pyca": data}
    server.redirects = {"/elsewhere": "/nowhere" if noise.random() < 0.5 else "/m.pyca"}
    server.plan = plan
    server.keeps_alive = noise.random() < 0.8
    got: dict[str, np.ndarray] = {}
    error = ""
    try:
        with open_artifact(f"{server.url}/m.pyca") as artifact:
            got = artifact.tensors()
            blob = artifact.blob("tokenizer.json")
    except ArtifactError as caught:
        error = str(caught)
    if error:
        assert struck, error
        assert f"{server.url}/" in error and "\n" not in error and len(error) < 500
    else:
        assert not (struck and kind in NEVER_PASSES)
        assert blob == b'{"words": []}' * 400
        assert list(got) == list(expected)
        assert all(np.array_equal(got[name], expected[name]) for name in expected)
    assert "pyc-fetch" not in [thread.name for thread in threading.enumerate()]


def test_nothing_of_a_signature_or_a_password_is_ever_shown(
    server: RangeServer, whole: tuple[bytes, dict[str, np.ndarray]]
) -> None:
    server.files, server.redirects = {"/m.pyca": whole[0]}, {}
    address = server.url.replace("//", "//user:secret@") + "/m.pyca?X-Signature=secret"
    errors = []
    for kind in MISBEHAVIOURS:
        server.plan = lambda number, path, first, last, kind=kind: kind if first else ""
        try:
            with open_artifact(address) as artifact:
                assert "secret" not in str(artifact.path)
                artifact.verify_all()
        except ArtifactError as error:
            errors.append(str(error))
    assert len(errors) > 8 and not any("secret" in error for error in errors)


def test_one_flipped_byte_is_fetched_again_and_two_are_an_error(
    server: RangeServer, whole: tuple[bytes, dict[str, np.ndarray]]
) -> None:
    server.files, server.redirects, server.keeps_alive = {"/m.pyca": whole[0]}, {}, True
    flips = [True]
    server.plan = lambda number, path, first, last: "flipped" if first and flips and flips.pop() else ""
    with open_artifact(f"{server.url}/m.pyca") as artifact:
        artifact.verify_all()
    server.plan = lambda number, path, first, last: "flipped" if first else ""
    with open_artifact(f"{server.url}/m.pyca") as artifact, pytest.raises(ArtifactError, match="altered"):
        artifact.verify_all()


def test_a_truncated_artifact_is_refused_before_a_weight_is_fetched(
    server: RangeServer, whole: tuple[bytes, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    server.plan, server.redirects = (lambda number, path, first, last: ""), {}
    for size in (0, 1, 159, 4096, len(whole[0]) - 1):
        server.files = {"/m.pyca": whole[0][:size]}
        before = len(server.asked)
        with pytest.raises(ArtifactError):
            open_artifact(f"{server.url}/m.pyca")
        assert sum(last + 1 - first for _, first, last, _ in server.asked[before:]) <= 16384


def test_a_transfer_goes_on_wherever_it_is_cut(
    server: RangeServer, whole: tuple[bytes, dict[str, np.ndarray]]
) -> None:
    """100 transfers, each cut up to three times."""
    server.files, server.redirects, server.keeps_alive = {"/m.pyca": whole[0]}, {}, True
    noise = random.Random(5)
    for _ in range(100):
        left = [noise.randrange(3) for _ in range(3)]
        server.plan = lambda number, path, first, last, left=left: "truncate" if left and left.pop() else ""
        with open_artifact(f"{server.url}/m.pyca") as artifact:
            assert np.array_equal(artifact.tensor("t2"), whole[1]["t2"])
