"""How long a text an encoder reads, and its vectors, against sentence-transformers."""

import json

import numpy as np
import pytest

from pyc.models.catalog import load_model

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
    assert load_model(str(path), base_dir=path).info.context == sentence_transformer(path).max_seq_length


@pytest.mark.parametrize("given", [8, 40])
def test_max_seq_length_counts_before_the_tokenizer(given, tiny_copy):
    path = tiny_copy("bert", pooling="mean")
    set_lengths(path, {"model_max_length": 16})
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": given}))
    assert load_model(str(path), base_dir=path).info.context == sentence_transformer(path).max_seq_length == given


def test_a_plain_encoder_is_as_long_as_its_tokenizer_says(tiny_copy):
    path = tiny_copy("bert")
    set_lengths(path, {"model_max_length": 16})
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    assert load_model(str(path), base_dir=path).info.context == sentence_transformer(path).max_seq_length == 16


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
