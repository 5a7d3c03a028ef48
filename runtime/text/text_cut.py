"""Where an encoder's texts are cut: `truncation` of tokenizer.json, in artifacts that require the feature of that name.

Without the feature it is passed over, as sentence-transformers passes over its length: a text that is longer than the
model's context loses its end.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.recursion import refuse_deep_caller

FIELD = "truncation"


class TextCut(msgspec.Struct, frozen=True, gc=False):
    """Which end of a text that is too long goes, and how many tokens are left, special ones included."""

    direction: Literal["Left", "Right"]
    max_length: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]


class _Document(msgspec.Struct, frozen=True, gc=False):
    truncation: TextCut


def read_text_cut(tokenizer_json: bytes) -> TextCut:
    """Return what tokenizer.json says. Raises ArtifactError where it does not."""
    try:
        return msgspec.json.decode(tokenizer_json, type=_Document).truncation
    except (ValueError, RecursionError) as error:
        refuse_deep_caller(error)
        raise ArtifactError(
            f"tokenizer.json: {error}, and the artifact requires {FIELD!r}; build the artifact again"
        ) from error


def with_text_cut(tokenizer_json: bytes, cut: TextCut) -> bytes:
    """Return tokenizer.json with this `truncation` in place of its own."""
    document: dict[str, object] = msgspec.json.decode(tokenizer_json)
    return msgspec.json.encode({**document, FIELD: _written(cut)})


def _written(cut: TextCut) -> dict[str, object]:
    """What the field is in tokenizer.json; strategy and stride mean nothing for one text."""
    return {"direction": cut.direction, "max_length": cut.max_length, "strategy": "LongestFirst", "stride": 0}
