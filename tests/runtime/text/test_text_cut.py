"""Where an encoder's texts are cut."""

import json

import pytest

from pyc.runtime.errors import ArtifactError
from pyc.runtime.text.text_cut import TextCut, read_text_cut, with_text_cut
from pyc.runtime.text.tokenizer import MAX_TEXT_CHARACTERS, Tokenizer

BAD = {
    "none": ({}, "missing required field `truncation`"),
    "null": ({"truncation": None}, "got `null`"),
    "no length": ({"truncation": {"direction": "Left"}}, "missing required field `max_length`"),
    "length 0": ({"truncation": {"direction": "Left", "max_length": 0}}, ">= 1"),
    "another end": ({"truncation": {"direction": "Middle", "max_length": 3}}, "Invalid enum value 'Middle'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_tokenizer_that_does_not_say_it_is_damaged(case: str) -> None:
    document, message = BAD[case]
    with pytest.raises(ArtifactError, match="the artifact requires 'truncation'; build the artifact again") as caught:
        read_text_cut(json.dumps(document).encode())
    assert message in str(caught.value)


def test_a_document_that_is_no_json() -> None:
    for damaged in (b"", b"\xff", b"[" * 100_000):
        with pytest.raises(ArtifactError, match=r"tokenizer\.json: "):
            read_text_cut(damaged)


@pytest.mark.parametrize("direction", ["Left", "Right"])
def test_what_is_written_is_read_and_the_library_takes_it(
    direction: str, tokenizer_documents: dict[str, bytes]
) -> None:
    cut = TextCut(direction=direction, max_length=7)
    stored = with_text_cut(tokenizer_documents["word_piece"], cut)
    assert read_text_cut(stored) == cut
    tokenizer = Tokenizer(stored, cut=cut)
    text = "the quick brown fox jumps over the lazy dog"
    whole = tokenizer.encode(text)  # what tokenizer.json says cuts nothing else
    assert len(whole) > 8
    kept = whole[-6:-1] if direction == "Left" else whole[1:6]
    expected = [[whole[0], *kept, whole[-1]], tokenizer.encode("fox")]
    assert tokenizer.encode_batch([text, "fox"], max_tokens=7) == expected


def test_of_a_very_long_text_the_end_is_read(tokenizer_documents: dict[str, bytes]) -> None:
    tokenizer = Tokenizer(tokenizer_documents["word_piece"], cut=TextCut(direction="Left", max_length=5))
    text = "hello " * (MAX_TEXT_CHARACTERS // 6 + 9) + "the quick brown"
    expected = tokenizer.encode("hello the quick brown")[-4:]
    assert tokenizer.encode_batch([text], max_tokens=5)[0][1:] == expected
    assert tokenizer.count_longer([text], 5) == 1
