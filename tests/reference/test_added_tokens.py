"""Tokens that only the files beside tokenizer.json have, against AutoTokenizer of transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyc.compiler.files.source_files import SourceFiles
from pyc.models.catalog import load_model
from pyc.models.files import Directory
from pyc.models.model_source import ModelSource
from pyc.models.tokenizer_files import read_tokenizer_files
from pyc.runtime.errors import IngestError

PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
SPECIAL = PLAIN | {"special": True}
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
TEXTS = ("a <x> b", "<x>b<im>a</s>", "<im> ab <far><new>", "a[PAD]")


def decoder(**tokens: dict[str, Any]) -> dict[str, Any]:
    return {"added_tokens_decoder": {name.removeprefix("id"): token for name, token in tokens.items()}}


CASES: dict[str, tuple[dict[str, Any], dict[str, int] | None]] = {
    "nothing beside": ({}, None),
    "the same": (decoder(id4=SPECIAL | {"content": "<s>"}, id8=PLAIN | {"content": "<x>"}), None),
    "one more": (decoder(id4=SPECIAL | {"content": "<s>"}, id9=SPECIAL | {"content": "<im>"}), None),
    "two more, in no order": (decoder(id10={"content": "<far>"}, id9=SPECIAL | {"content": "<im>"}), None),
    "a word of the vocabulary": (decoder(id6=PLAIN | {"content": "ab"}), None),
    "a word and one more": (decoder(id6=SPECIAL | {"content": "ab"}, id9=PLAIN | {"content": "<im>"}), None),
    "other flags": (decoder(id8=SPECIAL | {"content": "<x>", "lstrip": True, "rstrip": True}), None),
    "flags by default": (decoder(id8={"content": "<x>"}), None),
    "a file of ids": ({}, {"<im>": 9, "<far>": 10}),
    "a file of ids that are known": ({}, {"<x>": 8, "<s>": 4}),
    "a file beside a list": (decoder(id9=SPECIAL | {"content": "<im>"}), {"<far>": 10}),
    "a named word": ({"eos_token": "</s>"}, None),
    "a named word with flags": ({"eos_token": {"__type": "AddedToken", **PLAIN, "content": "</s>"}}, None),
    "named words": ({"eos_token": "</s>", "additional_special_tokens": ["ab"]}, None),
    "extra words": ({"extra_special_tokens": ["ab", "c"]}, None),
    "an ordinary token that is named": ({"eos_token": "<x>"}, None),
    "an ordinary token that is named in a list": (
        decoder(id9=PLAIN | {"content": "<im>"}) | {"bos_token": "<im>"},
        None,
    ),
    "an ordinary token that is an additional one": ({"additional_special_tokens": ["<x>"]}, None),
    "an ordinary token of the model's own": ({"image_token": "<x>"}, None),
    "a file of ids, one of them named": ({"eos_token": "<im>"}, {"<im>": 9, "<far>": 10}),
    "a file of ids, one of them additional": ({"additional_special_tokens": ["<far>"]}, {"<im>": 9, "<far>": 10}),
    "a file of ids, one of them extra": ({"extra_special_tokens": ["<im>"]}, {"<im>": 9, "<far>": 10}),
    "a file of ids, one of the model's own": ({"image_token": "<im>"}, {"<im>": 9, "<far>": 10}),
    "an empty list and a named word": ({"added_tokens_decoder": {}, "pad_token": "</s>"}, {"<im>": 9}),
}

STRIPS = {"lstrip": True, "rstrip": True, "normalized": False, "single_word": False}
TYPED = STRIPS | {"__type": "AddedToken"}
WORD: dict[str, Any] = {"content": "ab"}
MAPS: dict[str, tuple[dict[str, Any], dict[str, int] | None, dict[str, Any]]] = {
    "additional words": ({}, None, {"additional_special_tokens": ["ab", "</s>"]}),
    "extra words": ({}, None, {"extra_special_tokens": ["ab", WORD | STRIPS]}),
    "both lists": ({}, None, {"additional_special_tokens": ["ab"], "extra_special_tokens": ["</s>"]}),
    "both lists in the configuration": (
        {"additional_special_tokens": ["ab"], "extra_special_tokens": ["</s>"]},
        None,
        {},
    ),
    "an empty list before the other": ({"additional_special_tokens": ["ab"], "extra_special_tokens": []}, None, {}),
    "words of each file": ({"additional_special_tokens": ["ab"]}, None, {"additional_special_tokens": ["</s>"]}),
    "extra words of each file": ({"extra_special_tokens": ["ab"]}, None, {"extra_special_tokens": ["</s>"]}),
    "additional words, and a file of ids": ({}, {"<im>": 9}, {"additional_special_tokens": ["<im>", "ab"]}),
    "extra words, and a file of ids": ({}, {"<im>": 9}, {"extra_special_tokens": ["<im>", "ab"]}),
    "a list that does not count": (decoder(id8={"content": "<x>"}), None, {"additional_special_tokens": ["ab"]}),
    "names in place of a list": ({"extra_special_tokens": ["ab"]}, None, {"extra_special_tokens": {"x_token": "</s>"}}),
    "a name with flags": ({"eos_token": WORD | TYPED}, None, {}),
    "a name with flags by default": ({"eos_token": WORD | {"__type": "AddedToken", "lstrip": True}}, None, {}),
    "a name with flags in the map": ({}, None, {"eos_token": WORD | STRIPS}),
    "a name of the model's own with flags": ({}, None, {"image_token": WORD | STRIPS}),
    "an entry with flags": ({"extra_special_tokens": [WORD | TYPED | {"special": True}]}, None, {}),
    "a name, and an entry with flags": (
        {"eos_token": "ab", "extra_special_tokens": [WORD | TYPED | {"special": True}]},
        None,
        {},
    ),
    "names of the model's own": ({"model_specific_special_tokens": {"image_token": "ab"}}, None, {}),
    "names that do not count": (
        {"x_token": "</s>", "model_specific_special_tokens": {"image_token": "ab"}},
        None,
        {},
    ),
    "a name of its own in each file": ({"x_token": "</s>"}, None, {"x_token": "ab"}),
}
"""What special_tokens_map.json has is the third."""


def write(folder: Path, config: dict[str, Any], listed: dict[str, int] | None, model: str) -> None:
    from tokenizers import AddedToken, Tokenizer, models, normalizers

    words = ("<unk>", "a", "b", "c", "<s>", "</s>", "ab", "▁")
    if "BPE" in model:
        backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [("a", "b")], unk_token="<unk>"))
    else:
        backend = Tokenizer(models.Unigram([(word, -1.1 - 0.1 * i) for i, word in enumerate(words)], 0, False))
    if model == "BPE, prepended":  # as Llama 2, with which a token that is normalized is never found
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        backend.normalizer = normalizers.Sequence(steps)
    backend.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    backend.add_tokens([AddedToken("<x>", normalized=False)])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(FAST | config))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    if listed is not None:
        (folder / "added_tokens.json").write_text(json.dumps(listed))


def read(folder: Path, rows: int = 16) -> bytes:
    with SourceFiles() as files:
        return dict(read_tokenizer_files(Directory(folder, "checkpoint", files), rows))["tokenizer.json"]


@pytest.mark.parametrize("model", ["BPE", "BPE, prepended", "Unigram"])
@pytest.mark.parametrize("case", [*CASES, *MAPS])
def test_tokens_are_those_of_transformers(case: str, model: str, tmp_path: Path) -> None:
    import transformers
    from tokenizers import Tokenizer

    config, listed, *special_map = {**CASES, **MAPS}[case]
    write(tmp_path, config, listed, model)
    if special_map:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(special_map[0]))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_str(read(tmp_path).decode())
    assert tokens(ours) == tokens(theirs.backend_tokenizer)
    for text in (*TEXTS, " a ab </s> c", "ab ab<s>abx </s>ab"):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False).ids == ids
        assert ours.decode(ids) == theirs.backend_tokenizer.decode(ids)


def tokens(backend: Any) -> dict[int, str]:
    return {number: repr(token) for number, token in backend.get_added_tokens_decoder().items()}


LISTS = decoder(id4=SPECIAL | {"content": "<s>"}, id8=PLAIN | {"content": "<x>"}, id9={"content": "<far>"})


@pytest.mark.parametrize(
    ("config", "listed"), [({"eos_token": "<im>"}, {"<im>": 9, "<far>": 10}), (LISTS, None)], ids=["file", "list"]
)
def test_tokens_of_llama_2_are_found_wherever_they_are(
    config: dict[str, Any], listed: dict[str, int] | None, tmp_path: Path
) -> None:
    """As transformers finds them, whose LlamaTokenizer has no normalizer; words around them it splits otherwise."""
    import transformers
    from tokenizers import Tokenizer

    write(tmp_path, {"tokenizer_class": "LlamaTokenizer", **config}, listed, "BPE, prepended")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_str(read(tmp_path).decode())
    for text in ("<far>a<im>", "a\n<far>b <far><far>", "<im><far>"):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        found = ours.encode(text, add_special_tokens=False).ids
        assert [token for token in found if token > 8] == [token for token in ids if token > 8] != []


def test_nothing_is_written_again_without_need(tmp_path: Path) -> None:
    write(tmp_path, *CASES["the same"], "BPE")
    assert read(tmp_path) == (tmp_path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("config", "listed", "message"),
    [
        (decoder(id12={"content": "<far>"}), None, r"_config.json: token '<far>' has id 12, and would get id 9 "),
        (decoder(id3={"content": "ab"}), None, "token 'ab' has id 3, and would get id 6"),
        (decoder(id9={"content": "<x>"}), None, "token '<x>' has id 9, and would get id 8"),
        ({}, {"<far>": 11}, "added_tokens.json: token '<far>' has id 11, and would get id 9"),
        ({}, {"<far>": "9"}, r"added_tokens.json: Expected `int`, got `str`"),
        ({"added_tokens_decoder": [5]}, None, "Expected `object"),
        ({"added_tokens_decoder": {"9": "<im>"}}, None, "Expected `object"),
        ({"added_tokens_decoder": {"nine": {"content": "<im>"}}}, None, "'nine' is no token id"),
    ],
)  # fmt: skip
def test_lists_that_do_not_fit_are_refused(
    config: dict[str, Any], listed: dict[str, int] | None, message: str, tmp_path: Path
) -> None:
    """transformers gives such a token an id that its model was not trained with."""
    write(tmp_path, config, listed, "BPE")
    with pytest.raises(IngestError, match=message):
        read(tmp_path)


@pytest.mark.parametrize("case", ["two more, in no order", "a file of ids"])
def test_tokens_beyond_the_embedding_are_left_out(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tokenizers import Tokenizer

    write(tmp_path, *CASES[case], "BPE")
    assert sorted(Tokenizer.from_str(read(tmp_path, 10).decode()).get_added_tokens_decoder()) == [4, 8, 9]
    assert "checkpoint: left out '<far>', of ids from 10, as the embedding has 10 rows" in caplog.text
    assert read(tmp_path, 9) == (tmp_path / "tokenizer.json").read_bytes()


def test_a_build_takes_them(tiny_copy: Callable[..., Path]) -> None:
    path = tiny_copy("llama")
    document = json.loads((path / "tokenizer.json").read_text())
    removed = document["added_tokens"].pop()
    config = json.loads((path / "tokenizer_config.json").read_text())
    token = {name: value for name, value in removed.items() if name != "id"}
    config["added_tokens_decoder"] = {str(removed["id"]): token}
    (path / "tokenizer.json").write_text(json.dumps(document))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    module = load_model(ModelSource(str(path), path.parent))
    assert removed in json.loads(dict(module.files)["tokenizer.json"])["added_tokens"]
    assert "tokenizer_config.json" in [source.name for source in module.sources]
