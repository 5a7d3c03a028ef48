"""Which ids are added to a text, against AutoTokenizer of transformers."""

import json
from pathlib import Path

import pytest
from small_tokenizers import KINDS

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
