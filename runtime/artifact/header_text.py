"""The header as canonical JSON: one way to write a content, and one content that bytes can mean."""

import hashlib

import msgspec

from pyc.runtime.artifact.evolution import as_current, refuse_unknown_features
from pyc.runtime.artifact.format import MAX_HEADER_BRACKETS, MAX_HEADER_COMMAS, MINOR, Header, Prelude
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.recursion import refuse_deep_caller
from pyc.runtime.text.printable import printable

_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(Header)


def encode_header(header: Header) -> bytes:
    """The canonical JSON of a header: UTF-8, sorted keys, no whitespace, every field present."""
    return _encoder.encode(header)


def decode_header(data: bytes, prelude: Prelude) -> Header:
    """Check the header's hash, bound its element count, parse it and check that it is canonical.

    A header of another minor version is read as one of this (`evolution.py`). Raises ArtifactError; the caller applies
    `validate.check_header` next.
    """
    if len(data) != prelude.header_size:
        raise ArtifactError(f"header has {len(data)} bytes, expected {prelude.header_size}")
    if hashlib.sha256(data).digest() != prelude.header_sha256:
        raise ArtifactError("header altered: its SHA-256 differs from the prelude's")
    commas = data.count(b",")
    if commas > MAX_HEADER_COMMAS:
        raise ArtifactError(f"header has {commas} commas, above the limit of {MAX_HEADER_COMMAS}")
    brackets = data.count(b"[") + data.count(b"{")
    if brackets > MAX_HEADER_BRACKETS:
        raise ArtifactError(f"header has {brackets} opening brackets, above the limit of {MAX_HEADER_BRACKETS}")
    refuse_unknown_features(data)
    try:
        text = data if prelude.minor == MINOR else as_current(data, prelude.minor)
        header = _decoder.decode(text)
        canonical = _encoder.encode(header)
    except (ValueError, RecursionError, OverflowError) as error:
        refuse_deep_caller(error)
        raise ArtifactError(f"header is not valid: {printable(str(error)[:500])}") from error
    if canonical != text:
        raise ArtifactError("header is not in canonical form: re-encoding it gives other bytes")
    return header
