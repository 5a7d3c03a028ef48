"""runtime/text/counted.py: one thing, several things."""

import pytest

from pyc.runtime.text.counted import counted

WORDS = [(0, "0 tensors"), (1, "1 tensor"), (2, "2 tensors"), (1024, "1024 tensors")]


@pytest.mark.parametrize(("count", "words"), WORDS)
def test_a_noun_follows_its_number(count: int, words: str) -> None:
    assert counted(count, "tensor") == words
