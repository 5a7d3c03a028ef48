"""passes/jobs/object_store.py against obstore's stores of this machine: entries as those of the build cache."""

import pytest

from pyc.compiler.files.cache import Cache
from pyc.passes.jobs.result_store import open_store
from pyc.runtime.errors import ClusterError

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


def test_a_store_that_cannot_be_reached_is_an_error(monkeypatch):
    with pytest.raises(ClusterError, match=r"^nonsense://x: .*PYC_SHARED_CACHE"):
        open_store("nonsense://x")
