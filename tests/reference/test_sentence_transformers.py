"""How long a text an encoder reads, and its vectors, against sentence-transformers."""

import json

import numpy as np
import pytest

from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource

POSITIONS = 64
LENGTHS = {
    "below": {"model_max_length": 16},
    "above": {"model_max_length": 512},
    "no limit": {"model_max_length": 10**30},
    "no limit as a float": {"model_max_length": 1e30},
    "old name": {"max_len": 16},
    "absent": {},
}


def sentence_transformer(path):
    import sentence_transformers

    return sentence_transformers.SentenceTransformer(str(path), device="cpu")


def set_lengths(path, lengths):
    file = path / "tokenizer_config.json"
    table = json.loads(file.read_text())
    table.pop("model_max_length", None)
    file.write_text(json.dumps(table | lengths))


@pytest.mark.parametrize("pooling", [None, "mean"])
@pytest.mark.parametrize("case", LENGTHS)
def test_the_longest_text_is_that_of_sentence_transformers(case, pooling, tiny_copy):
    """With modules.json, and as a plain encoder."""
    path = tiny_copy("bert", pooling=pooling)
    set_lengths(path, LENGTHS[case])
    assert load_model(ModelSource(str(path), path)).info.context == sentence_transformer(path).max_seq_length


@pytest.mark.parametrize("given", [8, 40])
def test_max_seq_length_counts_before_the_tokenizer(given, tiny_copy):
    path = tiny_copy("bert", pooling="mean")
    set_lengths(path, {"model_max_length": 16})
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": given}))
    assert load_model(ModelSource(str(path), path)).info.context == sentence_transformer(path).max_seq_length == given


@pytest.mark.parametrize("first", [None, {}, {"max_seq_length": 24}])
def test_the_first_file_that_says_anything_counts(first, tiny_copy):
    """Earlier versions named the file after the architecture."""
    path = tiny_copy("bert", pooling="mean")
    if first is not None:
        (path / "sentence_bert_config.json").write_text(json.dumps(first))
    (path / "sentence_distilbert_config.json").write_text('{"max_seq_length": 12}')
    (path / "sentence_xlnet_config.json").write_text('{"max_seq_length": 10}')
    expected = 24 if first else 12
    module = load_model(ModelSource(str(path), path))
    assert module.info.context == sentence_transformer(path).max_seq_length == expected


def test_a_plain_encoder_is_as_long_as_its_tokenizer_says(tiny_copy):
    path = tiny_copy("bert")
    set_lengths(path, {"model_max_length": 16})
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    assert load_model(ModelSource(str(path), path)).info.context == sentence_transformer(path).max_seq_length == 16


@pytest.mark.parametrize("length", [3, 4])
def test_a_text_of_few_tokens_is_cut_as_sentence_transformers_cuts_it(length, tiny_copy, built):
    """Room for one and two tokens beside the special ones; an encoder with room for none is refused."""
    path = tiny_copy("bert", pooling="mean")
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    texts = ["the quick brown fox", "the", ""]
    vectors = sentence_transformer(path).encode(texts)
    assert np.abs(built(path, shapes={"tokens": [16], "batch": [3]}).embed(texts) - vectors).max() < 4e-6


def test_an_encoder_that_sentence_transformers_saved_cuts_where_it_cuts(tiny_copy, built, tmp_path):
    model = sentence_transformer(tiny_copy("bert", pooling="mean", normalize=True))
    model.max_seq_length = 16
    model.save(str(tmp_path / "saved"))
    texts = ["the quick brown fox " * 12, "hello"]
    encoder = built(tmp_path / "saved", shapes={"tokens": [16, 64], "batch": [2]})
    assert encoder.embed_max_tokens == 16
    assert np.abs(encoder.embed(texts) - model.encode(texts)).max() < 4e-6


LEFT = {"direction": "Left", "max_length": 8, "strategy": "OnlyFirst", "stride": 2}
LONG = "the quick brown fox jumps over the lazy dog; "
SIDES = {
    "by tokenizer_config.json": ({"tokenizer_config.json": {"truncation_side": "left"}}, "left"),
    "by tokenizer.json": ({"tokenizer.json": {"truncation": LEFT}}, "left"),
    "tokenizer_config.json counts first": (
        {"tokenizer.json": {"truncation": LEFT}, "tokenizer_config.json": {"truncation_side": "right"}},
        "right",
    ),
    "by an argument": ({"sentence_bert_config.json": {"tokenizer_args": {"truncation_side": "left"}}}, "left"),
    "an argument counts first": (
        {
            "tokenizer_config.json": {"truncation_side": "left"},
            "sentence_bert_config.json": {"processor_kwargs": {"truncation_side": "right"}},
        },
        "right",
    ),
    "of two names the old one counts": (
        {
            "sentence_bert_config.json": {
                "tokenizer_args": {"model_max_length": 20},
                "processor_kwargs": {"truncation_side": "left"},
            }
        },
        "right",
    ),
    "with a length": (
        {
            "sentence_bert_config.json": {
                "max_seq_length": 40,
                "processor_kwargs": {"truncation_side": "left", "model_max_length": 20},
            }
        },
        "left",
    ),
}


def change(path, files):
    for name, fields in files.items():
        file = path / name
        table = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(table | fields))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("case", SIDES)
def test_a_text_loses_the_end_that_it_loses_in_sentence_transformers(case, pooling, tiny_copy, built):
    """Special tokens stay at both ends; the first text fits exactly."""
    files, side = SIDES[case]
    path = tiny_copy("bert", pooling=pooling)
    change(path, files)
    model = sentence_transformer(path)
    assert model.tokenizer.truncation_side == side
    texts = ["x" * (model.max_seq_length - 2), "x" * (model.max_seq_length - 1) + "y", LONG * 4, "the", ""]
    encoder = built(path, shapes={"tokens": [64], "batch": [3]})
    assert encoder.embed_max_tokens == model.max_seq_length
    assert encoder.count_cut(texts) == 2
    assert np.abs(encoder.embed(texts) - model.encode(texts)).max() < 4e-6


def test_a_plain_encoder_cuts_the_end_that_its_tokenizer_says(tiny_copy, built):
    """sentence-transformers does not read the arguments without modules.json."""
    path = tiny_copy("bert")
    change(path, {"tokenizer.json": {"truncation": LEFT}})
    (path / "sentence_bert_config.json").write_text('{"tokenizer_args": {"truncation_side": "right"}}')
    texts = [LONG * 4, "hello"]
    encoder = built(path, shapes={"tokens": [64], "batch": [2]})
    assert np.abs(encoder.embed(texts) - sentence_transformer(path).encode(texts)).max() < 4e-6


@pytest.mark.parametrize("side", ["left", "right"])
def test_text_tokens_cuts_where_max_seq_length_cuts(side, tiny_copy, built):
    """A program for longer texts, and texts cut where the checkpoint says."""
    path = tiny_copy("bert", pooling="mean")
    change(path, {"sentence_bert_config.json": {"max_seq_length": 16}})
    change(path, {"tokenizer_config.json": {"truncation_side": side}})
    texts = [LONG, LONG * 4, "hello"]
    encoder = built(path, shapes={"tokens": [64], "batch": [2], "context": 60, "text_tokens": 16})
    assert (encoder.info.context, encoder.embed_max_tokens) == (60, 16)
    assert np.abs(encoder.embed(texts) - sentence_transformer(path).encode(texts)).max() < 4e-6


ARGUMENTS_THAT_CHANGE_NOTHING = {
    "tokenizer_args": {"use_fast": True, "trust_remote_code": True, "padding_side": "right"},
    "config_args": {"trust_remote_code": True, "hidden_act": "gelu"},
    "model_args": {"attn_implementation": "eager", "add_pooling_layer": False},
}


def test_arguments_that_change_nothing(tiny_copy, built):
    path = tiny_copy("bert", pooling="mean")
    change(path, {"sentence_bert_config.json": ARGUMENTS_THAT_CHANGE_NOTHING})
    texts = [LONG, "hello"]
    encoder = built(path, shapes={"tokens": [64], "batch": [2]})
    assert np.abs(encoder.embed(texts) - sentence_transformer(path).encode(texts)).max() < 4e-6


def without_special_tokens(path):
    change(path, {"tokenizer.json": {"post_processor": None}})
    return path


@pytest.mark.parametrize("normalize", [True, False])
def test_the_mean_of_no_tokens_is_that_of_sentence_transformers(normalize, tiny_copy, built):
    """An empty text, of a tokenizer that adds no special tokens; alone there it is an error of torch."""
    path = without_special_tokens(tiny_copy("bert", pooling="mean", normalize=normalize))
    texts = ["", "the quick brown fox", "", "x", " "]
    encoder = built(path, shapes={"tokens": [64], "batch": [2]})
    vectors = encoder.embed(texts)
    assert np.abs(vectors - sentence_transformer(path).encode(texts)).max() < 4e-6
    assert not vectors[[0, 2]].any()
    assert np.array_equal(encoder.embed([""]), vectors[:1])
    assert encoder.embed(["", ""]).shape == (2, 48)
ADAPTED = {"as the base": {}, "another pooling": {"pooling_mode": "cls"}, "a shorter text": {"max_seq_length": 16}}


@pytest.mark.parametrize("case", ADAPTED)
def test_an_adapter_that_sentence_transformers_saved_makes_its_vectors(case, tiny_copy, built, tmp_path):
    """`SentenceTransformer(path)` of the adapter's folder has everything but the base model's weights from there."""
    import peft

    base, changes = tiny_copy("bert", pooling="mean", normalize=True), dict(ADAPTED[case])
    model = sentence_transformer(base)
    model.max_seq_length = changes.pop("max_seq_length", model.max_seq_length)
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    adapter = tmp_path / "adapter"
    model.save_pretrained(str(adapter))
    pooling = adapter / "1_Pooling" / "config.json"
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | changes))
    texts = ["the quick brown fox " * 12, "hello", ""]
    wanted = sentence_transformer(adapter).encode(texts)
    shapes = {"tokens": [16, 64], "batch": [3]}
    vectors = built(base, adapters=[{"path": str(adapter)}], shapes=shapes).embed(texts)
    assert np.abs(vectors - wanted).max() < 4e-6
    assert case == "as the base" or np.abs(built(base, shapes=shapes).embed(texts) - wanted).max() > 0.01
