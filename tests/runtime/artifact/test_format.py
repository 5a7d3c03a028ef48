"""runtime/artifact/format.py: prelude, canonical header and names, each against another statement of the rule."""

import hashlib
import json
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.runtime.artifact import format as fmt
from pyc.runtime.artifact.dtypes import DTYPES
from pyc.runtime.artifact.header_text import decode_header, encode_header
from pyc.runtime.errors import ArtifactError

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
counts = st.integers(0, fmt.MAX_INTEGER)
CACHES = ["f16", "f32", "int8", "fp8"]
positives = st.integers(1, fmt.MAX_INTEGER)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
decimals = st.floats(0, 1e9, allow_nan=False).map(fmt.decimal_text)
spans = st.builds(fmt.Span, counts, counts)


def tuples_of(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(strategy, max_size=3).map(tuple)


def optional(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


models = st.builds(
    fmt.ModelInfo,
    architecture=names,
    kind=st.sampled_from(["decoder", "encoder"]),
    vocab_size=positives,
    hidden_size=positives,
    context=positives,
    max_sequences=positives,
    kv_cache=optional(
        st.builds(fmt.KvCache, positives, positives, positives, st.sampled_from(CACHES), positives)
    ),
    pooling=optional(st.builds(fmt.Pooling, st.sampled_from(["mean", "cls"]), st.booleans())),
)
functions = st.builds(
    fmt.Function,
    names,
    positives,
    names,
    tuples_of(names),
    tuples_of(names),
)
tools = st.builds(fmt.Tool, names, names)
programs = st.builds(
    fmt.Program,
    backend=st.sampled_from(["cpu", "tvm", "cuda"]),
    device=names,
    arch=names,
    system=names,
    isa=names,
    features=tuples_of(names),
    library=names,
    abi=tuples_of(tools),
    functions=tuples_of(functions),
)
generations = st.builds(
    fmt.Generation,
    eos_token_ids=tuples_of(st.integers(0, 2**31 - 1)),
    bos_token_id=optional(st.integers(0, 2**31 - 1)),
    temperature=optional(decimals),
    top_k=optional(counts),
    top_p=optional(decimals),
    do_sample=optional(st.booleans()),
)
provenances = st.builds(
    fmt.Provenance,
    recipe=st.text(st.characters(exclude_categories=["Cs"])),
    sources=tuples_of(st.builds(fmt.SourceFile, names, counts, digests)),
    tools=tuples_of(tools),
    passes=tuples_of(st.builds(fmt.PassRecord, names, counts, names)),
)
chunks = st.builds(
    fmt.Chunk, counts, positives, st.integers(1, 16 << 20), st.sampled_from(["none", "lz4", "zstd"]), digests
)
tensors = st.builds(
    fmt.Tensor, names, st.sampled_from(sorted(DTYPES)), st.lists(positives, max_size=8).map(tuple), spans
)
headers = st.builds(
    fmt.Header,
    model=models,
    tensors=tuples_of(tensors),
    blobs=tuples_of(st.builds(fmt.Blob, names, counts, spans)),
    programs=tuples_of(programs),
    chunks=tuples_of(chunks),
    generation=generations,
    provenance=provenances,
    requires=st.just(()),
)


def prelude_for(encoded: bytes) -> fmt.Prelude:
    return fmt.Prelude(0, len(encoded), hashlib.sha256(encoded).digest())


@pytest.mark.slow
@given(headers)
def test_header_survives_encoding(header: fmt.Header) -> None:
    encoded = encode_header(header)
    assert decode_header(encoded, prelude_for(encoded)) == header


@pytest.mark.slow
@given(headers)
def test_canonical_form_is_what_the_document_says(header: fmt.Header) -> None:
    """Python's json with sorted keys, no whitespace and UTF-8 writes the same bytes."""
    plain = msgspec.to_builtins(header)
    stated = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert encode_header(header) == stated


@given(required=st.integers(0, 3), size=st.integers(0, 16 << 20), digest=st.binary(min_size=32, max_size=32))
def test_prelude_survives_packing(required: int, size: int, digest: bytes) -> None:
    prelude = fmt.Prelude(required, size, digest)
    packed = prelude.pack()
    assert len(packed) == 64
    assert fmt.parse_prelude(packed) == prelude


def test_prelude_bytes() -> None:
    """The layout, byte by byte: artifacts of version 1 keep it forever."""
    packed = fmt.Prelude(3, 0x0102, bytes(range(32))).pack()
    assert packed[:8] == b"\x93PYCA\r\n\x1a"
    assert packed[8:16] == struct.pack("<HHI", 1, 1, 0)
    assert packed[16:32] == struct.pack("<QQ", 3, 0x0102)
    assert packed[32:] == bytes(range(32))


def test_signature_record() -> None:
    record = fmt.SignatureRecord(b"k" * 32, b"s" * 64)
    assert fmt.parse_signature_record(record.pack()) == record
    assert fmt.parse_signature_record(bytes(96)) is None
    assert fmt.signed_message(b"prelude") == b"pyc artifact signature v1\0prelude"
    with pytest.raises(ArtifactError, match="95 bytes"):
        fmt.parse_signature_record(bytes(95))


@pytest.mark.parametrize(("size", "aligned"), [(0, 0), (1, 4096), (4095, 4096), (4096, 4096), (4097, 8192)])
def test_align(size: int, aligned: int) -> None:
    assert fmt.align(size) == aligned


@pytest.mark.parametrize(
    ("header_size", "offset"),
    [(0, 4096), (4096 - 160, 4096), (4096 - 159, 8192), (16 << 20, (16 << 20) + 4096)],
)
def test_payload_offset(header_size: int, offset: int) -> None:
    assert fmt.payload_offset(header_size) == offset


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "model.layers.0.mlp/weight",
        "tokenizer.json",
        "..a",
        "a..",
        "...",
        "a b",
        "é",
        "模型",
        "x" * 512,
        "C:",
    ],
)
def test_plain_names(name: str) -> None:
    assert fmt.is_plain_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "..",
            "/",
            "/a",
            "a/",
            "a//b",
            "./a",
            "a/.",
            "../a",
            "a/..",
            "a/../b",
            "a/./b",
            "/etc/passwd",
        ),
        *("a\\b", "..\\a", "a\0", "\0", "a\nb", "a\tb", "\x1b[2J", "\x7f", "x" * 513, "é" * 257, "a\ud800"),
    ],
)
def test_names_that_are_not_plain(name: str) -> None:
    assert not fmt.is_plain_name(name)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1, "1"),
        (0.7, "0.7"),
        (1e-05, "0.00001"),
        (1e22, "10000000000000000000000"),
        (0.1 + 0.2, "0.30000000000000004"),
        (100.0, "100"),
        (5e-324, None),
    ],
)
def test_decimal_text(value: float, text: str | None) -> None:
    written = fmt.decimal_text(value)
    assert text is None or written == text
    assert float(written) == value


@pytest.mark.slow
@given(st.floats(min_value=0, max_value=1e9, allow_nan=False))
def test_decimal_text_is_exact_and_has_no_exponent(value: float) -> None:
    written = fmt.decimal_text(value)
    assert float(written) == value
    assert "e" not in written.lower()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.5])
def test_decimal_text_refuses(value: float) -> None:
    with pytest.raises(ValueError, match="not a finite number of at least 0"):
        fmt.decimal_text(value)


def test_dtypes() -> None:
    assert sorted(DTYPES) == ["bf16", "f16", "f32", "i32", "i8", "u8"]
    for name, dtype in DTYPES.items():
        assert dtype.name == name
        assert dtype.numpy.itemsize == dtype.itemsize
        assert dtype.numpy.byteorder in "<|="
