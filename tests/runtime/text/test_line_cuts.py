"""runtime/text/line_cuts.py: the parts of a text have the ids that they have within the whole."""

import json
import random
from collections.abc import Callable

import pytest
from small_tokenizers import KINDS, SPECIAL, TEXT
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from pyc.runtime.text import line_cuts
from pyc.runtime.text.line_cuts import may_be_cut, parts_of
from pyc.runtime.text.tokenizer import Tokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
EXPRESSIONS = {
    "three_digits": f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}{{1,3}}|{_REST}",
    "one_digit": f"{_CONTRACTIONS}|{_WORDS}|\\p{{N}}|{_REST}",
    "marks": r"[!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "cases": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
    "lines": r".+|\n",
}
WORDS = [
    "the", " quick", "brown", "  ", " ", "\n", "\n\n", "\r\n", "\t", "1234567", "é", "e\u0301", "a\u030a", "😀", "日本",
    "'s", "'LL", "don't", "...", "/", "<|im_end|>", "<s>", "</s>", " <unk>", "\u00a0", "İ", "ß", "_x", "a", "B",
    "\u0301", "\ufeff",
]  # fmt: skip


def split_bpe(expression: str, *, words: bool = False) -> Backend:
    """Byte-level BPE behind an expression, as Llama 3, Qwen and DeepSeek have it, or behind GPT-2's as well."""
    tokenizer = KINDS["byte_level_bpe"]()
    split = pre_tokenizers.Split(Regex(expression), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=words)])
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXT, *("\n".join(WORDS) for _ in range(3))], trainer)
    template = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    return tokenizer


def normalized_bpe() -> Backend:
    """With steps that change characters, and a space that each stretch between added tokens begins with."""
    tokenizer = split_bpe(EXPRESSIONS["one_digit"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.add_tokens([AddedToken("quick", lstrip=False, rstrip=True), AddedToken("\n\n", normalized=False)])
    return tokenizer


def metaspace_bpe() -> Backend:
    tokenizer = KINDS["byte_fallback_bpe"]()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


CUTTABLE: dict[str, Callable[[], Backend]] = {
    "byte_level_bpe": KINDS["byte_level_bpe"],
    "byte_fallback_bpe": KINDS["byte_fallback_bpe"],
    "normalized_bpe": normalized_bpe,
    "metaspace_bpe": metaspace_bpe,
    "grouped_digits": lambda: split_bpe(r"\d{1,3}(?=(?:\d{3})*\b)", words=True),
    **{name: lambda expression=expression: split_bpe(expression) for name, expression in EXPRESSIONS.items()},
}


@pytest.mark.parametrize("name", CUTTABLE)
def test_parts_have_the_ids_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a line or two, with as little context as these expressions look at."""
    monkeypatch.setattr(line_cuts, "CONTEXT_CHARACTERS", 16)
    tokenizer = Tokenizer(CUTTABLE[name]().to_str().encode())
    choose = random.Random(7)
    count = 0
    for _ in range(60):
        text = "".join(choose.choices(WORDS, k=choose.randrange(1, 200)))
        parts = list(tokenizer.encode_parts(text, part_characters=12))
        assert [token for part in parts for token in part] == tokenizer.encode(text), repr(text)
        count += len(parts)
    assert count > 200


def merging_over_lines() -> Backend:
    tokenizer = Backend(models.BPE({"\n": 0, "a": 1, "b": 2, "\na": 3}, [("\n", "a")]))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def token_over_lines() -> Backend:
    tokenizer = KINDS["byte_level_bpe"]()
    tokenizer.add_tokens([AddedToken("</s>\nthe")])
    return tokenizer


def token_that_takes_the_line_end() -> Backend:
    tokenizer = KINDS["byte_level_bpe"]()
    tokenizer.add_tokens([AddedToken("the", lstrip=True)])
    return tokenizer


def replacing_line_ends() -> Backend:
    tokenizer = KINDS["byte_level_bpe"]()
    tokenizer.normalizer = normalizers.Replace("\n", " ")
    return tokenizer


def unknown_letters_in_one() -> Backend:
    model = models.BPE({"\u00e9": 0, "<unk>": 1}, [], unk_token="<unk>", fuse_unk=True)
    return Backend(model)


UNKNOWN: dict[str, Callable[[], Backend]] = {
    "metaspace_unigram": KINDS["metaspace_unigram"],
    "word_piece": KINDS["word_piece"],
    "merging_over_lines": merging_over_lines,
    "unknown_letters_in_one": unknown_letters_in_one,
    "token_over_lines": token_over_lines,
    "token_that_takes_the_line_end": token_that_takes_the_line_end,
    "replacing_line_ends": replacing_line_ends,
    "words_with_space_before": lambda: split_bpe(r"\s*\p{L}+|\s+|[^\s\p{L}]+"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_may_read_over_a_line_end_is_encoded_whole(name: str) -> None:
    tokenizer = Tokenizer(UNKNOWN[name]().to_str().encode())
    assert not may_be_cut(json.dumps(json.loads(tokenizer.backend.to_str())).encode(), tokenizer.backend)
    text = "a\nbab ab\nab\nba b" * 10
    assert list(tokenizer.encode_parts(text, part_characters=5)) == [tokenizer.encode(text)]


def test_a_text_without_places_to_cut_is_one_part() -> None:
    assert list(parts_of("\u00e9\n" * 100 + "1" * 100, 20)) == [(0, 300)]
    assert list(parts_of("", 20)) == []


def test_parts_begin_with_a_letter_that_nothing_combines_with() -> None:
    text = "abc\na\u0301\n1\n\nab\nab\r\nb"
    assert [text[begin:end] for begin, end in parts_of(text, 1)] == ["abc\na\u0301\n1\n\n", "ab\n", "ab\r\nb"]


class PanicException(BaseException):
    """What a panic of the library is in Python."""


@pytest.mark.parametrize("failing", [0, 3])
def test_behind_a_part_that_the_library_fails_on_comes_what_the_whole_has(
    failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has panicked on a text that began within the white space that an added token takes, and not on the whole."""
    tokenizer = Tokenizer(KINDS["byte_level_bpe"]().to_str().encode())
    text = "the quick\nfox the\nquick fox\n" * 4
    encode_part, parts = line_cuts.encode_part, 0

    def failing_part(plain: Backend, text: str, begin: int, end: int) -> list[int]:
        nonlocal parts
        parts += 1
        if parts > failing:
            raise PanicException
        return encode_part(plain, text, begin, end)

    monkeypatch.setattr(line_cuts, "encode_part", failing_part)
    found = list(tokenizer.encode_parts(text, part_characters=10))
    assert [token for part in found for token in part] == tokenizer.encode(text)
    assert parts == failing + 1
