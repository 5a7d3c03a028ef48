"""Which ids are added to a text, against AutoTokenizer of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import KINDS

from pyc.compiler.files.source_files import SourceFiles
from pyc.models.catalog import ARCHITECTURES
from pyc.models.tokenizer_classes import BERT_CLASSES, QWEN2_SPLIT, warn_of_class
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


QWEN_CLASSES = (None, "Qwen2Tokenizer", "Qwen2TokenizerFast")


@pytest.mark.parametrize("name", [*QWEN_CLASSES, "PreTrainedTokenizerFast", "TokenizersBackend", "GPT2Tokenizer"])
@pytest.mark.parametrize("model_type", sorted({*ARCHITECTURES} - {"bert"}))
def test_how_a_qwen2_splits_texts(tmp_path: Path, model_type: str, name: str | None, caplog: Any) -> None:
    """A build warns where transformers takes the class that splits otherwise than tokenizer.json."""
    import tokenizers
    import transformers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {} if name is None else {"tokenizer_class": name}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    made = json.loads(theirs.backend_tokenizer.to_str())
    splits = [each.get("pattern", {}).get("Regex") for each in made["pre_tokenizer"].get("pretokenizers", ())]

    def warnings() -> int:
        carried = {each: (tmp_path / each).read_bytes() for each in ("tokenizer.json", "tokenizer_config.json")}
        caplog.clear()
        with SourceFiles() as files:
            warn_of_class(carried, model_type, "here", files)
        return len([text for text in caplog.messages if "Qwen2Tokenizer; the file is followed" in text])

    assert warnings() == (QWEN2_SPLIT in splits) == (type(theirs).__name__ == "Qwen2Tokenizer")
    theirs.save_pretrained(tmp_path)
    assert warnings() == 0, "the remedy"
