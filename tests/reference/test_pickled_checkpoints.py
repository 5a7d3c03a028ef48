"""What the refusal of a pickled checkpoint advises is run, and builds into the model that was pickled."""

import re

import numpy as np
import pytest
from checkpoint_damage import refusal

TEXTS = ["the cat sat on the mat", "the dog", ""]
_STATEMENT = re.compile(r"\w+(?:\.from_pretrained)?\(path\)\.save_pretrained\(new_path\)")
ENCODERS = {
    "no modules.json": (["AutoModel", "AutoTokenizer"], {}),
    "mean": (["SentenceTransformer"], {"pooling": "mean"}),
    "cls, normalised": (["SentenceTransformer"], {"pooling": "cls", "normalize": True}),
}


def pickled(path):
    """Replace the safetensors of a checkpoint by PyTorch's pickle."""
    import safetensors.torch
    import torch

    torch.save(safetensors.torch.load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    return path


def converted(path, expected, new_path):
    """Run each statement of the advice for `path`; they are of the classes `expected`."""
    import sentence_transformers
    import transformers

    statements = _STATEMENT.findall(refusal(path))
    assert [re.match(r"\w+", statement)[0] for statement in statements] == expected
    names = {"SentenceTransformer": sentence_transformers.SentenceTransformer, "path": str(path), "new_path": new_path}
    for statement in statements:
        eval(statement, {**vars(transformers), **names})
    return new_path


@pytest.mark.slow
@pytest.mark.parametrize("is_tied", [False, True])
def test_a_converted_decoder_is_the_one_that_was_pickled(is_tied, tiny_checkpoint, tiny_copy, built, tmp_path):
    original = built(tiny_checkpoint("llama", tie_word_embeddings=is_tied))
    path = pickled(tiny_copy("llama", tie_word_embeddings=is_tied))
    again = built(converted(path, ["AutoModelForCausalLM", "AutoTokenizer"], tmp_path / "converted"))
    ids = original.tokenizer.encode(TEXTS[0])
    assert np.array_equal(again.tokenizer.encode(TEXTS[0]), ids)
    assert np.array_equal(again.logits(ids), original.logits(ids))


@pytest.mark.slow
@pytest.mark.parametrize("case", ENCODERS)
def test_a_converted_encoder_is_the_one_that_was_pickled(case, tiny_checkpoint, tiny_copy, built, tmp_path):
    classes, options = ENCODERS[case]
    shapes = {"tokens": [64], "batch": [3]}
    vectors = built(tiny_checkpoint("bert", **options), shapes=shapes).embed(TEXTS)
    again = built(converted(pickled(tiny_copy("bert", **options)), classes, tmp_path / "converted"), shapes=shapes)
    assert np.array_equal(again.embed(TEXTS), vectors)
