"""Which head a model has whose config.json ties it to the embedding, as transformers 5 decides it.

Only one of both matrices is stored: it is both. Both are stored with the same bytes: one is left out. Both are stored
and differ, as after a fine-tuning that saved its head: the head is the stored one, whatever config.json says. Values
that are equal in two types, or but for the sign of a zero, count as different here: the results are the same.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from pyc.compiler.files.source_files import Extent
from pyc.compiler.weights import Source
from pyc.models.checkpoint import Checkpoint
from pyc.models.decoder import EMBEDDING, OUTPUT

logger = logging.getLogger(__name__)

_BARE = EMBEDDING.removeprefix("model.")
"""The embedding's name in a checkpoint of the model without its head."""


def tied_head(checkpoint: Checkpoint) -> tuple[Checkpoint, bool]:
    """Return the checkpoint of a tied model, with an embedding where it stores only the head; and whether it is tied.

    Raises IngestError when a file changes meanwhile.
    """
    head = checkpoint.tensors.get(OUTPUT)
    embedding = checkpoint.tensors.get(EMBEDDING) or checkpoint.tensors.get(_BARE)
    if head is None:
        return checkpoint, True
    if not isinstance(head, Source) or not isinstance(embedding, Source | None):
        return checkpoint, False
    if embedding is None:
        tensors = {EMBEDDING if name == OUTPUT else name: source for name, source in checkpoint.tensors.items()}
        return replace(checkpoint, tensors=tensors), True
    if _kind(head) == _kind(embedding) and checkpoint.directory.files.are_same(_extent(head), _extent(embedding)):
        return checkpoint, True
    checkpoint.directory.files.warn(
        logger,
        "%s: config.json says tie_word_embeddings, but %s is stored and differs from the embedding; it is the head",
        checkpoint.label, OUTPUT,
    )  # fmt: skip
    return checkpoint, False


def _kind(source: Source) -> tuple[str, tuple[int, ...]]:
    return source.dtype, source.shape


def _extent(source: Source) -> Extent:
    return Extent(source.path, source.offset, source.size_bytes)
