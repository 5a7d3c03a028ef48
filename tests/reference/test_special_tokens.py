"""The special tokens that a chat template gets, against AutoTokenizer of transformers."""

import json

import pytest
from small_tokenizers import KINDS

from pyc.runtime.text.tokenizer import Tokenizer

NULLS = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"))
ADDED = {"content": "</s>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
CONFIGS: dict[str, dict[str, object] | None] = {
    "no file": None,
    "empty": {},
    "null": NULLS,
    "named": {"bos_token": "<s>", "eos_token": ADDED | {"__type": "AddedToken"}, "sep_token": "<pad>"},
    "some null": {"bos_token": None, "eos_token": "</s>"},
    "names of its own": {"image_token": "<pad>", "extra_special_tokens": {"video_token": "<unk>"}},
    "list of others": {"eos_token": "<pad>", "additional_special_tokens": ["<unk>"]},
    "tokens of slow tokenizers": {"eos_token": None, "added_tokens_decoder": {}},
}
MAPS: dict[str, dict[str, object] | None] = {
    "no map": None,
    "map": {"bos_token": "<s>", "eos_token": ADDED, "cls_token": "<pad>", "audio_token": "<unk>"},
}
CLASSES = [None, "PreTrainedTokenizerFast", "LlamaTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer"]
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "sep_token_id": 3}


def compare(folder, kind, model_type, tokenizer_class, config, special_map, padding=False):
    import transformers

    tokenizer = KINDS[kind]()
    if padding:
        tokenizer.enable_padding(pad_id=2, pad_token="<pad>")
    if config is not None and tokenizer_class is not None:
        config = config | {"tokenizer_class": tokenizer_class}
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": config,
        "special_tokens_map.json": special_map,
        "config.json": {"model_type": model_type, **IDS},
    }
    given = {name: data for name, data in files.items() if data is not None}
    written = {name: data if isinstance(data, bytes) else json.dumps(data).encode() for name, data in given.items()}
    for name in files:
        (folder / name).unlink(missing_ok=True)
        if name in written:
            (folder / name).write_bytes(written[name])
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer(
        written["tokenizer.json"],
        written.get("tokenizer_config.json"),
        map_json=written.get("special_tokens_map.json"),
        model_json=written["config.json"],
    )
    assert ours.special_tokens == theirs.special_tokens_map, (model_type, tokenizer_class)


@pytest.mark.parametrize("special_map", MAPS)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", ["byte_level_bpe", "byte_fallback_bpe"])
def test_decoders_have_the_tokens_of_transformers(kind, config, special_map, tmp_path):
    """Not those of config.json's ids: a model of Qwen's has bos_token_id and no bos_token."""
    for model_type in ("llama", "mistral", "qwen2", "qwen3", "bitnet"):
        for tokenizer_class in CLASSES:
            compare(tmp_path, kind, model_type, tokenizer_class, CONFIGS[config], MAPS[special_map])


@pytest.mark.parametrize("tokenizer_class", [None, "BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("config", CONFIGS)
def test_encoders_have_the_tokens_of_transformers(config, tokenizer_class, tmp_path):
    for special_map in MAPS.values():
        compare(tmp_path, "word_piece", "bert", tokenizer_class, CONFIGS[config], special_map)


@pytest.mark.parametrize("config", ["empty", "null", "named"])
def test_padding_of_tokenizer_json_names_a_token(config, tmp_path):
    for model_type in ("llama", "qwen2"):
        compare(tmp_path, "byte_level_bpe", model_type, None, CONFIGS[config], None, padding=True)
