"""Stop strings, however the text is cut into pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.runtime.errors import RunError
from pyc.runtime.text.stopping import StopStrings

letters = st.text("ab<|\n", max_size=24)
stops = st.lists(st.text("ab<|\n", min_size=1, max_size=5), max_size=4)


def reference(text: str, strings: list[str]) -> tuple[str, bool]:
    """Character by character: the first end of a stop string, and of those the longest."""
    for end in range(1, len(text) + 1):
        found = [len(stop) for stop in strings if text[:end].endswith(stop)]
        if found:
            return text[: end - max(found)], True
    return text, False


def run(pieces: list[str], strings: list[str]) -> tuple[str, bool]:
    watch = StopStrings(strings)
    shown = ""
    for piece in pieces:
        result = watch.add(piece)
        shown += result.text
        if result.stopped:
            return shown, True
    return shown + watch.finish(), False


@given(text=letters, strings=stops, cuts=st.lists(st.integers(0, 24), max_size=10))
def test_the_result_does_not_depend_on_the_cuts(text: str, strings: list[str], cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(bounds)]
    assert run(pieces, strings) == reference(text, strings)


@given(text=letters, strings=stops)
def test_no_more_is_held_back_than_may_begin_a_stop_string(text: str, strings: list[str]) -> None:
    watch = StopStrings(strings)
    shown = ""
    for end, character in enumerate(text, 1):
        result = watch.add(character)
        shown += result.text
        if result.stopped:
            return
        held = text[len(shown) : end]
        assert shown + held == text[:end]
        assert not held or any(stop.startswith(held) for stop in strings)


def test_without_stop_strings_text_passes_through() -> None:
    watch = StopStrings()
    assert watch.add("abc").text == "abc"
    assert watch.finish() == ""


def test_one_string_is_one_stop_string() -> None:
    assert run(["hello"], "ll") == ("he", True)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [[""], ["a" * 5000], ["x"] * 65, [3]])
def test_useless_stop_strings_are_refused(bad: list[str]) -> None:
    with pytest.raises(RunError, match="stop: got"):
        StopStrings(bad)
