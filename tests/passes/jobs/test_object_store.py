"""passes/jobs/object_store.py against obstore's stores of this machine: entries as those of the build cache."""

import pytest
from stalling_store import stalling_store

from pyc.compiler.files.cache import Cache
from pyc.passes.jobs.result_store import open_store
from pyc.runtime.errors import ClusterError
from pyc.runtime.sources import store_calls

__all__ = ["stalling_store"]

pytest.importorskip("obstore")
KEY, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def place(tmp_path):
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


def test_what_is_kept_is_found_and_is_an_entry_of_the_cache(place):
    store = open_store(f"file://{place}")
    assert not store.has(KEY) and store.opened(KEY) is None
    assert list(store.kept(KEY, [b"one", memoryview(b"two")])) == [b"one", b"two"]
    assert store.has(KEY) and b"".join(store.opened(KEY)) == b"onetwo"
    assert Cache(place).get(KEY) == b"onetwo"
    assert not store.has(OTHER)
    store.remove(KEY)
    store.remove(KEY)
    assert not store.has(KEY)


def test_what_is_not_read_to_its_end_is_not_kept(place):
    store = open_store(f"file://{place}")
    pieces = store.kept(KEY, [b"one", b"two"])
    next(pieces)
    pieces.close()
    assert not store.has(KEY)


@pytest.mark.parametrize("damage", [b"", b"x" * 10, b"x" * 40])
def test_a_damaged_entry_is_none(place, damage):
    store = open_store(f"file://{place}")
    store.put(KEY, b"data")
    (place / "entries" / KEY[:2] / KEY).write_bytes(damage)
    assert store.has(KEY) and store.opened(KEY) is None


@pytest.mark.parametrize("kind", ["connect", "answer"])
def test_a_store_that_stalls_is_an_error_before_long(kind, stalling_store, monkeypatch):
    """Whatever it is asked; each names the store and what was waited for."""
    stalling_store(kind)
    store = open_store("s3://user:secret@bucket/prefix")
    monkeypatch.setattr(store_calls, "PATIENCE_S", 0.3)
    monkeypatch.setattr(store_calls, "LEAST_BYTES_PER_S", 1 << 40)
    for ask, what in (
        (lambda: store.has(KEY), f"whether {KEY} is there"),
        (lambda: store.opened(KEY), f"the result {KEY}"),
        (lambda: store.put(KEY, b"data"), f"the store to take 36 bytes, the result {KEY}"),
        (lambda: store.put(KEY, bytes(6 << 20)), f"the store to take 6,291,488 bytes, the result {KEY}"),
        (lambda: store.remove(KEY), f"the store to drop {KEY}"),
    ):
        with pytest.raises(ClusterError) as caught:
            ask()
        said = f"s3://bucket/prefix: stalled: waited 0 s for {what}; {store_calls.REMEDY}; results of jobs go there "
        assert str(caught.value) == f"{said}(PYC_SHARED_CACHE)"
        assert caught.value.exit_code == 16


def test_a_store_that_stalls_within_a_result_is_an_error(stalling_store, monkeypatch):
    stalling_store("body")
    store = open_store("s3://bucket/prefix")
    monkeypatch.setattr(store_calls, "PATIENCE_S", 0.3)
    with pytest.raises(ClusterError, match=rf"^s3://bucket/prefix: stalled: waited 0 s for 4,000 bytes, the .* {KEY}"):
        store.opened(KEY)


def test_a_store_that_cannot_be_reached_is_an_error(monkeypatch):
    with pytest.raises(ClusterError, match=r"^nonsense://x: .*PYC_SHARED_CACHE"):
        open_store("nonsense://x")
