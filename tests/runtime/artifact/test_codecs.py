"""runtime/artifact/codecs.py: exact sizes, whatever the compressed bytes say."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.runtime.artifact.codecs import decode, encode
from pyc.runtime.artifact.format import CodecName
from pyc.runtime.errors import ArtifactError

CODECS: tuple[CodecName, ...] = ("none", "lz4", "zstd")


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(min_size=1, max_size=5000), repeat=st.integers(1, 20))
def test_decode_undoes_encode(codec: CodecName, data: bytes, repeat: int) -> None:
    raw = data * repeat
    stored = encode(codec, memoryview(raw))
    assert bytes(decode(codec, stored, len(raw))) == raw
    assert bytes(encode(codec, raw)) == bytes(stored)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_a_wrong_size_is_an_error(codec: CodecName, change: int) -> None:
    raw = b"abcdefgh" * 1000
    with pytest.raises(ArtifactError, match=f"{codec} (data|frame)"):
        decode(codec, encode(codec, raw), len(raw) + change)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("cut", [0, 1, 4, 5, 20, -1])
def test_cut_data_is_an_error(codec: CodecName, cut: int) -> None:
    raw = b"abcdefgh" * 1000 + os.urandom(100)
    with pytest.raises(ArtifactError, match=f"{codec} (data|frame)"):
        decode(codec, bytes(encode(codec, raw))[:cut], len(raw))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@given(data=st.binary(max_size=200), raw_bytes=st.integers(1, 1 << 24))
def test_any_bytes_give_the_size_or_an_error(codec: CodecName, data: bytes, raw_bytes: int) -> None:
    try:
        raw = decode(codec, data, raw_bytes)
    except ArtifactError:
        return
    assert len(raw) == raw_bytes


@pytest.mark.parametrize("size", [1, 4096, 1 << 20, 16 << 20])
def test_lz4_never_exceeds_the_expansion_limit(size: int) -> None:
    """So the writer can always fall back to it where zstd packs too tightly for the format."""
    stored = encode("lz4", bytes(size))
    assert size <= 256 * len(stored)


WITHOUT_MEMORY = """
import resource, sys
import lz4.block, zstandard
from pyc.runtime.artifact.codecs import decode, encode
codec, does, room_mib = sys.argv[1:]
raw = bytes(range(256)) * 65536
stored = encode(codec, raw)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (int(room_mib) << 20), resource.RLIM_INFINITY))
try:
    encode(codec, raw) if does == "encode" else decode(codec, stored, len(raw))
except MemoryError as error:
    print("MemoryError")
"""


@pytest.mark.slow
@pytest.mark.parametrize("does", ["encode", "decode"])
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("room_mib", ["1", "20"])
def test_without_memory_it_is_no_fault_of_the_bytes(codec: str, does: str, room_mib: str) -> None:
    """Before or behind what the result is written to. Some have room enough then."""
    command = [sys.executable, "-c", WITHOUT_MEMORY, codec, does, room_mib]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "MemoryError\n" or room_mib == "20"
