"""Thinking is told from the answer, wherever token borders fall."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.runtime.text.chat.template import ChatTemplate
from pyc.runtime.text.chat.thinking import Piece, ThinkingSplitter, has_switch, opens_thinking

CASES = [
    ("hello", False, "", "hello"),
    ("<think>hm</think>\n\nwell", False, "<think>hm</think>", "\n\nwell"),
    ("\n<think>hm < 1 </thin</think>well", False, "\n<think>hm < 1 </thin</think>", "well"),
    ("hm</think>well", True, "hm</think>", "well"),
    ("<think>cut </thi", False, "<think>cut </thi", ""),
    ("<thin", False, "", "<thin"),
    ("the tags <think>x</think>", False, "", "the tags <think>x</think>"),
    ("<think>a</think>b<think>c</think>", False, "<think>a</think>", "b<think>c</think>"),
    ("", True, "", ""),
]


@given(st.sampled_from(CASES), st.sets(st.integers(0, 40)))
def test_any_cut_gives_the_same_parts(case, borders):
    text, is_open, thinking, answer = case
    splitter = ThinkingSplitter(is_open=is_open)
    ends = [*sorted(border for border in borders if border < len(text)), len(text)]
    pieces = [
        piece for start, end in zip([0, *ends], ends, strict=False) for piece in splitter.add(text[start:end])
    ] + splitter.finish()
    assert "".join(piece.text for piece in pieces if piece.is_thinking) == thinking
    assert "".join(piece.text for piece in pieces if not piece.is_thinking) == answer


def test_text_is_shown_as_soon_as_it_is_no_tag():
    splitter = ThinkingSplitter()
    assert splitter.add("<th") == []
    assert splitter.add("e") == [Piece("<the", False)]
    assert splitter.add("<think>") == [Piece("<think>", False)]


@pytest.mark.parametrize(
    ("prompt", "expected"), [("a<think>\n", True), ("<think>\n\n</think>\n\n", False), ("", False)]
)
def test_a_template_may_open_the_tag(prompt, expected):
    assert opens_thinking(prompt) is expected


def test_a_template_may_have_a_switch():
    assert not has_switch(ChatTemplate("{{ messages }}"))
    assert has_switch(ChatTemplate("{% if enable_thinking %}think{% endif %}"))
    assert has_switch(ChatTemplate("{{ raise_exception('no') }}")), "who knows"
