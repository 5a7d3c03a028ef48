"""Which ids are added to a text, against AutoTokenizer of transformers."""

import json
from pathlib import Path

import pytest
from small_tokenizers import KINDS

from pyc.models.tokenizer_checks import BERT_CLASSES
from pyc.runtime.text.tokenizer import Tokenizer

ENDS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
FLAGS = {"true": True, "false": False, "absent": None}


@pytest.mark.parametrize("eos", FLAGS)
@pytest.mark.parametrize("bos", FLAGS)
@pytest.mark.parametrize("kind", ["byte_level_bpe", "byte_fallback_bpe", "word_piece"])
def test_flags_add_what_transformers_adds(kind: str, bos: str, eos: str, tmp_path: Path) -> None:
    """byte_level_bpe has no post-processor; the others add a begin token, and both ends."""
    import transformers

    document = KINDS[kind]().to_str().encode()
    flags = {"add_bos_token": FLAGS[bos], "add_eos_token": FLAGS[eos]}
    config = ENDS | {name: value for name, value in flags.items() if value is not None}
    (tmp_path / "tokenizer.json").write_bytes(document)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    ours = Tokenizer(document, json.dumps(config).encode())
    for text in ("", "the", "the quick fox</s>", "<s>hello"):
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        ({"do_lower_case": True}, [1, 3]),
        ({"do_lower_case": False}, [2, 4]),
        ({}, [1, 3]),
        ({"do_lower_case": True, "strip_accents": False}, [1, 4]),
        ({"do_lower_case": False, "strip_accents": True}, [2, 3]),
    ],
)
def test_transformers_follows_do_lower_case(tmp_path: Path, flags: dict[str, bool], ids: list[int]) -> None:
    """Whatever tokenizer.json says, and by its default where there is none: a build warns where the two differ."""
    import tokenizers
    import transformers

    words = {"[UNK]": 0, "a": 1, "A": 2, "e": 3, "é": 4, "[PAD]": 5, "[CLS]": 6, "[SEP]": 7, "[MASK]": 8}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=not flags.get("do_lower_case", True))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **flags}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("A é", add_special_tokens=False)["input_ids"] == ids


OTHER_CLASSES = ("ConvBertTokenizer", "RetriBertTokenizer", "NystromformerTokenizer", "PreTrainedTokenizerFast")


@pytest.mark.parametrize("name", [*sorted(BERT_CLASSES), "BertTokenizerFast", *OTHER_CLASSES])
def test_classes_that_make_their_normalizer_anew(tmp_path: Path, name: str) -> None:
    import tokenizers
    import transformers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<pad>", "<unk>", "<mask>", "a", "A"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, "do_lower_case": False}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    normalizer = json.loads(theirs.backend_tokenizer.to_str())["normalizer"]
    assert normalizer["type"] == "BertNormalizer"
    assert normalizer["lowercase"] == (name in OTHER_CLASSES)
