"""compiler/files/blocks.py: what is read on another machine is what was hashed, to the byte."""

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pyc.compiler.files import blocks
from pyc.compiler.files.blocks import Run, VerifiedFiles, block_digests
from pyc.compiler.files.source_files import SourceFiles
from pyc.runtime.errors import IngestError

SIZE = 16 * 5 + 3


@pytest.fixture(scope="module")
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 16)
        yield


@pytest.fixture(scope="module")
def hashed(small_blocks, tmp_path_factory):
    """A file of five blocks and a bit, its bytes and digests."""
    path = tmp_path_factory.mktemp("blocks") / "file"
    data = np.random.default_rng(0).bytes(SIZE)
    path.write_bytes(data)
    with SourceFiles() as files:
        return path, data, block_digests(files, str(path))


def test_one_reading_gives_the_digest_of_the_file_and_of_its_blocks(hashed):
    _, data, found = hashed
    assert (found.size_bytes, found.digest) == (SIZE, blake3(data).hexdigest())
    assert found.blocks == b"".join(blake3(data[at : at + 16]).digest() for at in range(0, SIZE, 16))


@given(st.integers(0, SIZE), st.integers(0, SIZE + 5))
def test_any_stretch_is_read(hashed, offset, size):
    path, data, found = hashed
    with VerifiedFiles() as files:
        files.expect(str(path), SIZE, [found.run(offset, min(size, SIZE - offset))])
        buffer = bytearray(size)
        got = files.read_into(str(path), memoryview(buffer), offset)
        assert buffer[:got] == data[offset : offset + size]
        assert got == len(data[offset : offset + size])


@given(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1), st.integers(1, 40))
def test_a_byte_that_differs_is_an_error_where_its_block_is_read(hashed, tmp_path_factory, wrong, offset, size):
    path, data, found = hashed
    other = tmp_path_factory.mktemp("other") / path.name
    other.write_bytes(data[:wrong] + bytes([data[wrong] ^ 1]) + data[wrong + 1 :])
    stop = min(offset + size, SIZE)
    with VerifiedFiles(str(other.parent)) as files:
        files.expect(path.name, SIZE, [Run(0, found.blocks)])
        buffer = memoryview(bytearray(stop - offset))
        if offset // 16 <= wrong // 16 <= (stop - 1) // 16:
            with pytest.raises(IngestError, match=f"the bytes from {wrong // 16 * 16} on are not those"):
                files.read_into(path.name, buffer, offset)
        else:
            assert files.read_into(path.name, buffer, offset) == stop - offset


def test_another_size_is_an_error_before_anything_is_read(hashed, tmp_path):
    _, data, found = hashed
    (tmp_path / "file").write_bytes(data[:-1])
    with VerifiedFiles(str(tmp_path)) as files, pytest.raises(IngestError, match="it has 82 bytes, and 83 where"):
        files.expect("file", SIZE, [Run(0, found.blocks)])


def test_a_file_that_changes_after_it_was_opened_is_seen(hashed, tmp_path):
    _, data, found = hashed
    other = tmp_path / "file"
    other.write_bytes(data)
    with VerifiedFiles() as files:
        files.expect(str(other), SIZE, [Run(0, found.blocks)])
        buffer = memoryview(bytearray(16))
        files.read_into(str(other), buffer, 32)
        with other.open("r+b") as file:
            file.seek(32)
            file.write(b"\0" * 16)
        with pytest.raises(IngestError, match="the bytes from 32 on"):
            files.read_into(str(other), buffer, 32)


@pytest.mark.parametrize("wrong", [0, 40, 70])
def test_a_file_is_adopted_by_what_was_read_of_it(hashed, tmp_path, wrong):
    """The machine that builds has read 50 bytes, the header say; what comes behind is the worker's."""
    _, data, found = hashed
    other = tmp_path / "file"
    other.write_bytes(data[:wrong] + bytes([data[wrong] ^ 1]) + data[wrong + 1 :])
    with SourceFiles() as files:
        files.read_into(str(other), memoryview(bytearray(50)), 0)
        assert files.read_bytes(str(other)) == 50
        assert found.begins_like(files, str(other), 50) == (wrong == 70)
