"""What `load_model` is asked for: where a model is read from, and the sizes that its program is for.

One value each, which every command hands on as a whole: a setting of a recipe that one command passed over made
another model of the same recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pyc.runtime.artifact.format import KvDtype


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The folders that a recipe names: each a directory, relative to `base_dir`, or a hub id in the local cache.

    `adapters` are those that a recipe names beside the checkpoint; `tokenizer` is where the tokenizer and the chat
    templates are that are taken in place of the checkpoint's.
    """

    checkpoint: str
    base_dir: Path
    adapters: tuple[str, ...] = ()
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """The sizes that a program is for.

    `context` is the longest sequence in tokens (None: what the checkpoint says), to which a decoder's `virtual_tokens`
    come where it is given; of a text an encoder reads `text_tokens` (None: as many). `max_sequences` run at once;
    `block_tokens` positions of type `kv_dtype` make a block of the key-value cache (None: pyc's own number).
    """

    context: int | None = None
    text_tokens: int | None = None
    virtual_tokens: int = 0
    max_sequences: int = 1
    kv_dtype: KvDtype = "f16"
    block_tokens: int | None = None


OWN_SHAPES = ModelShapes()
"""What the checkpoint says, one sequence at a time."""
