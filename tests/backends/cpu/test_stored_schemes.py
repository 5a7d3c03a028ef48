"""Schemes found out from a header are those that the build chose."""

import json
from pathlib import Path

import msgspec
import pytest

from pyc.backends.stored_weights import main_scheme, scheme_bytes, stored_weights
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from, recipe_text
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.runtime.artifact.format import Generation, Header, Provenance, Span, Tensor

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo" / "checkpoint"
DOWN = {"match": "re:.*down_proj", "scheme": "int8"}
CHOSEN = [  # as a build records what it chose by a goal; 170 columns of f32 would fit the panels of the first
    {"match": "model.layers.0.mlp.down_proj.weight", "scheme": "int8-g32"},
    {"match": "model.layers.1.mlp.down_proj", "scheme": "lut4-g32"},
    *({"match": f"model.layers.0.mlp.{part}_proj.weight", "scheme": "lut3-g32"} for part in ("gate", "up")),
]


def header_of(**recipe):
    """The header's part that matters, and the schemes of the tensors in it."""
    parsed = recipe_from(recipe)
    with SourceFiles() as files:
        lowered = lower_recipe(parsed, files)
    module = lowered.common
    stored = {name: weight.tensor for name, weight in lowered.weights().items()}
    header = Header(
        model=module.info,
        tensors=tuple(Tensor(name, tensor.dtype, tensor.shape, Span(0, 1)) for name, tensor in stored.items()),
        blobs=(),
        programs=(),
        chunks=(),
        generation=Generation(),
        provenance=Provenance(recipe_text(parsed), (), (), lowered.passes()),
    )
    return header, stored


@pytest.mark.slow
@pytest.mark.parametrize(
    "quantize",
    [
        {},
        {"scheme": "f32"},
        {"scheme": "bf16"},
        {"scheme": "int8"},
        {"scheme": "int8-g32"},
        {"scheme": "int4-g32"},
        {"scheme": "int4-g32", "embeddings": "int4-g32"},
        {"scheme": "int4-g128-asym", "embeddings": "none"},
        {"scheme": "int4-g32", "overrides": [DOWN]},
        {"scheme": "none", "overrides": [DOWN]},
        {"scheme": "none", "overrides": CHOSEN},
        {"scheme": "int8", "overrides": [*CHOSEN, DOWN]},
        {"scheme": "W4A16"},
        {"scheme": "fp8"},
        {"scheme": "ternary"},
        {"scheme": "mxfp4", "embeddings": "nvfp4", "overrides": [{**DOWN, "scheme": "ternary"}]},
        {"scheme": "fp8-e5m2", "embeddings": "fp8"},
        {"scheme": "fp8-b128", "embeddings": "fp8-b128"},
        {"scheme": "int4-g32", "embeddings": "fp8-tensor"},
        {"scheme": "int4-g32", "embeddings": "fp8", "overrides": [{**DOWN, "scheme": "fp8"}]},
    ],
    ids=str,
)
def test_the_demo_model(quantize):
    header, stored = header_of(model=str(DEMO), quantize=quantize)
    found = stored_weights(header)
    expected = {name: tensor.scheme.name for name, tensor in stored.items()}
    assert {weight.name: weight.scheme for weight in found} == expected
    assert sum(size for _, _, size in scheme_bytes(found)) == sum(tensor.size_bytes for tensor in stored.values())
    values = sum(tensor.rows * tensor.columns for tensor in stored.values())
    assert sum(weight.values for weight in found) == pytest.approx(values, rel=0.001)
    assert main_scheme(found) in expected.values()


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_a_checkpoint_of_f32(tiny_checkpoint, family):
    header, _ = header_of(model=str(tiny_checkpoint(family)))
    assert {weight.scheme for weight in stored_weights(header)} == {"f32"}


BAD_RECIPES = ("", "{", "[" * 10000, '{"model":1}', json.dumps({"model": "x", "quantize": {"a": 1}}))


@pytest.mark.parametrize("recipe", BAD_RECIPES)
def test_a_recipe_that_is_none_leaves_panels_as_they_are(recipe):
    header, _ = header_of(model=str(DEMO), quantize={"scheme": "int8"})
    provenance = msgspec.structs.replace(header.provenance, recipe=recipe)
    found = stored_weights(msgspec.structs.replace(header, provenance=provenance))
    assert {weight.scheme for weight in found} == {"packed", "f32"}


def test_a_recipe_of_a_later_pyc_tells_as_much_of_schemes():
    quantize = {"scheme": "int4-g32", "overrides": [DOWN, *CHOSEN]}
    header, _ = header_of(model=str(DEMO), quantize=quantize)
    recipe = json.loads(header.provenance.recipe)
    recipe["future"] = {"deep": [1]}
    recipe["quantize"] |= {"future": 1, "algorithm": "of tomorrow", "kv_cache": "f4"}
    for one in recipe["quantize"]["overrides"]:
        one["future"] = None
    assert stored_weights(with_recipe(header, recipe)) == stored_weights(header)
    # A scheme that this pyc does not have is called packed, and its parameters are counted all the same.
    recipe["quantize"] |= {"scheme": "int4-g48"}
    found = stored_weights(with_recipe(header, recipe))
    assert "packed" in {weight.scheme for weight in found}
    assert [weight.values for weight in found] == [weight.values for weight in stored_weights(header)]


def with_recipe(header, recipe):
    return msgspec.structs.replace(
        header, provenance=msgspec.structs.replace(header.provenance, recipe=json.dumps(recipe))
    )


def test_panels_of_any_size():
    header, _ = header_of(model=str(DEMO), quantize={"scheme": "int4-g32", "embeddings": "int8-g32"})
    sizes = (1, 63, 64, 65, 4096, 1 << 40, (1 << 53) - 1)
    tensors = tuple(Tensor(str(size), "u8", (1, size), Span(0, 1)) for size in sizes)
    assert len(stored_weights(msgspec.structs.replace(header, tensors=tensors))) == len(sizes)


def test_more_sizes_than_a_model_has_are_not_looked_into():
    """Each would be tried with each number of columns: hours, for a file that anybody may send."""
    header, _ = header_of(model=str(DEMO), quantize={"scheme": "int4-g32"})
    tensors = tuple(Tensor(str(size), "u8", (size, size), Span(0, 1)) for size in range(1, 20_000))
    found = stored_weights(msgspec.structs.replace(header, tensors=tensors))
    assert {weight.scheme for weight in found} == {"packed"}


def test_an_override_that_looks_like_the_rest():
    """Panels of int8 and of fp8 have one form: names say which a matrix has."""
    header, _ = header_of(model=str(DEMO), quantize={"scheme": "fp8", "overrides": [DOWN]})
    found = {weight.name: weight.scheme for weight in stored_weights(header)}
    assert set(found.values()) == {"fp8", "int8", "f32"}
    int8 = {name.rpartition("layers.")[2] for name, scheme in found.items() if scheme == "int8"}
    assert int8 == {"model.embed_tokens.weight", *(f"{layer}.mlp.down_proj.weight" for layer in range(5))}


@pytest.mark.parametrize("match", ["re:(a|aa)+$", "re:" + "(?=a)" * 9, "re:("])
def test_a_pattern_that_takes_long_or_is_none_is_not_matched(match):
    """Each matrix may have any scheme of the recipe then."""
    header, _ = header_of(model=str(DEMO), quantize={"scheme": "fp8", "overrides": [DOWN]})
    recipe = json.loads(header.provenance.recipe)
    recipe["quantize"]["overrides"] = [{**DOWN, "match": match}] * 40
    provenance = msgspec.structs.replace(header.provenance, recipe=json.dumps(recipe))
    found = stored_weights(msgspec.structs.replace(header, provenance=provenance))
    assert {weight.scheme for weight in found} == {"8-bit", "f32"}
