"""compiler/recipe/names_elsewhere.py: names of other tools lead to schemes and algorithms that are there."""

import re
from pathlib import Path

import pytest

from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.recipe.names_elsewhere import SCHEMES_ELSEWHERE, WORDS_ELSEWHERE, algorithm_in, scheme_elsewhere
from pyc.compiler.recipe.types import ISAS
from pyc.compiler.schemes import ALIASES, SCHEMES
from pyc.runtime.errors import RecipeError

PAGE = Path(__file__).parents[3] / "docs" / "which-scheme.md"


def told(scheme: str) -> str:
    with pytest.raises(RecipeError) as caught:
        recipe_from({"model": "checkpoint", "quantize": {"scheme": scheme}})
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("Q4_K_M", "lut4-g32"), ("q8_0", "int8-g32"), ("IQ2_S", "lut2-g32"), ("TQ2_0", "ternary"),
        ("int4_asym", "int4-g32-asym"), ("int4_asym_g64", "int4-g64-asym"), ("int4-sym-g128", "int4-g128"),
        ("4-bit", "int4-g32"), ("q4f16_0", "int4-g32"), ("q3f16_1", "lut3-g32"), ("int4wo", "int4-g32"),
        ("bnb8", "int8"), ("int8_asym", "int8"), ("NF4", "lut4-g32"), ("mxfp8", "fp8"), ("float16", "f16"),
    ],
)  # fmt: skip
def test_a_scheme_of_other_tools_leads_to_ours(name: str, scheme: str) -> None:
    assert re.search(rf"; this is a name of (llama\.cpp's|other tools'), take '{scheme}'", told(name))


@pytest.mark.parametrize(
    ("name", "algorithm", "scheme"),
    [
        ("awq", "awq", "int4-g32"), ("int4_awq", "awq", "int4-g32"), ("int4-gptq", "gptq", "int4-g32"),
        ("int8_sq", "smoothquant", "int8"), ("GPTQ", "gptq", "int4-g32"), ("w8a8-gptq", "gptq", "int8"),
    ],
)  # fmt: skip
def test_an_algorithm_in_place_of_a_scheme_is_told_as_one(name: str, algorithm: str, scheme: str) -> None:
    assert f"write `algorithm: {algorithm}` beside a scheme such as '{scheme}'" in told(name)


@pytest.mark.parametrize(("name", "ours"), [("q8_0", "int8"), ("fp16", "f16"), ("e4m3", "fp8")])
def test_a_type_of_other_tools_caches_leads_to_ours(name: str, ours: str) -> None:
    with pytest.raises(RecipeError, match=f"take '{ours}'$"):
        recipe_from({"model": "checkpoint", "quantize": {"kv_cache": name}})


@pytest.mark.parametrize(
    ("key", "word", "ours"),
    [
        ("arch", "amd64", "x86_64"), ("arch", "arm64", "aarch64"), ("arch", "x86-64", "x86_64"),
        ("isa", "AVX2", "x86-64-v3"), ("isa", "neon", "armv8"), ("isa", "amx", "amx-bf16"),
        ("isa", "sve", "armv8-dotprod"),
    ],
)  # fmt: skip
def test_an_architecture_of_other_tools_leads_to_ours(key: str, word: str, ours: str) -> None:
    with pytest.raises(RecipeError, match=f"; did you mean '{ours}'"):
        recipe_from({"model": "checkpoint", "targets": [{"backend": "cpu", key: [word] if key == "isa" else word}]})


def test_a_word_elsewhere_leads_to_a_name_that_is_there() -> None:
    known = {"cuda", "rtn", *ISAS, *(isa for row in ISAS.values() for isa in row)}
    assert set(WORDS_ELSEWHERE.values()) <= known


def test_rounding_to_nearest_is_called_rtn() -> None:
    with pytest.raises(RecipeError, match="did you mean 'rtn'"):
        recipe_from({"model": "checkpoint", "quantize": {"scheme": "int8", "algorithm": "nearest"}})


def test_what_names_lead_to_is_there() -> None:
    assert set(SCHEMES_ELSEWHERE) <= set(SCHEMES)
    assert not [name for name in [*SCHEMES, *ALIASES] if algorithm_in(name)]


def test_each_name_of_the_page_is_known_or_ours() -> None:
    section = PAGE.read_text().split("From Olive, ModelOpt", 1)[1].split("Of these names", 1)[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| ") and "`" in row]
    names = [name for row in rows for name in re.findall("`([^`]+)`", row)]
    assert len(names) > 20
    for name in names:
        known = name.lower() in {*SCHEMES, *map(str.lower, ALIASES)} or scheme_elsewhere(name) or algorithm_in(name)
        assert known or name == "int4", name
