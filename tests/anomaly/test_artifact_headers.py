"""Artifacts that lie, each with the verdict it gets: a typed error that names the fault, at once."""

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from artifact_forge import (
    PAGE,
    Document,
    Mutation,
    add_chunk,
    canonical,
    check,
    join,
    make,
    put,
    restore_chunk,
)

from pyc.runtime.errors import ArtifactError


# What is wrong, by name: how to make it so, and what the message says.
def chunk(index: int, **fields: object) -> Mutation:
    return lambda document, payload: document["chunks"][index].update(fields)


def at(*keys: str | int, value: object) -> Mutation:
    def mutate(document: Document, payload: bytearray) -> None:
        place: Any = document
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return mutate


def prefix(*shape: int) -> Mutation:
    """The first tensor as virtual tokens."""

    def mutate(document: Document, payload: bytearray) -> None:
        document["requires"] = ["kv_prefix"]
        document["tensors"][0].update(name="kv_prefix", shape=list(shape))

    return mutate


ENCODER = {"kind": "encoder", "kv_cache": None, "pooling": {"mode": "mean", "normalize": False}}


def rename_blobs(document: Document) -> None:
    """None of them is a tokenizer."""
    for index, blob in enumerate(document["blobs"]):
        blob["name"] = f"blob{index}"


def all_zero_tensor_dimension(document: Document, payload: bytearray) -> None:
    document["tensors"][1]["shape"] = [100, 0]


def drop_last_chunk(document: Document, payload: bytearray) -> None:
    last = document["chunks"].pop()
    del payload[document["chunks"][-1]["offset"] + document["chunks"][-1]["stored_bytes"] :]
    assert last["offset"] >= len(payload)


def orphan_chunk(document: Document, payload: bytearray) -> None:
    add_chunk(document, payload, b"x" * 100)


def swap_tensors(document: Document, payload: bytearray) -> None:
    document["tensors"].reverse()


def zstd(raw: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(raw)


def zstd_of_unknown_size(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(raw)


LAST_RAW = b'{"b":2} ' * 238


def zstd_with_window(window_log: int) -> bytes:
    """A right frame of 1904 times "x", one run, that asks for a window of 2**window_log bytes (RFC 8878)."""
    descriptor = bytes([0x80, (window_log - 10) << 3]) + struct.pack("<I", 1904)
    return b"\x28\xb5\x2f\xfd" + descriptor + (1904 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"


BAD_HEADERS: dict[str, tuple[Mutation, str]] = {
    "requires_unknown": (at("requires", value=["sparse-weights"]), "needs 'sparse-weights', which this pyc does not"),
    "requires_unprintable": (at("requires", value=["\u202e" * 500]), r"needs '\\u202e.*install a newer pyc"),
    "requires_many": (at("requires", value=list("abcdefg")), "needs 'a', 'b', 'c', 'd' and more, which"),
    "requires_a_string": (at("requires", value="a"), "Expected `array`"),
    "missing_requires": (lambda d, p: d.pop("requires"), "not in canonical form"),
    "field_of_1_0": (at("programs", 0, "runtime_library", value="lib"), "unknown field `runtime_library`"),
    "unknown_field": (at("extra", value=1), "unknown field"),
    "unknown_nested_field": (at("model", "extra", value=1), "unknown field"),
    "missing_field": (lambda d, p: d.pop("generation"), "missing required field"),
    "missing_default_field": (lambda d, p: d["generation"].pop("top_k"), "not in canonical form"),
    "wrong_format": (at("format", value="pycb"), "Invalid enum value"),
    "null_tensors": (at("tensors", value=None), "Expected `array`"),
    "string_for_integer": (at("model", "context", value="64"), "Expected `int`"),
    "float_for_integer": (at("model", "context", value=64.0), "Expected `int`"),
    "bool_for_integer": (at("model", "context", value=True), "Expected `int`"),
    "number_for_decimal_text": (at("generation", "temperature", value=0.7), "Expected `str"),
    "exponent_in_decimal_text": (at("generation", "temperature", value="1e-5"), "matching regex"),
    "newline_in_decimal_text": (at("generation", "temperature", value="0.7\n"), "matching regex"),
    "zero_context": (at("model", "context", value=0), "Expected `int` >= 1"),
    "huge_integer": (at("model", "context", value=2**53), "Expected `int` <="),
    "integer_beyond_64_bits": (at("model", "context", value=2**70), "Expected `int`|out of range"),
    "unknown_codec": (chunk(0, codec="brotli"), "Invalid enum value"),
    "unknown_dtype": (at("tensors", 0, "dtype", value="f64"), "Invalid enum value"),
    "device_that_is_no_word": (at("programs", 0, "device", value="a b"), "program 0: device 'a b': expected 1 to 200"),
    "arch_that_is_no_word": (at("programs", 0, "arch", value="\n"), "program 0: arch"),
    "system_that_is_no_word": (at("programs", 0, "system", value="é"), "program 0: system"),
    "backend_that_is_no_word": (at("programs", 0, "backend", value="a b"), "backend"),
    "upper_case_digest": (lambda d, p: d["chunks"][0].update(blake3="A" * 64), "matching regex"),
    "short_digest": (chunk(0, blake3="0" * 63), "matching regex"),
    "long_digest": (chunk(0, blake3="0" * 64 + "\n"), "matching regex"),
    "wrong_digest": (chunk(0, blake3="0" * 64), r"chunk 0 \(a\): altered"),
    "negative_offset": (chunk(0, offset=-1), "Expected `int` >= 0"),
    "first_offset": (chunk(0, offset=PAGE), "chunk 0: offset 4096, expected 0"),
    "overlapping_chunks": (chunk(2, offset=PAGE), "chunk 2: offset 4096, expected 8192"),
    "gap_between_chunks": (chunk(2, offset=3 * PAGE), "chunk 2: offset 12288, expected 8192"),
    "unaligned_offset": (chunk(2, offset=2 * PAGE + 64), "chunk 2: offset 8256, expected 8192"),
    "chunks_out_of_order": (lambda d, p: d["chunks"].reverse(), "chunk 0: offset"),
    "empty_chunk": (chunk(2, stored_bytes=0, raw_bytes=0), "Expected `int` >= 1"),
    "raw_differs_without_codec": (chunk(2, raw_bytes=101), "expected equal sizes"),
    "stored_above_raw": (chunk(3, raw_bytes=2), "expected fewer bytes stored"),
    "chunk_above_16_mib": (chunk(5, raw_bytes=(16 << 20) + 1), "Expected `int` <= 16777216"),
    "raw_bytes_lie": (chunk(5, raw_bytes=16 << 20), "at most 256:1"),
    "stored_bytes_beyond_file": (chunk(5, stored_bytes=1800), "file truncated"),
    "stored_bytes_huge": (chunk(5, stored_bytes=2**53 - 1, raw_bytes=2**20), "expected fewer bytes stored"),
    "tensor_dimension_lies": (at("tensors", 0, "shape", value=[40, 33]), "hold 5120 bytes, expected 5280"),
    "tensor_shape_overflow": (at("tensors", 0, "shape", value=[2**31] * 8), "larger than"),
    "tensor_shape_too_long": (at("tensors", 0, "shape", value=[1] * 9), "length <= 8"),
    "negative_dimension": (at("tensors", 0, "shape", value=[-40, -32]), "Expected `int` >= 1"),
    "zero_dimension": (all_zero_tensor_dimension, "Expected `int` >= 1"),
    "dtype_lies": (at("tensors", 0, "dtype", value="f16"), "hold 5120 bytes, expected 2560"),
    "blob_size_lies": (at("blobs", 0, "raw_bytes", value=3001), "hold 3000 bytes, expected 3001"),
    "span_beyond_chunks": (at("blobs", 1, "span", "chunk_count", value=3), "ends at chunk 7, the file has 6"),
    "span_count_huge": (at("blobs", 1, "span", "chunk_count", value=2**53 - 1), "ends at chunk"),
    "span_starts_late": (at("tensors", 1, "span", "first_chunk", value=3), "first_chunk 3, expected 2"),
    "spans_overlap": (at("tensors", 1, "span", "first_chunk", value=1), "out of order"),
    "span_shared": (at("blobs", 0, "span", "first_chunk", value=2), "first_chunk 2, expected 3"),
    "spans_out_of_order": (swap_tensors, "out of order"),
    "span_of_no_chunks": (at("tensors", 1, "span", "chunk_count", value=0), "first_chunk 3, expected 2"),
    "orphan_chunk": (orphan_chunk, "chunks 6 to 6 belong to no tensor or blob"),
    "missing_chunk": (drop_last_chunk, "ends at chunk 6, the file has 5"),
    "prefix_without_tensor": (at("requires", value=["kv_prefix"]), "kv_prefix: there is no tensor of that name"),
    "prefix_not_required": (at("tensors", 0, "name", value="kv_prefix"), "kv_prefix: `requires` does not name it"),
    "prefix_of_another_shape": (prefix(40, 32), r"f32 \[40, 32\], expected f32 \[1, 2, 1, tokens, 8\]"),
    "prefix_of_other_heads": (prefix(1, 2, 2, 40, 8), r"f32 \[1, 2, 2, 40, 8\], expected f32 \[1, 2, 1, tokens, 8\]"),
    "prefix_that_fills_the_context": (prefix(1, 2, 1, 80, 8), "80 tokens leave no room in a context of 64"),
    "prefix_without_a_cache": (
        lambda d, p: (prefix(1, 2, 1, 80, 8)(d, p), d["model"].update(ENCODER)),
        "kv_prefix: the model has no kv_cache",
    ),
    "cache_of_fp8_not_required": (
        at("model", "kv_cache", "dtype", value="fp8"),
        "kv_cache_fp8: kv_cache is fp8 and `requires` does not name it",
    ),
    "cache_of_fp8_required_for_none": (at("requires", value=["kv_cache_fp8"]), "kv_cache_fp8: kv_cache is not fp8"),
    "texts_cut_by_a_decoder": (at("requires", value=["truncation"]), "truncation: expected an encoder with a blob"),
    "texts_cut_without_a_tokenizer": (
        lambda d, p: (d["model"].update(ENCODER), d.update(requires=["truncation"]), rename_blobs(d)),
        "truncation: expected an encoder with a blob 'tokenizer.json'",
    ),
    "program_with_weights": (at("requires", value=["program_only"]), "tensor 'a': has 2 chunks, expected none"),
    "duplicate_tensor": (at("tensors", 1, "name", value="a"), "'a': the name is used twice"),
    "duplicate_blob": (at("blobs", 1, "name", value="lib"), "'lib': the name is used twice"),
    "tensor_named_as_blob": (at("tensors", 1, "name", value="lib"), "'lib': the name is used twice"),
    "empty_name": (at("tensors", 0, "name", value=""), "length >= 1"),
    "long_name": (at("blobs", 1, "name", value="x" * 513), "length <= 512"),
    "name_of_many_bytes": (at("blobs", 1, "name", value="é" * 300), "not a plain name"),
    "nul_in_name": (at("blobs", 1, "name", value="t\0.json"), "not a plain name"),
    "newline_in_name": (at("blobs", 1, "name", value="t.json\n"), "not a plain name"),
    "escape_in_name": (at("blobs", 1, "name", value="\x1b[2Jt"), "not a plain name"),
    "parent_in_name": (at("blobs", 1, "name", value="../t.json"), "not a plain name"),
    "inner_parent_in_name": (at("blobs", 1, "name", value="a/../../t"), "not a plain name"),
    "absolute_name": (at("blobs", 1, "name", value="/etc/passwd"), "not a plain name"),
    "dot_name": (at("blobs", 1, "name", value="./t.json"), "not a plain name"),
    "double_slash_in_name": (at("blobs", 1, "name", value="a//b"), "not a plain name"),
    "trailing_slash_in_name": (at("blobs", 1, "name", value="a/"), "not a plain name"),
    "backslash_in_name": (at("blobs", 1, "name", value="..\\t.json"), "not a plain name"),
    "path_in_source": (at("provenance", "sources", 0, "name", value="/home/me/m"), "not a plain name"),
    "library_missing": (at("programs", 0, "library", value="libx"), "'libx' is not a blob"),
    "library_is_a_tensor": (at("programs", 0, "library", value="a"), "'a' is not a blob"),
    "weight_missing": (at("programs", 0, "functions", 0, "weights", value=["c"]), "'c' is not a tensor"),
    "function_twice": (at("programs", 0, "functions", 1, "tokens", value=1), "is listed twice"),
    "function_that_is_no_word": (at("programs", 0, "functions", 1, "name", value="a b"), "names, symbols and inputs"),
    "abi_twice": (at("programs", 0, "abi", value=[{"name": "x", "version": "1"}] * 2), "a component twice"),
    "decoder_without_cache": (at("model", "kv_cache", value=None), "without kv_cache"),
    "encoder_with_cache": (at("model", "kind", value="encoder"), "kind encoder needs pooling"),
    "unused_required_bit": (lambda d, p: [d["chunks"][3].update(codec="zstd")], "feature bits are 0x3"),
    "garbage_as_zstd": (restore_chunk(5, b"garbage" * 20, 1904), "zstd data is not valid"),
    "zstd_of_less": (restore_chunk(5, zstd(b"x" * 1000), 1904), "declares 1000 bytes, expected 1904"),
    "zstd_of_more": (restore_chunk(5, zstd(b"x" * 40_000_000)[:1800], 1904), "declares 40000000 bytes"),
    "zstd_of_unknown_size": (restore_chunk(5, zstd_of_unknown_size(LAST_RAW), 1904), "zstd frame declares"),
    "zstd_cut": (restore_chunk(5, zstd(LAST_RAW)[:-1], 1904), "zstd data is not valid"),
    "zstd_with_more_behind": (restore_chunk(5, zstd(LAST_RAW) + b"\0", 1904), "zstd data is not valid"),
    "two_zstd_frames": (restore_chunk(5, zstd(LAST_RAW) + zstd(b"x"), 1904), "zstd data is not valid"),
    "zstd_window_of_2_gib": (restore_chunk(5, zstd_with_window(31), 1904), "needs a window of 2147483648"),
    "zstd_window_of_32_mib": (restore_chunk(5, zstd_with_window(25), 1904), "needs a window of 33554432"),
    "inner_chunk_not_a_page": (
        lambda d, p: [
            restore_chunk(5, zstd(LAST_RAW[:1000]), 1000)(d, p),
            d["chunks"].append(dict(d["chunks"][5], offset=6 * PAGE)),
            p.extend(bytes(-len(p) % PAGE) + zstd(LAST_RAW[:1000])),
            d["blobs"][1].update(raw_bytes=6096, span={"first_chunk": 4, "chunk_count": 3}),
        ],
        "an inner chunk has raw_bytes 1000",
    ),
}


def test_a_window_of_16_mib_is_right(tmp_path: Path) -> None:
    """The frames made here fail for their window alone."""
    document, payload = make()
    restore_chunk(5, zstd_with_window(24), 1904)(document, payload)
    path = tmp_path / "m.pyca"
    put(path, join(canonical(document), payload))
    check(path)


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_header_that_lies(name: str, tmp_path: Path) -> None:
    mutate, message = BAD_HEADERS[name]
    document, payload = make()
    mutate(document, payload)
    path = tmp_path / "bad.pyca"
    put(path, join(canonical(document), payload))
    started = time.perf_counter()
    for mode in ("mmap", "pread"):
        with pytest.raises(ArtifactError, match=message) as caught:
            check(path, mode)
        assert str(caught.value).startswith(str(path))
        assert str(caught.value).isprintable()
    assert time.perf_counter() - started < 1


def header_text(change: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    """A file whose header is canonical but for one textual change."""

    def build() -> bytes:
        document, payload = make()
        return join(change(canonical(document)), payload)

    return build


def file_with(**fields: int | bytes) -> Callable[[], bytes]:
    def build() -> bytes:
        document, payload = make()
        return join(canonical(document), payload, **fields)  # type: ignore[arg-type]

    return build


def file_bytes(change: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    def build() -> bytes:
        document, payload = make()
        return change(join(canonical(document), payload))

    return build


def padding_after(chunk_index: int) -> Callable[[], bytes]:
    def build() -> bytes:
        document, payload = make()
        entry = document["chunks"][chunk_index]
        payload[entry["offset"] + entry["stored_bytes"]] = 1
        return join(canonical(document), payload)

    return build


BAD_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty_file": (lambda: b"", "too short: 0 bytes"),
    "prelude_only": (file_bytes(lambda data: data[:64]), "too short: 64 bytes"),
    "wrong_magic": (file_with(magic=b"\x93PYCB\r\n\x1a"), "not a pyc artifact"),
    "text_mode_transfer": (file_bytes(lambda data: data.replace(b"\r\n", b"\n", 1)), "not a pyc artifact"),
    "zip_file": (lambda: b"PK\x03\x04" + bytes(200), "not a pyc artifact"),
    "gguf_file": (lambda: b"GGUF" + bytes(200), "not a pyc artifact"),
    "newer_major": (file_with(major=2), r"unsupported version 2.1: this pyc reads 1.x; install a newer pyc"),
    "older_major": (file_with(major=0), r"unsupported version 0.1: this pyc reads 1.x; build the artifact again"),
    "older_minor_with_newer_field": (file_with(minor=0), "version 1.0 has no field `requires`"),
    "reserved_field": (file_with(reserved=1), "reserved field is 0x1"),
    "unknown_required_bit": (file_with(required=7), "unsupported required feature bits 0x4"),
    "high_required_bit": (file_with(required=1 << 63 | 3), "unsupported required feature bits"),
    "missing_required_bit": (file_with(required=1), "feature bits are 0x1, the codecs say 0x3"),
    "header_size_zero": (file_with(size=0), "header altered"),
    "header_size_beyond_file": (file_with(size=1 << 20), "file truncated"),
    "header_size_above_limit": (file_with(size=(16 << 20) + 1), "above the limit"),
    "header_size_huge": (file_with(size=2**64 - 1), "above the limit"),
    "header_size_one_less": (lambda: file_with(size=len(canonical(make()[0])) - 1)(), "header altered"),
    "header_digest": (file_with(digest=bytes(32)), "header altered"),
    "signature_of_nothing": (file_with(record=b"\1" * 96), "signature of key .* is wrong"),
    "signature_without_key": (file_with(record=bytes(32) + b"\1" * 64), "signature of key .* is wrong"),
    "key_without_signature": (file_with(record=b"\1" * 32 + bytes(64)), "signature of key .* is wrong"),
    "byte_behind_end": (file_bytes(lambda data: data + b"\0"), "has bytes after its end"),
    "page_behind_end": (file_bytes(lambda data: data + bytes(PAGE)), "has bytes after its end"),
    "file_twice": (file_bytes(lambda data: data + data), "has bytes after its end"),
    "last_byte_missing": (file_bytes(lambda data: data[:-1]), "file truncated"),
    "payload_missing": (file_bytes(lambda data: data[:PAGE]), "file truncated"),
    "header_padding": (
        file_bytes(lambda data: data[: PAGE - 1] + b"\1" + data[PAGE:]),
        "after the header are not",
    ),
    "padding_of_tensor": (padding_after(1), r"chunk 1 \(a\): altered: the 3072 bytes of padding"),
    "padding_of_blob": (padding_after(4), r"chunk 4 \(t.json\): altered"),
    "header_not_json": (header_text(lambda text: b"\x00" * 100), "header is not valid"),
    "header_empty": (header_text(lambda text: b""), "header is not valid"),
    "header_array": (header_text(lambda text: b"[]"), "Expected `object`"),
    "header_cut": (header_text(lambda text: text[:-1]), "header is not valid"),
    "header_with_byte_order_mark": (header_text(lambda text: b"\xef\xbb\xbf" + text), "header is not valid"),
    "header_not_utf8": (header_text(lambda text: text.replace(b"llama", b"ll\xffma")), "header is not valid"),
    "overlong_utf8": (
        header_text(lambda text: text.replace(b"llama", b"ll\xc0\xafma")),
        "header is not valid",
    ),
    "lone_surrogate": (header_text(lambda text: text.replace(b"llama", rb"\ud800")), "header is not valid"),
    "space_in_header": (header_text(lambda text: text.replace(b",", b", ", 1)), "not in canonical form"),
    "line_end_behind_header": (header_text(lambda text: text + b"\n"), "not in canonical form"),
    "text_behind_header": (header_text(lambda text: text + b"{}"), "header is not valid"),
    "key_order": (
        header_text(lambda text: text.replace(b'"format":"pyca",', b"")[:-1] + b',"format":"pyca"}'),
        "not in canonical form",
    ),
    "duplicate_key": (
        header_text(lambda text: text.replace(b'"format":"pyca",', b'"format":"pyca",' * 2)),
        "not in canonical form",
    ),
    "needless_escape": (header_text(lambda text: text.replace(b"llama", rb"\u006clama")), "not in canonical"),
    "escaped_slash": (
        header_text(lambda text: text.replace(b"t.json", rb"t\/json")),
        "not in canonical form",
    ),
    "minus_zero": (
        header_text(lambda text: text.replace(b'"first_chunk":0', b'"first_chunk":-0')),
        "not in canonical form",
    ),
    "leading_zero": (header_text(lambda text: text.replace(b'"layers":1', b'"layers":01')), "not valid"),
    "exponent": (header_text(lambda text: text.replace(b'"layers":1', b'"layers":1e0')), "Expected `int`"),
    "nan": (header_text(lambda text: text.replace(b'"layers":1', b'"layers":NaN')), "header is not valid"),
    "deeper_than_allowed": (header_text(lambda text: b"[" * 600_000), "600000 opening brackets, above the limit"),
    "deep_nesting": (header_text(lambda text: b"[" * 500_000), "header is not valid"),
    "deep_unknown_field": (header_text(lambda text: b'{"a":' * 500_000), "header is not valid"),
    "millions_of_values": (
        header_text(lambda text: text.replace(b'"shape":[40,32]', b'"shape":[' + b"1," * 1_000_000 + b"1]")),
        "commas, above the limit",
    ),
    "digits_without_end": (
        header_text(lambda text: text.replace(b'"layers":1', b'"layers":' + b"1" * 1_000_000)),
        "header is not valid",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_file_that_is_wrong(name: str, tmp_path: Path) -> None:
    build, message = BAD_FILES[name]
    path = tmp_path / "bad.pyca"
    put(path, build())
    started = time.perf_counter()
    for mode in ("mmap", "pread"):
        with pytest.raises(ArtifactError, match=message) as caught:
            check(path, mode)
        assert str(caught.value).startswith(str(path))
        assert str(caught.value).isprintable()
    assert time.perf_counter() - started < 1
