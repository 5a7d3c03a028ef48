"""models/safetensors_header.py: one verdict for each way in which a file can be malformed."""

import json
import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.compiler.files import source_files
from pyc.compiler.files.source_files import SourceFiles
from pyc.models import safetensors_header
from pyc.models.safetensors_header import MAX_HEADER_BYTES
from pyc.runtime.errors import AdapterError, IngestError

GOOD = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    "empty": {"dtype": "I64", "shape": [0, 5], "data_offsets": [32, 32]},
}


def write(path, header, data=bytes(32), *, size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)
    return path


def read_header(path, name, *error):
    with SourceFiles() as files:
        return safetensors_header.read_header(files, path, name, *error)


def changed(**entry):
    return {**GOOD, "b": {**GOOD["b"], **entry}}


def test_a_good_file(tmp_path):
    path = write(tmp_path / "x.safetensors", GOOD)
    file = read_header(path, "x")
    start = path.stat().st_size - 32
    a, b, empty = (file.tensors[name] for name in ("a", "b", "empty"))
    assert (a.dtype, a.shape, a.offset, a.size_bytes, a.path) == ("f32", (2, 3), start, 24, str(path))
    assert (b.dtype, b.shape, b.offset, b.size_bytes, b.tensor) == ("bf16", (4,), start + 24, 8, "b")
    assert (empty.dtype, empty.shape, empty.size_bytes) == ("i64", (0, 5), 0)
    assert file.tensor_bytes == 32


def test_metadata_may_be_null(tmp_path):
    """The reference library takes it so, and some writers write it."""
    file = read_header(write(tmp_path / "x.safetensors", {**GOOD, "__metadata__": None}), "x")
    assert set(file.tensors) == {"a", "b", "empty"}


def test_it_agrees_with_the_library(tmp_path):
    import numpy as np
    from safetensors.numpy import save_file

    arrays = {f"t{n}": np.arange(n * 3, dtype=np.float16).reshape(3, n) for n in range(1, 9)}
    save_file(arrays, tmp_path / "x.safetensors", metadata={"format": "np"})
    data = (tmp_path / "x.safetensors").read_bytes()
    file = read_header(tmp_path / "x.safetensors", "x")
    assert set(file.tensors) == set(arrays)
    for name, source in file.tensors.items():
        assert source.shape == arrays[name].shape
        assert data[source.offset : source.offset + source.size_bytes] == arrays[name].tobytes()


MALFORMED = {
    "no header at all": (bytes(8), "the header does not start with '{'"),
    "empty file": (b"", "truncated: got 0 bytes, a safetensors file has at least 8"),
    "seven bytes": (bytes(7), "truncated: got 7 bytes"),
    "header longer than the file": (
        struct.pack("<Q", 100) + b"{}",
        "got 10 bytes, the header alone needs 108",
    ),
    "header above the limit": (
        struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}",
        "header length 33554433 is above",
    ),
    "header of 2**64 - 1": (b"\xff" * 8 + b"{}", "header length 18446744073709551615 is above the limit"),
    "Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "this is a Git LFS pointer in place of the file; fetch the file itself: git lfs pull, or download it again",
    ),
    "web page": (b"<!doctype html><html></html>", "this is a web page in place of the file; take the link"),
    "zip file": (b"PK\x03\x04" + bytes(60), "header length 67324752 is above the limit"),
}
HEADERS = {
    "not an object": (b"[]", "the header does not start with '{'"),
    "leading space": (b" {}", "the header does not start with '{'"),
    "not JSON": (b"{nope}", "not valid JSON"),
    "not UTF-8": (b'{"\xff":1}', "not valid JSON"),
    "deep nesting": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "not valid JSON"),
    "duplicate tensor": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        "the name 'a' occurs twice",
    ),
    "duplicate field": (b'{"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}', "occurs twice"),
    "NaN": (b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,1]}}', "NaN is not JSON"),
    "Infinity": (b'{"a":{"dtype":"U8","shape":[Infinity],"data_offsets":[0,1]}}', "Infinity is not JSON"),
    "overflowing number": (b'{"a":{"dtype":"U8","shape":[1e999],"data_offsets":[0,1]}}', "beyond float64"),
    "digits without end": (b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b"]}}", "not valid JSON"),
    "unknown field": (changed(extra=1), "tensor 'b': Object contains unknown field `extra`"),
    "missing field": ({**GOOD, "b": {"dtype": "U8"}}, "tensor 'b': Object missing required field `shape`"),
    "shape of text": (changed(shape=["4"]), "tensor 'b': Expected `int`, got `str`"),
    "negative dimension": (changed(shape=[-4]), "tensor 'b': Expected `int` >= 0"),
    "huge dimension": (changed(shape=[1 << 62]), "tensor 'b': Expected `int` <="),
    "product beyond 64 bits": (
        changed(shape=[1 << 59, 1 << 59]),
        "tensor 'b' has data offsets [24, 32), expected",
    ),
    "ten dimensions": (changed(shape=[1] * 10), "tensor 'b': Expected `array` of length <= 8"),
    "one offset": (changed(data_offsets=[24]), "tensor 'b': Expected `array` of length 2"),
    "negative offset": (changed(data_offsets=[-8, 0]), "tensor 'b': Expected `int` >= 0"),
    "reversed offsets": (changed(data_offsets=[32, 24]), "tensor 'b' has data offsets [32, 24)"),
    "size not of the shape": (changed(shape=[5]), "expected 10 bytes for BF16 [5]"),
    "unknown dtype": (changed(dtype="F4"), "tensor 'b' has the unknown data type 'F4'"),
    "gap": (changed(data_offsets=[26, 34]), "starts at byte 26, expected 24: it leaves a gap before it"),
    "overlap": (
        changed(data_offsets=[16, 24]),
        "starts at byte 16, expected 24: it overlaps the tensor before it",
    ),
    "path as a name": ({"../../x": GOOD["a"]}, "the tensor name '../../x' is not plain"),
    "absolute path as a name": ({"/etc/x": GOOD["a"]}, "the tensor name '/etc/x' is not plain"),
    "NUL in a name": ({"a\0b": GOOD["a"]}, "is not plain"),
    "empty name": ({"": GOOD["a"]}, "the tensor name '' is not plain"),
    "metadata of numbers": ({**GOOD, "__metadata__": {"a": 1}}, "__metadata__ is not a table of strings"),
}


def refusal(path):
    began = time.monotonic()
    with pytest.raises(IngestError) as caught:
        read_header(path, "model.safetensors")
    assert time.monotonic() - began < 1
    assert str(caught.value).startswith("model.safetensors: ")
    return str(caught.value)


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files(case, tmp_path):
    data, message = MALFORMED[case]
    (tmp_path / "x").write_bytes(data)
    assert message in refusal(tmp_path / "x")


@pytest.mark.slow
@pytest.mark.parametrize("case", HEADERS)
def test_malformed_headers(case, tmp_path):
    header, message = HEADERS[case]
    assert message in refusal(write(tmp_path / "x", header))


def test_truncated_tensors(tmp_path):
    path = write(tmp_path / "x", GOOD, bytes(31))
    size = path.stat().st_size
    assert f"truncated: got {size} bytes, expected {size + 1}" in refusal(path)


def test_bytes_after_the_end(tmp_path):
    path = write(tmp_path / "x", GOOD, bytes(33))
    assert "bytes after the last tensor" in refusal(path)


def test_every_truncation_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(source_files, "_TICK_S", 0.0)  # nothing writes to them later
    whole = write(tmp_path / "x", GOOD).read_bytes()
    for size in range(len(whole)):
        (tmp_path / "x").write_bytes(whole[:size])
        refusal(tmp_path / "x")


def test_a_missing_file_and_the_class_of_error(tmp_path):
    with pytest.raises(AdapterError, match="cannot be read"):
        read_header(tmp_path / "none", "none", AdapterError)


@pytest.mark.slow
@given(st.binary(max_size=200), st.integers(0, 250))
def test_noise_gives_a_typed_error_or_a_checked_file(noise, size):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "x", b"{" + noise, size=size)
        with pytest.raises(IngestError):
            read_header(path, "x")
