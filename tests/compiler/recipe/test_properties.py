"""Properties of recipes: what is written reads back, and nothing but RecipeError comes out of bad input."""

import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyc.compiler.recipe.api import load_recipe, recipe_from, recipe_text
from pyc.compiler.recipe.yaml import parse_yaml
from pyc.compiler.schemes import ALIASES, SCHEMES
from pyc.runtime.errors import RecipeError

PATHS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp")), min_size=1, max_size=40)
SIZES = st.lists(st.integers(1, 1 << 16), min_size=1, max_size=6, unique=True)
RECIPES = st.fixed_dictionaries(
    {"model": PATHS},
    optional={
        "adapters": st.lists(
            st.fixed_dictionaries({"path": PATHS, "weight": st.floats(-100, 100)}),
            max_size=3,
            unique_by=lambda adapter: str(adapter["path"]),
        ),
        "quantize": st.fixed_dictionaries(
            {},
            optional={
                "scheme": st.sampled_from([*SCHEMES, *ALIASES]),
                "embeddings": st.sampled_from(["auto", *SCHEMES]),
                "kv_cache": st.sampled_from(["f16", "f32", "int8"]),
                "overrides": st.lists(
                    st.fixed_dictionaries(
                        {"match": PATHS.filter(lambda name: not name.startswith("re:"))},
                        optional={},
                    ).flatmap(lambda d: st.sampled_from([*SCHEMES]).map(lambda scheme: {**d, "scheme": scheme})),
                    max_size=3,
                ),
            },
        ),
        "shapes": st.fixed_dictionaries(
            {}, optional={"context": st.none() | st.integers(1, 1 << 20), "tokens": SIZES, "logits": SIZES}
        ),
        "targets": st.permutations(["x86_64", "aarch64"]).map(lambda names: [{"arch": name} for name in names]),
        "artifact": st.fixed_dictionaries(
            {}, optional={"path": PATHS, "codec": st.sampled_from(["auto", "none", "lz4", "zstd"])}
        ),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(RECIPES)
def test_text_reads_back_as_itself(value: dict[str, object]) -> None:
    recipe = recipe_from(value)
    text = recipe_text(recipe)
    again = recipe_from(msgspec.json.decode(text, type=dict[str, object]))
    assert recipe_text(again) == text
    assert again.quantize == recipe.quantize
    assert again.shapes == recipe.shapes
    assert again.targets == recipe.targets


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=RECIPES)
def test_text_is_a_recipe_file(value: dict[str, object], tmp_path: Path) -> None:
    """Canonical JSON is YAML of the strict kind: written to a file it is the same recipe."""
    text = recipe_text(recipe_from(value))
    path = tmp_path / "model.yaml"
    path.write_text(text, encoding="utf-8")
    assert recipe_text(load_recipe(path)) == text


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.text(st.sampled_from(" \n\t-:[]{}&*!|>'\"%@`#,?a1.~"), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(RecipeError):
        parse_yaml(text, "test")


KEYS = st.sampled_from(
    [
        "model",
        "adapters",
        "path",
        "weight",
        "merge",
        "method",
        "quantize",
        "scheme",
        "overrides",
        "match",
        "embeddings",
        "activations",
        "shapes",
        "context",
        "tokens",
        "batch",
        "logits",
        "targets",
        "arch",
        "isa",
        "artifact",
        "codec",
        "key",
        "other",
    ]
)
WORDS = st.sampled_from(["m", "int8", "W4A16", "auto", "re:a", "re:(", "aarch64", "x86-64", "armv8", "none", "f32", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70_000) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
SECTIONS = ("adapters", "merge", "quantize", "shapes", "targets", "artifact")
DOCUMENTS = st.fixed_dictionaries({"model": WORDS}, optional=dict.fromkeys(SECTIONS, VALUES))
SETTINGS = st.lists(
    st.builds("{}={}".format, st.lists(KEYS | st.sampled_from("012"), max_size=4).map(".".join), WORDS),
    max_size=2,
)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(DOCUMENTS, SETTINGS)
def test_any_value_is_read_or_refused(value: dict[str, object], overrides: list[str]) -> None:
    """No input ends in another error than RecipeError; what is accepted reads back."""
    try:
        recipe = recipe_from(value, overrides)
    except RecipeError:
        return
    assert recipe_text(recipe_from(msgspec.json.decode(recipe_text(recipe), type=dict[str, object])))
