"""Text piece by piece equals text at once, for tokenizers of every kind."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.runtime.text.detokenizer import REPLACEMENT, Detokenizer
from pyc.runtime.text.tokenizer import Tokenizer

KINDS = ["byte_level_bpe", "metaspace_unigram", "byte_fallback_bpe", "word_piece"]

# Whole characters, families joined by zero-width joiners, flags, accents that combine, several scripts.
PIECES = [
    *["😀", "👩‍👩‍👧‍👦", "🇩🇪", "❤️", "e\u0301", "n\u0303", "\u200d", "\ufeff", "𝔘𝔫𝔦", "ﷺ"],
    *["日本語", "한국어", "русский", "Größe", "the", " hello", "don't", "a", "0"],
    *[" ", "  ", "\n", " .", "(x)", "<|im_end|>", "</s>"],
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12).map("".join)


def stream(tokenizer: Tokenizer, ids: list[int], *, context: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer, context=context or [])
    return [*[detokenizer.add(token) for token in ids], detokenizer.finish()]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(text=texts)
def test_pieces_join_to_the_whole(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(text)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(text=texts)
def test_pieces_have_no_half_characters(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = tokenizers[kind]
    if REPLACEMENT in text:
        return
    assert not any(REPLACEMENT in piece for piece in stream(tokenizer, tokenizer.encode(text)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["byte_level_bpe", "metaspace_unigram", "byte_fallback_bpe"])
@given(text=texts, split=st.integers(0, 30))
def test_a_continuation_joins_its_prompt(tokenizers: dict[str, Tokenizer], kind: str, text: str, split: int) -> None:
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(text)
    prompt, rest = ids[:split], ids[split:]
    if tokenizer.decode(prompt).endswith(REPLACEMENT):
        return  # the prompt ends inside a character: there is no text that it ends with
    assert tokenizer.decode(prompt) + "".join(stream(tokenizer, rest, context=prompt)) == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(6, 399), max_size=40))
def test_random_byte_level_tokens_join_to_the_whole(tokenizers: dict[str, Tokenizer], ids: list[int]) -> None:
    tokenizer = tokenizers["byte_level_bpe"]
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_character_over_four_tokens_comes_at_once(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_fallback_bpe"]
    ids = tokenizer.encode("a🦀b", add_special_tokens=False)
    assert stream(tokenizer, ids) == ["a", "", "", "", "🦀", "b", ""]


def test_an_unfinished_character_is_shown_at_the_end(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level_bpe"]
    ids = tokenizer.encode("🦀")[:-1]
    assert stream(tokenizer, ids)[-1] == REPLACEMENT
    assert "".join(stream(tokenizer, ids)) == REPLACEMENT


def test_bytes_that_are_never_text_are_not_held_forever(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level_bpe"]
    stray = tokenizer.encode("é")[1]
    pieces = stream(tokenizer, [stray] * 100)
    assert "".join(pieces) == REPLACEMENT * 100
    assert pieces[20:40] != [""] * 20


def byte_tokens(tokenizer: Tokenizer, data: bytes) -> list[int]:
    return [token for byte in data if (token := tokenizer.token_id(f"<0x{byte:02X}>")) is not None]


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"\xc3\xa9\xff", ["", "é", "", "\ufffd"]),
        (b"\xc3\xa9\xff\xc3\xa9", ["", "é", "", "", "", "\ufffd\ufffd\ufffd"]),
        (b"\n\xe2\x82\xac\xff", ["\n", "", "", "€", "", "\ufffd"]),
        (b"\xe2\x82\xac\xe2\x82", ["", "", "€", "", "", "\ufffd\ufffd"]),
        (b"\xe2\x82\xac\xe2\x82\xac", ["", "", "€", "", "", "€", ""]),
    ],
)
def test_a_byte_that_spoils_its_run_shows_nothing_twice(
    tokenizers: dict[str, Tokenizer], data: bytes, pieces: list[str]
) -> None:
    """With byte fallback one byte that is no UTF-8 makes U+FFFD of every byte of its run."""
    tokenizer = tokenizers["byte_fallback_bpe"]
    ids = byte_tokens(tokenizer, data)
    assert stream(tokenizer, ids) == pieces
    letter = tokenizer.token_id("a")
    assert letter is not None
    assert "".join(stream(tokenizer, [*ids, letter])) == "".join(pieces) + "a"


@given(data=st.lists(st.binary(max_size=3) | st.sampled_from(["é", "€", "😀", "a"]).map(str.encode)).map(b"".join))
def test_each_byte_of_a_run_is_shown_once(tokenizers: dict[str, Tokenizer], data: bytes) -> None:
    tokenizer = tokenizers["byte_fallback_bpe"]
    data = data.replace(b" ", b"_").replace(b"\xef", b"\xee")  # a first space is stripped; no U+FFFD of its own
    text = "".join(stream(tokenizer, byte_tokens(tokenizer, data)))
    assert sum(1 if character == REPLACEMENT else len(character.encode()) for character in text) == len(data)


class Utf8:
    """A decoder whose token i is the i-th piece of bytes."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return b"".join(self._pieces[token] for token in ids).decode("utf-8", "replace")


@pytest.mark.parametrize("character", ["ν", "日", "😀"])
@pytest.mark.parametrize("middle", [b"", b"sk"])
def test_tokens_that_all_end_inside_a_character_join_to_the_whole(character: str, middle: bytes) -> None:
    """As merges over the borders of characters make them."""
    encoded = character.encode()
    for border in range(1, len(encoded)):
        decoder = Utf8(encoded[:border], encoded[border:] + middle + encoded[:border])
        ids = [0, *[1] * 100]
        detokenizer = Detokenizer(decoder)
        pieces = [*[detokenizer.add(token) for token in ids], detokenizer.finish()]
        assert "".join(pieces) == decoder.decode(ids)
        assert not any(REPLACEMENT in piece for piece in pieces[:-1])
        assert pieces[20:40] != [""] * 20, "they are not held for ever"


def test_special_tokens_have_no_text_and_keep_the_space_after_them(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["metaspace_unigram"]
    hello, world = tokenizer.encode("hello"), tokenizer.encode("world")
    end = tokenizer.token_id("</s>")
    assert end is not None
    ids = [*hello, end, end, *world]
    assert tokenizer.decode(ids) == "hello world"
    assert "".join(stream(tokenizer, ids)) == "hello world"


def test_thousands_of_special_tokens_stay_cheap(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level_bpe"]
    widest = 0

    class Watched:
        def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
            nonlocal widest
            widest = max(widest, len(ids))
            return tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    detokenizer = Detokenizer(Watched())
    for _ in range(1000):
        assert detokenizer.add(1) == ""
    assert widest < 64


def test_a_continuation_keeps_its_leading_space_and_a_new_text_does_not(
    tokenizers: dict[str, Tokenizer],
) -> None:
    tokenizer = tokenizers["byte_fallback_bpe"]
    the = tokenizer.encode("the", add_special_tokens=False)
    assert "".join(stream(tokenizer, the, context=the)) == " the"
    assert "".join(stream(tokenizer, the)) == "the"
