"""passes/export/checkpoint.py: the dtype of what it writes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pyc.compiler.rewrite import map_functions, rename_weights
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.driver.build import build
from pyc.passes.export.checkpoint import _is_exact, export_checkpoint
from pyc.passes.export.parts import checkpoint_parts
from pyc.passes.export.source import exportable
from pyc.runtime.artifact.format import Pooling
from pyc.runtime.errors import ArtifactError

SMALL = {"shapes": {"tokens": [1, 8], "logits": [1]}, "targets": [{"backend": "onnx"}]}


@pytest.mark.parametrize(
    ("dtype", "scheme", "expected"),
    [
        ("bfloat16", "none", "bfloat16"),
        ("float16", "none", "float16"),
        ("float32", "none", "float32"),
        ("float32", "bf16", "float32"),
        ("float32", "f16", "float32"),
        ("bfloat16", "int8", "float32"),
    ],
)
def test_vectors_lose_nothing(dtype, scheme, expected, tiny_checkpoint, tmp_path, monkeypatch):
    """Where a recipe makes the matrices of an f32 checkpoint bf16, its gains stay what they are."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    path = tiny_checkpoint("llama", dtype=dtype)
    artifact = build(
        {"model": str(path), "quantize": {"scheme": scheme}, **SMALL}, output=tmp_path / "a.pyca"
    ).path
    with exportable(artifact) as source:
        made = export_checkpoint(source, tmp_path / "hf")
    assert json.loads((made / "config.json").read_text())["dtype"] == expected


@pytest.mark.parametrize(
    ("weight", "other", "message"),
    [
        ("model.norm.weight", "", None),
        ("model.layers.0.mlp.down_proj.weight", "model.layers.9.mlp.down_proj.weight", "9.mlp.down_proj.weight of the"),
        ("model.embed_tokens.weight", "made.weight", "made.weight of the program is no tensor of the checkpoint"),
        ("model.embed_tokens.weight", "lm_head.weight", "the program has no weight model.embed_tokens.weight"),
    ],
)
def test_a_weight_that_is_no_tensor_of_the_checkpoint(weight, other, message, tiny_checkpoint, tmp_path, monkeypatch):
    """Ones are written for a gain that was folded, and for nothing else."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    recipe = {"model": str(tiny_checkpoint("llama", tie_word_embeddings=False)), **SMALL}
    with exportable(build(recipe, output=tmp_path / "a.pyca").path) as source:
        graph = map_functions(source.graph, lambda function: _reading(function, weight, other))
        changed = replace(source, graph=graph)
        if message is None:
            assert np.all(checkpoint_parts(changed).rows(weight) == 1)
            return
        with pytest.raises(ArtifactError, match=message):
            checkpoint_parts(changed)


def _reading(function, weight, other):
    return replace(function, operations=tuple(rename_weights(o, {weight: other}) for o in function.operations))


@pytest.mark.parametrize(("pooling", "normalize"), [("cls", False), ("cls", True), ("mean", False), ("mean", True)])
def test_an_encoder_is_pooled_as_before(pooling, normalize, tiny_checkpoint, tmp_path, monkeypatch):
    """sentence-transformers takes the mean of a folder that does not say how."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    path = tiny_checkpoint("bert", pooling=pooling, normalize=normalize)
    recipe = {"model": str(path), "shapes": {"context": 32, "tokens": [32]}, "targets": SMALL["targets"]}
    with exportable(build(recipe, output=tmp_path / "a.pyca").path) as source:
        made = export_checkpoint(source, tmp_path / "hf")
        expected = source.artifact.header.model
    again = build({**recipe, "shapes": {"tokens": [32]}, "model": str(made)}, output=tmp_path / "b.pyca").path
    with exportable(again) as source:
        assert source.artifact.header.model == expected
    assert expected.pooling == Pooling(pooling, normalize)


@pytest.mark.parametrize(
    ("tokenizer", "sentence"),
    [
        ({}, {}),
        ({"truncation_side": "left"}, {}),
        ({"truncation_side": "left"}, {"tokenizer_args": {"truncation_side": "right"}}),
        ({"truncation_side": "right"}, {"tokenizer_args": {"truncation_side": "left"}}),
    ],
)
@pytest.mark.parametrize("shapes", [{}, {"context": 60}, {"context": 60, "text_tokens": 16}])
def test_an_encoder_s_texts_are_cut_as_before(
    shapes, tokenizer, sentence, tiny_checkpoint, tmp_path, monkeypatch
):
    """By sentence-transformers, and by a build of the folder."""
    import sentence_transformers

    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    path = Path(shutil.copytree(tiny_checkpoint("bert", pooling="mean"), tmp_path / "checkpoint"))
    (path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 30, **sentence}))
    config = path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | tokenizer))
    recipe = {"model": str(path), "shapes": {"tokens": [64], **shapes}, "targets": SMALL["targets"]}
    with exportable(build(recipe, output=tmp_path / "a.pyca").path) as source:
        made = export_checkpoint(source, tmp_path / "hf")
    side = sentence.get("tokenizer_args", tokenizer).get("truncation_side", "right")
    length = shapes.get("text_tokens", shapes.get("context", 30))
    read = sentence_transformers.SentenceTransformer(str(made), device="cpu")
    assert (read.max_seq_length, read.tokenizer.truncation_side) == (length, side)
    module = load_model(ModelSource(str(made), made))
    assert (module.info.context, module.truncation) == (length, side == "left")


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.5, "bf16", True),
        (1 + 2**-10, "bf16", False),
        (1 + 2**-10, "f16", True),
        (1e6, "f16", False),
        (1e6, "bf16", False),
    ],
)
def test_whether_a_value_is_kept(value, dtype, expected):
    assert _is_exact(np.array([0, value], np.float32), dtype) is expected
