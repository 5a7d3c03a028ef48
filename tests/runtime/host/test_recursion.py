"""A caller at the limit of recursion gets RecursionError, and a document that is nested too deeply is what is wrong."""

import gc
import sys
from collections.abc import Callable

import pytest
from small_tokenizers import byte_level_bpe

from pyc.runtime.errors import PycError
from pyc.runtime.text.chat.conversation import Conversation
from pyc.runtime.text.tokenizer import Tokenizer
from pyc.runtime.text.tokenizer_rules import TokenizerRuleError, check_tokenizer_json

DOCUMENT = byte_level_bpe().to_str().encode()


def called_from(depth: int, work: Callable[[], object]) -> object:
    return called_from(depth - 1, work) if depth else work()


def frames() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


@pytest.mark.parametrize(
    "work",
    [
        lambda: Tokenizer(DOCUMENT).encode("a text"),
        lambda: check_tokenizer_json(DOCUMENT),
        lambda: Conversation.from_json(b'{"messages": []}'),
    ],
)
def test_no_document_is_blamed_for_a_deep_caller(work: Callable[[], object]) -> None:
    work()  # what is made once is made before
    gc.collect()
    gc.disable()  # what is collected at the limit would fail, too
    try:
        met = limits_met(work)
    finally:
        gc.enable()
    assert met, "the limit was met"


def limits_met(work: Callable[[], object]) -> list[int]:
    """How many calls before the limit of recursion it was met."""
    met = []
    for left in range(1, 60):
        try:
            called_from(sys.getrecursionlimit() - frames() - left, work)
        except RecursionError:
            met.append(left)
        except PycError as error:
            pytest.fail(f"{left} calls before the limit: {error}")
    return met


def test_a_document_that_is_nested_too_deeply() -> None:
    nested = b'{"model": ' + b"[" * 100_000
    with pytest.raises(TokenizerRuleError, match="not a tokenizer"):
        check_tokenizer_json(nested)
    with pytest.raises(TokenizerRuleError, match=r"not a tokenizer: .*recursion"):
        check_tokenizer_json(b'{"other": ' + b"[" * 100_000)
