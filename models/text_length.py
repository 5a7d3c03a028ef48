"""How many tokens of a text an encoder's artifact reads, and which end of a longer one goes."""

from __future__ import annotations

import logging

from pyc.compiler.files.source_files import SourceFiles
from pyc.models.tokenizer_files import Side
from pyc.runtime.errors import IngestError
from pyc.runtime.text.text_cut import TextCut

logger = logging.getLogger(__name__)


def cut_of(text_tokens: int | None, context: int, own: int, side: Side, where: str, files: SourceFiles) -> TextCut:
    """Return where texts are cut: at `text_tokens`, or at the `context` that programs are compiled for.

    Warns where that is beyond `own`, the length that the checkpoint says. Raises IngestError beyond `context`.
    """
    if text_tokens is not None and text_tokens > context:
        raise IngestError(
            f"{where}: shapes.text_tokens is {text_tokens}, expected at most {context}, the tokens that programs are "
            "compiled for; lower it, or raise shapes.context"
        )
    reads = context if text_tokens is None else text_tokens
    if reads > own:
        files.warn(
            logger,
            "%s: texts of up to %d tokens are read whole, and the checkpoint cuts them at %d; "
            "vectors of longer texts are others than those of sentence-transformers; to have them cut alike build "
            "with shapes.text_tokens=%d",
            where, reads, own, own,
        )  # fmt: skip
    return TextCut(direction="Left" if side == "left" else "Right", max_length=reads)


def is_default(cut: TextCut, context: int) -> bool:
    """Whether a reader that looks at the context alone cuts texts so."""
    return cut.direction == "Right" and cut.max_length == context
