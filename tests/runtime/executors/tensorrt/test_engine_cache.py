"""runtime/executors/tensorrt/engine_cache.py: an engine that is not whole, ours and for here is not used."""

import os
import stat

import msgspec
import pytest

from pyc.runtime.artifact.trust.key_store import key_path, remove_trusted, signing_key
from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.tensorrt.engine_cache import KEY, MAGIC, EngineCache, Found, Label
from pyc.runtime.executors.tensorrt.program import TensorRtProgram, decode_program, encode_program

HERE = Label("0" * 64, "GPU", "9.0", "13.0", "11.1.0")


@pytest.fixture
def cache(tmp_path):
    return EngineCache(tmp_path)


def changed(**changes):
    return msgspec.structs.replace(HERE, **changes)


def test_what_was_put_is_there_for_the_same_label_alone(cache, tmp_path):
    assert cache.get(HERE) == Found(None)
    cache.put(HERE, b"engine")
    assert EngineCache(tmp_path).get(HERE) == Found(b"engine")
    assert stat.S_IMODE(cache.path(HERE).stat().st_mode) == 0o644
    for other in ({"gpu": "other"}, {"capability": "8.6"}, {"driver": "12.8"}, {"tensorrt": "11.2"}, {"made_of": "1"}):
        assert cache.get(changed(**other)) == Found(None)


def test_a_home_that_is_made_with_any_umask_is_one_that_the_key_is_read_from(tmp_path):
    previous = os.umask(0)
    try:
        EngineCache(tmp_path / "config" / "pyc").put(HERE, b"engine")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "config" / "pyc" / "engines").stat().st_mode) == 0o755
    assert EngineCache(tmp_path / "config" / "pyc").get(HERE) == Found(b"engine")


def test_timings_are_another_file_than_engines(cache):
    cache.put(changed(made_of=""), b"timings")
    assert cache.path(changed(made_of="")).suffix == ".timings"
    assert cache.get(HERE) == Found(None)


def test_an_engine_of_another_version_under_the_name_of_ours(cache):
    """A name says nothing: what is signed does."""
    older = changed(tensorrt="10.15.1")
    cache.put(older, b"engine")
    cache.path(older).rename(cache.path(HERE))
    found = cache.get(HERE)
    assert found.payload is None
    assert found.refusal == "it is of another machine or version: tensorrt is '10.15.1', here '11.1.0'"


@pytest.mark.parametrize("position", [0, 9, 40, -120, -60, -1])
def test_a_byte_that_was_altered(cache, position):
    cache.put(HERE, b"engine" * 10)
    data = bytearray(cache.path(HERE).read_bytes())
    data[position] ^= 1
    cache.path(HERE).write_bytes(data)
    found = cache.get(HERE)
    assert found.payload is None
    assert found.refusal is not None


@pytest.mark.parametrize("kept", [0, 5, 11, 60, -97, -96, -1])
def test_a_file_that_was_cut(cache, kept):
    cache.put(HERE, b"engine")
    path = cache.path(HERE)
    path.write_bytes(path.read_bytes()[:kept])
    found = cache.get(HERE)
    assert found.payload is None
    assert "damaged" in found.refusal or "not trusted" in found.refusal or "cut off" in found.refusal


@pytest.mark.parametrize("kept", [0, 6, 200])
def test_a_file_that_was_made_longer_by_terabytes_is_not_read(cache, kept):
    cache.put(HERE, b"engine")
    with open(cache.path(HERE), "r+b") as file:
        file.truncate(kept)
        try:
            file.truncate(1 << 42)
        except OSError:
            pytest.skip("the file system has no files of that size")
    assert "damaged" in cache.get(HERE).refusal or "not trusted" in cache.get(HERE).refusal


def test_a_label_of_a_gigabyte_is_not_believed(cache):
    cache.put(HERE, b"engine")
    data = bytearray(cache.path(HERE).read_bytes())
    data[len(MAGIC) : len(MAGIC) + 4] = (1 << 30).to_bytes(4, "little")
    cache.path(HERE).write_bytes(data)
    assert cache.get(HERE).refusal == "it is damaged: no engine of pyc, or not all of it"


def test_an_engine_that_a_key_signed_which_is_not_trusted_here(cache, tmp_path):
    other = EngineCache(tmp_path / "other")
    other.put(HERE, b"engine")
    cache.put(HERE, b"ours")
    cache.path(HERE).write_bytes(other.path(HERE).read_bytes())
    assert cache.get(HERE) == Found(None, "a key signed it that is not trusted here")


def test_who_reads_needs_no_private_key(cache, tmp_path):
    """A service of another user than the one who installed: the files are there to read, the key is not."""
    cache.put(HERE, b"engine")
    key_path(KEY, tmp_path).unlink()
    assert EngineCache(tmp_path).get(HERE) == Found(b"engine")
    assert not key_path(KEY, tmp_path).exists()


def test_a_key_that_is_trusted_no_more(cache, tmp_path):
    cache.put(HERE, b"engine")
    remove_trusted(signing_key(KEY, home=tmp_path).public.fingerprint, tmp_path)
    assert cache.get(HERE) == Found(None, "a key signed it that is not trusted here")


def test_a_signature_of_an_artifact_is_none_of_an_engine(cache, tmp_path):
    """What a trusted key signs as an artifact's prelude is another message."""
    cache.put(HERE, b"engine")
    body = cache.path(HERE).read_bytes()[:-96]
    record = signing_key(KEY, home=tmp_path).sign(body[:64])
    cache.path(HERE).write_bytes(body + record.pack())
    assert cache.get(HERE).refusal == "it was altered, or cut off, after it was signed"


def test_a_folder_where_the_file_would_be(cache):
    cache.path(HERE).mkdir(parents=True)
    assert cache.get(HERE).refusal.startswith("it cannot be read: ")


def test_a_file_where_the_folder_would_be(cache, tmp_path):
    (tmp_path / "engines").write_text("")
    with pytest.raises(ArtifactError, match=r"engines cannot be written: .*; run `pyc install` as a user who may"):
        cache.put(HERE, b"engine")


@pytest.mark.parametrize("data", [b"", b"\xff", encode_program(TensorRtProgram((), True))[:-1], b"\x81\xa1x\x01"])
def test_a_program_that_is_damaged(data):
    with pytest.raises(ArtifactError, match="the program for TensorRT is not valid"):
        decode_program(data)
