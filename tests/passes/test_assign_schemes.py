"""passes/assign_schemes.py: which scheme a weight gets, and what is refused."""

import json

import pytest

from pyc.compiler.manager import run_passes
from pyc.compiler.recipe.api import load_recipe, recipe_from
from pyc.compiler.recipe.types import Override, Quantize
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes import assign_schemes as assign_schemes
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.pipeline import pipeline
from pyc.runtime.errors import QuantizeError, RecipeError

LAYER = "model.layers.0"
WIDE = {"tokenizer": False, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}


def schemes(tiny_checkpoint, quantize, model_type="llama", **config):
    path = tiny_checkpoint(model_type, **{**WIDE, **config})
    module = load_model(ModelSource(str(path), path))
    after = AssignSchemes(recipe_from({"model": "m", "quantize": quantize}).quantize).run(module)
    assert after.graph == module.graph
    return {name: weight.scheme.name for name, weight in after.weights.items()}


@pytest.mark.parametrize(
    ("quantize", "dtype", "linear", "embedding"),
    [
        ({}, "float32", "f32", "f32"),
        ({}, "bfloat16", "bf16", "bf16"),
        ({}, "float16", "f16", "f16"),
        ({}, "float64", "f32", "f32"),
        ({"scheme": "int8"}, "bfloat16", "int8", "int8"),
        ({"scheme": "int4-g32"}, "float32", "int4-g32", "int8"),
        ({"scheme": "int4-g32", "embeddings": "int4-g64-asym"}, "float32", "int4-g32", "int4-g64-asym"),
        ({"scheme": "int8", "embeddings": "none"}, "bfloat16", "int8", "bf16"),
        ({"scheme": "f16"}, "bfloat16", "f16", "f16"),
    ],
)
def test_the_scheme_of_each_kind_of_weight(quantize, dtype, linear, embedding, tiny_checkpoint):
    found = schemes(tiny_checkpoint, quantize, dtype=dtype)
    assert found[f"{LAYER}.mlp.down_proj.weight"] == linear
    assert found["model.embed_tokens.weight"] == found["lm_head.weight"] == embedding
    assert found[f"{LAYER}.input_layernorm.weight"] == found["rope.0.inverse_frequencies"] == "f32"


def test_overrides_are_tried_in_order(tiny_checkpoint):
    overrides = [
        {"match": f"{LAYER}.mlp.up_proj", "scheme": "f16"},
        {"match": "re:.*up_proj|.*k_proj", "scheme": "int4-g32"},
        {"match": "lm_head.weight", "scheme": "f32"},
    ]
    found = schemes(tiny_checkpoint, {"scheme": "int8", "overrides": overrides})
    assert found[f"{LAYER}.mlp.up_proj.weight"] == "f16"
    assert found[f"{LAYER}.self_attn.k_proj.weight"] == "int4-g32"
    assert found[f"{LAYER}.self_attn.q_proj.weight"] == "int8"
    assert found["lm_head.weight"] == "f32"
    assert found["model.embed_tokens.weight"] == "int8"


def test_position_tables_of_an_encoder_stay_exact(tiny_checkpoint):
    found = schemes(tiny_checkpoint, {"scheme": "int8"}, "bert")
    assert found["embeddings.word_embeddings.weight"] == "int8"
    assert found["embeddings.position_embeddings.weight"] == "f32"


@pytest.mark.parametrize(
    ("quantize", "error", "words"),
    [
        (
            {"scheme": "int4-g64"},
            QuantizeError,
            ["assign_schemes: model.layers.0.mlp.down_proj.weight", "96", "group_size=64", "choose 32"],
        ),
        (
            {"overrides": [{"match": "re:.*down_proj", "scheme": "int4-g128"}]},
            QuantizeError,
            ["down_proj", "group_size=128", "choose 32"],
        ),
        (
            {"overrides": [{"match": "model.layers.0.mlp.upproj", "scheme": "int8"}]},
            RecipeError,
            ["'model.layers.0.mlp.upproj' matches no weight", "names look like 'lm_head.weight'"],
        ),
        (
            {"overrides": [{"match": "re:.*layernorm", "scheme": "int8"}]},
            RecipeError,
            ["matches no weight"],
        ),
        (
            {"overrides": [{"match": "*.down_proj", "scheme": "int8"}]},
            RecipeError,
            ["'*.down_proj' matches no weight", "; of names that have it, write 're:.*down_proj.*'"],
        ),
    ],
)
def test_what_is_refused(quantize, error, words, tiny_checkpoint):
    with pytest.raises(error) as caught:
        schemes(tiny_checkpoint, quantize)
    for word in words:
        assert word in str(caught.value), str(caught.value)


LINES = """model: {path}
quantize:
  scheme: int8
  overrides:
    - {{match: lm_head, scheme: bf16}}
    - {{match: "re:.*qproj", scheme: bf16}}
"""


@pytest.mark.parametrize(
    ("overrides", "place"),
    [
        ([], "{file}:6:15: quantize.overrides[1].match: 're:.*qproj' matches no weight"),
        (
            ["quantize.overrides.0.match=head"],
            "--set quantize.overrides.0.match=head: quantize.overrides[0].match: 'head' matches no weight",
        ),
        (
            ["quantize.overrides=[{match: head, scheme: int8}]"],
            "--set quantize.overrides=[{{match: head, scheme: int8}}]: quantize.overrides[0].match: 'head' matches no",
        ),
    ],
)
def test_an_override_that_matches_nothing_has_a_line(overrides, place, tiny_checkpoint, tmp_path):
    path = tiny_checkpoint("llama")
    file = tmp_path / "model.yaml"
    file.write_text(LINES.format(path=path))
    recipe = load_recipe(file, overrides)
    with pytest.raises(RecipeError) as caught:
        run_passes(load_model(ModelSource(str(path), path)), pipeline(recipe, ()))
    assert str(caught.value).startswith(place.format(file=file)), str(caught.value)


def test_an_algorithm_that_has_nothing_to_do_has_a_line(tiny_checkpoint, tmp_path):
    path = tiny_checkpoint("llama")
    file = tmp_path / "model.yaml"
    override = {"match": "model.embed_tokens", "scheme": "int8", "algorithm": "gptq"}
    file.write_text(f"model: {path}\nquantize:\n  overrides:\n    - {json.dumps(override)}\n")
    with pytest.raises(RecipeError) as caught:
        run_passes(load_model(ModelSource(str(path), path)), pipeline(load_recipe(file), ()))
    wanted = f"{file}:4:17: quantize.overrides[0]: algorithm gptq for model.embed_tokens.weight: it is looked up"
    assert str(caught.value).startswith(wanted), str(caught.value)


def test_too_many_patterns_for_the_matrices(tiny_checkpoint, monkeypatch):
    path = tiny_checkpoint("llama")
    monkeypatch.setattr(assign_schemes, "MAX_MATCHES", 20)
    overrides = tuple(Override(match=f"re:.*{name}", scheme="f16") for name in ("q_proj", "k_proj"))
    with pytest.raises(RecipeError, match=r"2 regular expressions for \d+ matrices .* at most 20"):
        AssignSchemes(Quantize(overrides=overrides)).run(load_model(ModelSource(str(path), path)))
