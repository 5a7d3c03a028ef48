"""Digests of weight expressions: what the build cache is keyed by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from blake3 import blake3

from pyc.compiler.codes import NestedScales
from pyc.compiler.schemes import Scheme
from pyc.compiler.weights import Expression, Source

EVALUATION_VERSION = 8
"""Changes whenever `compiler.evaluate`, `quantization` or `layouts` would give other bytes, and when bytes that are in
caches may be wrong."""


def expression_digest(expression: Expression, files: Mapping[str, str]) -> str:
    """Return 256 bits, in hex, that stand for the value of `expression`.

    `files` gives the digest of every source file by path; where a file lies does not count.
    """
    hasher = blake3(f"pyc weight {EVALUATION_VERSION}".encode())
    _update(hasher, expression, files)
    return hasher.hexdigest()


def _update(hasher: blake3, value: object, files: Mapping[str, str]) -> None:
    """Feed a value in a prefix-free form: type, number of parts, parts."""
    if isinstance(value, Source):
        parts: tuple[object, ...] = (
            files[value.path],
            value.offset,
            value.size_bytes,
            value.dtype,
            value.shape,
        )
        hasher.update(b"Source(5:")
    elif isinstance(value, tuple):
        parts = value
        hasher.update(b"tuple(%d:" % len(value))
    elif isinstance(value, (str, int, float, bool)) or value is None:
        text = repr(value).encode()
        hasher.update(b"%s(%d:" % (type(value).__name__.encode(), len(text)) + text)
        return
    else:
        assert isinstance(value, Expression | Scheme | NestedScales), type(value).__name__
        parts = tuple(getattr(value, field.name) for field in fields(value) if "no value" not in field.metadata)
        hasher.update(b"%s(%d:" % (type(value).__name__.encode(), len(parts)))
    for part in parts:
        _update(hasher, part, files)
