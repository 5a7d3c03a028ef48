"""The published schema: up to date, itself valid, and of one mind with the parser."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from pyc.compiler.recipe.api import load_recipe, recipe_from, recipe_text
from pyc.compiler.recipe.schema import schema_path, schema_text, to_json_schema
from pyc.runtime.errors import RecipeError

ROOT = Path(__file__).parents[3]
VALIDATOR = jsonschema.Draft202012Validator(to_json_schema())

GOOD: list[dict[str, object]] = [
    {"model": "m"},
    {"model": "m", "adapters": []},
    {"model": "m", "adapters": [{"path": "a", "weight": 1}]},
    {"model": "m", "merge": None},
    {"model": "m", "adapters": [{"path": "a"}, {"path": "b"}], "merge": {"method": "ties", "density": 0.5}},
    {"model": "m", "quantize": {"scheme": "W4A16", "embeddings": "auto", "overrides": []}},
    {"model": "m", "quantize": {"overrides": [{"match": "re:.*", "scheme": "int8"}]}},
    {"model": "m", "shapes": {"context": None, "tokens": [1], "batch": [1], "logits": [1]}},
    {"model": "m", "targets": [{}, {"arch": "aarch64", "isa": ["armv8-dotprod"]}]},
    {"model": "m", "artifact": {"path": None, "codec": "lz4", "key": "ci.2"}},
    {"model": "m", "quality": None},
    {"model": "m", "quality": {"text": "t", "max_kl": 0.1, "min_same_top": 1, "context": None, "tokens": 4}},
    {"model": "m", "quality": {"text": "t", "max_ppl": 20, "reference": "none"}},
]
BAD: list[object] = [
    {},
    [],
    {"model": 3},
    {"model": ""},
    {"model": None},
    {"model": "m", "modle": "x"},
    {"model": "m", "adapters": {}},
    {"model": "m", "adapters": None},
    {"model": "m", "adapters": [{}]},
    {"model": "m", "adapters": [{"path": "a", "weight": "1"}]},
    {"model": "m", "adapters": [{"path": "a", "weight": 101}]},
    {"model": "m", "merge": {}},
    {"model": "m", "merge": {"method": "average"}},
    {"model": "m", "merge": {"method": "ties", "density": 0}},
    {"model": "m", "merge": {"method": "dare_ties", "density": 0.5, "seed": -1}},
    {"model": "m", "merge": {"method": "svd", "rank": 0}},
    {"model": "m", "quantize": {"scheme": "int3"}},
    {"model": "m", "quantize": {"scheme": None}},
    {"model": "m", "quantize": {"algorithm": "qwa"}},
    {"model": "m", "quantize": {"embeddings": True}},
    {"model": "m", "quantize": {"activations": "int4"}},
    {"model": "m", "quantize": {"overrides": [{"match": "a"}]}},
    {"model": "m", "shapes": {"context": 0}},
    {"model": "m", "shapes": {"context": "4096"}},
    {"model": "m", "shapes": {"context": True}},
    {"model": "m", "shapes": {"context": 1.5}},
    {"model": "m", "shapes": {"tokens": []}},
    {"model": "m", "shapes": {"tokens": [0]}},
    {"model": "m", "shapes": {"tokens": list(range(1, 18))}},
    {"model": "m", "targets": []},
    {"model": "m", "targets": [{"backend": "metal"}]},
    {"model": "m", "targets": [{"isa": ["mmx"]}]},
    {"model": "m", "artifact": {"key": "../id"}},
    {"model": "m", "artifact": {"codec": "gzip"}},
    {"model": "m", "quality": {"max_kl": 0.1}},
    {"model": "m", "quality": {"text": "t", "max_kl": -0.1}},
    {"model": "m", "quality": {"text": "t", "min_same_top": 98}},
    {"model": "m", "quality": {"text": "t", "max_ppl": True}},
    {"model": "m", "quality": {"text": "t", "max_ppl": 20, "reference": "bf16"}},
    {"model": "m", "quality": {"text": "t", "max_ppl": 20, "context": 3}},
    {"model": "m", "folder": "/tmp"},
    {"model": "m", "name": "x"},
]


def test_published_schema_is_up_to_date() -> None:
    published = schema_path().read_text(encoding="utf-8")
    assert published == schema_text(), "run: python -m pyc.compiler.recipe.schema > compiler/recipe/recipe.schema.json"


def test_schema_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(to_json_schema())


@pytest.mark.parametrize("value", GOOD, ids=json.dumps)
def test_both_accept(value: dict[str, object]) -> None:
    VALIDATOR.validate(value)
    text = recipe_text(recipe_from(value))
    VALIDATOR.validate(json.loads(text))


@pytest.mark.parametrize("value", BAD, ids=lambda value: json.dumps(value)[:60])
def test_both_refuse(value: object, tmp_path: Path) -> None:
    assert not VALIDATOR.is_valid(value)
    path = tmp_path / "model.yaml"
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(RecipeError):
        load_recipe(path)


def test_every_key_is_described() -> None:
    definitions = json.loads(schema_text())["$defs"]
    nameless = [
        f"{name}.{key}"
        for name, definition in definitions.items()
        for key, value in definition["properties"].items()
        if "description" not in value and "$ref" not in json.dumps(value)
    ]
    assert nameless == []


def test_examples_of_the_reference_are_recipes() -> None:
    """Each yaml block of docs/recipe.md that starts with `model:` parses, and passes the schema."""
    text = (ROOT / "docs" / "recipe.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    recipes = [block for block in blocks if block.startswith("model:")]
    assert len(recipes) >= 2
    for block in recipes:
        value = yaml.safe_load(block)
        VALIDATOR.validate(value)
        recipe_from(value)
