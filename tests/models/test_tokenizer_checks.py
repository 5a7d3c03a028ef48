"""A tokenizer that does not work, or does not fit its model, is found while building."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyc.compiler.files.cache import Cache
from pyc.models import tokenizer_checks
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.runtime.errors import IngestError
from pyc.runtime.text.tokenizer import Tokenizer
from pyc.runtime.text.tokenizer_trial import Findings, try_tokenizer

Change = Callable[[dict[str, Any]], None]


def load(path: Path) -> None:
    load_model(ModelSource(str(path), path.parent))


def change(path: Path, name: str, edit: Change) -> None:
    document = json.loads((path / name).read_text())
    edit(document)
    (path / name).write_text(json.dumps(document))


def split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def longer(times: int) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * times}


def far_id(tokenizer: dict[str, Any]) -> None:
    tokenizer["model"]["vocab"]["zebra"] = 9_999


def bos_far_away(tokenizer: dict[str, Any]) -> None:
    tokenizer["post_processor"]["special_tokens"]["<s>"]["ids"] = [9_999]


TOKENIZERS: list[tuple[Change, str]] = [
    (lambda document: document.update(normalizer=longer(1_000_000)), "normalizer: Replace: content has 1000000"),
    (lambda document: document.update(pre_tokenizer=split("(a+)+b")), "pre_tokenizer: the regular expression has a"),
    (lambda document: document.update(model={"type": "BPE", "vocab": {}, "merges": []}), "is empty|cannot be"),
    (lambda document: document.update(model={"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}), "it cannot be used"),
    (lambda document: document.update(decoder=5), "decoder: got int, expected a mapping"),
    (lambda document: document.update(normalizer={"type": "Evil"}), "normalizer: type 'Evil' is not known"),
    (lambda document: document.update(pre_tokenizer=split("[a")), "without its end"),
    (far_id, "'zebra' has id 9999, expected ids below 263, the rows of the embedding"),
    (bos_far_away, "gives token id 9999"),
]


@pytest.mark.slow
def test_a_tokenizer_that_cannot_be_used_is_named(tiny_copy: Callable[..., Path]) -> None:
    path = tiny_copy("llama")
    original = (path / "tokenizer.json").read_text()
    for edit, message in TOKENIZERS:
        (path / "tokenizer.json").write_text(original)
        change(path, "tokenizer.json", edit)
        with pytest.raises(IngestError, match=rf"checkpoint: tokenizer\.json: .*({message})"):
            load(path)
    for text in ("hello", "", "{}", "[]", '{"model": null}'):
        (path / "tokenizer.json").write_text(text)
        with pytest.raises(IngestError, match=r": tokenizer\.json: not a tokenizer: .*; download it again"):
            load(path)


@pytest.mark.slow
def test_special_tokens_must_exist(tiny_copy: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    path = tiny_copy("llama")
    original = (path / "tokenizer_config.json").read_text()
    for name in ("bos_token", "eos_token", "unk_token"):
        for value in ("<|none|>", {"content": "<|none|>", "__type": "AddedToken"}):
            (path / "tokenizer_config.json").write_text(original)
            change(path, "tokenizer_config.json", lambda document, n=name, v=value: document.update({n: v}))
            with pytest.raises(IngestError, match=rf"tokenizer_config\.json: {name} is '<\|none\|>', which tokenizer"):
                load(path)
    (path / "tokenizer_config.json").write_text(original)
    change(path, "tokenizer_config.json", lambda document: document.update(pad_token="<|none|>"))
    load(path)
    assert "pad_token is '<|none|>', which tokenizer.json does not have; nothing is padded here" in caplog.text
    change(path, "tokenizer_config.json", lambda document: document.update(unk_token=5))
    with pytest.raises(IngestError, match=r"tokenizer_config\.json: .*unk_token"):
        load(path)


SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


@pytest.mark.slow
def test_added_tokens_beyond_the_embedding(tiny_copy: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    """A [PAD] behind the vocabulary is left out; the token that texts end with has to have a row."""
    path = tiny_copy("llama")
    extra = [{"id": 263 + i, "content": text, **SPECIAL} for i, text in enumerate(("[PAD]", "<|im_end|>"))]
    change(path, "tokenizer.json", lambda document: document["added_tokens"].extend(extra))
    change(path, "tokenizer_config.json", lambda document: document.update(pad_token="[PAD]"))
    (stored,) = (data for name, data in load_model(ModelSource(str(path), path)).files if name == "tokenizer.json")
    assert "left out '[PAD]', '<|im_end|>', of ids from 263, as the embedding has 263 rows" in caplog.text
    assert Tokenizer(stored).vocab_size == 263
    assert max(Tokenizer(stored).encode("a [PAD]<|im_end|>")) < 263
    change(path, "tokenizer_config.json", lambda document: document.update(eos_token="<|im_end|>"))
    with pytest.raises(IngestError, match=r"'<\|im_end\|>' has id 26., expected ids below 263"):
        load(path)


@pytest.mark.slow
def test_ends_that_disagree_are_a_warning(tiny_copy: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    path = tiny_copy("llama")
    with caplog.at_level(logging.WARNING):
        load(path)
    assert "ends texts" not in caplog.text
    change(path, "tokenizer_config.json", lambda document: document.update(eos_token="<pad>"))
    with caplog.at_level(logging.WARNING):
        load(path)
    assert "tokenizer_config.json ends texts with '<pad>' (id 0), generation_config.json with ids [2]" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("rows", [500, 600])
def test_a_tokenizer_of_far_fewer_tokens_is_a_warning(
    rows: int, tiny_copy: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Some rows more are usual: a size that suits hardware."""
    path = tiny_copy("llama", vocab_size=rows)
    with caplog.at_level(logging.WARNING):
        load(path)
    said = f"tokenizer.json has 263 tokens, and the model rows for {rows}; is it the tokenizer that the model was"
    assert (said in caplog.text) == (rows == 600)


def without_post_processor(document: dict[str, Any]) -> None:
    document["post_processor"] = None


AS_IT_IS: Change = dict.copy  # which changes nothing
FLAGS: list[tuple[Change, dict[str, object], str]] = [
    (AS_IT_IS, {}, ""),
    (AS_IT_IS, {"add_bos_token": True, "add_eos_token": False}, ""),  # Llama 2, Mistral
    (without_post_processor, {"add_bos_token": False, "bos_token": None}, ""),  # Qwen
    (without_post_processor, {"add_bos_token": True, "bos_token": None}, ""),
    (without_post_processor, {"add_bos_token": None, "add_eos_token": 0}, ""),
    (
        without_post_processor,
        {"add_bos_token": True},
        "says add_bos_token: true, and the post_processor of tokenizer.json adds no '<s>'; no text gets it",
    ),
    (
        AS_IT_IS,
        {"add_bos_token": False},
        "says add_bos_token: false, and the post_processor of tokenizer.json adds '<s>'; every text gets it",
    ),
    (AS_IT_IS, {"add_eos_token": True}, "add_eos_token: true, and the post_processor of tokenizer.json adds no '</s>'"),
]


@pytest.mark.parametrize(("edit", "flags", "message"), FLAGS)
def test_flags_that_nothing_follows_are_a_warning(
    edit: Change, flags: dict[str, object], message: str, tiny_copy: Callable[..., Path], caplog: Any
) -> None:
    """What transformers does with each: tests/reference/test_tokenizers.py."""
    path = tiny_copy("llama")
    change(path, "tokenizer.json", edit)
    change(path, "tokenizer_config.json", lambda document: document.update(flags))
    with caplog.at_level(logging.WARNING):
        load(path)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == bool(message), warnings
    assert message in "".join(warnings)


def test_truncation_and_padding_of_the_file_do_no_harm(tiny_copy: Callable[..., Path]) -> None:
    path = tiny_copy("llama")
    limits = {
        "truncation": {"max_length": 5, "stride": 0, "strategy": "LongestFirst", "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
            "pad_token": "<pad>",
        },
    }  # fmt: skip
    change(path, "tokenizer.json", lambda document: document.update(limits))
    (stored,) = (data for name, data in load_model(ModelSource(str(path), path)).files if name == "tokenizer.json")
    assert len(Tokenizer(stored).encode("a b c d e f g h")) > 5


@pytest.mark.slow
def test_a_trial_that_was_passed_is_not_repeated(
    tiny_copy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was not, is; so is one of another tokenizer, or for other special tokens."""
    path, tried = tiny_copy("llama"), []

    def trial(content: bytes, tokens: tuple[str, ...]) -> Findings:
        tried.append(tokens)
        return try_tokenizer(content, tokens)

    def check() -> None:
        load_model(ModelSource(str(path), path), cache=Cache(tmp_path / "cache"))

    monkeypatch.setattr(tokenizer_checks, "try_tokenizer", trial)
    check()
    check()
    assert len(tried) == 1
    change(path, "tokenizer_config.json", lambda document: document.update(unk_token="<pad>"))
    check()
    assert len(tried) == 2
    change(path, "tokenizer.json", lambda document: document["model"].update(vocab={}, merges=[]))
    for _ in range(2):
        with pytest.raises(IngestError):
            check()
    assert len(tried) == 4


BERT_FLAGS = (
    ("do_lower_case", "lowercase"),
    ("strip_accents", "strip_accents"),
    ("tokenize_chinese_chars", "handle_chinese_chars"),
)


def normalized(path: Path, flags: dict[str, bool], **fields: bool | None) -> None:
    """Give a BERT these flags in tokenizer_config.json, and a normalizer with these fields."""
    normalizer = {"type": "BertNormalizer", "clean_text": True, **{name: True for _, name in BERT_FLAGS}, **fields}
    change(path, "tokenizer.json", lambda document: document.update(normalizer=normalizer))

    def replace(document: dict[str, Any]) -> None:
        for name, _ in BERT_FLAGS:
            document.pop(name, None)
        document.update(flags, tokenizer_class="BertTokenizer")

    change(path, "tokenizer_config.json", replace)


def said_of(path: Path, caplog: Any) -> list[str]:
    """What a build warns of the normalizer."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        load(path)
    return [text for text in caplog.messages if "the normalizer of" in text]


@pytest.mark.parametrize(("flag", "field"), BERT_FLAGS)
@pytest.mark.parametrize("value", [True, False])
def test_a_normalizer_that_differs_from_the_flag_is_a_warning(
    flag: str, field: str, value: bool, tiny_copy: Callable[..., Path], caplog: Any
) -> None:
    path = tiny_copy("bert")
    flags = {name: True for name, _ in BERT_FLAGS}
    normalized(path, {**flags, flag: value}, **{field: not value})
    (warning,) = said_of(path, caplog)
    assert f"{flag}: {str(value).lower()}" in warning
    assert f"{field}: {str(not value).lower()}, which is followed" in warning
    normalized(path, {**flags, flag: not value}, **{field: not value})
    assert said_of(path, caplog) == []


@pytest.mark.parametrize(
    ("name", "warnings"),
    [
        *[(name, 1) for name in (None, "MPNetTokenizer", "ElectraTokenizerFast")],
        *[(name, 0) for name in ("ConvBertTokenizer", "RetriBertTokenizer")],
    ],
)
def test_classes_that_follow_tokenizer_json_have_no_warning(
    name: str | None, warnings: int, tiny_copy: Callable[..., Path], caplog: Any
) -> None:
    path = tiny_copy("bert")
    normalized(path, {"do_lower_case": False, "strip_accents": True}, lowercase=True)
    change(path, "tokenizer_config.json", lambda document: document.update(tokenizer_class=name))
    assert len(said_of(path, caplog)) == warnings


@pytest.mark.parametrize(
    ("flags", "fields", "expected"),
    [
        ({}, {"lowercase": False}, ["has no do_lower_case, which is true then"]),
        ({}, {"handle_chinese_chars": False}, ["has no tokenize_chinese_chars, which is true then"]),
        ({}, {"strip_accents": False}, ["has no strip_accents, which is true then"]),
        ({"do_lower_case": False}, {"lowercase": False}, ["has no strip_accents, which is false then"]),
        (
            {"do_lower_case": False, "strip_accents": True},
            {"lowercase": False, "strip_accents": None},
            ["says strip_accents: true"],
        ),
        ({"do_lower_case": False}, {"strip_accents": None}, ["says do_lower_case: false"]),
        ({"do_lower_case": False}, {"lowercase": False, "strip_accents": None}, []),
        ({}, {}, []),
    ],
)
def test_a_flag_that_is_not_there_is_the_default_of_the_class(
    flags: dict[str, bool],
    fields: dict[str, bool | None],
    expected: list[str],
    tiny_copy: Callable[..., Path],
    caplog: Any,
) -> None:
    path = tiny_copy("bert")
    normalized(path, flags, **fields)
    warnings = said_of(path, caplog)
    assert len(warnings) == len(expected)
    assert all(text in warning for text, warning in zip(expected, warnings, strict=True))
    change(path, "tokenizer_config.json", lambda document: document.update(tokenizer_class="PreTrainedTokenizerFast"))
    assert said_of(path, caplog) == [], "the class takes what tokenizer.json has"
