"""passes/mixed_precision/scheme_problem.py: goals of models whose matrices adapters replace or untie."""

import json
import os

import numpy as np
import pytest

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.scheme_choice import size_of
from pyc.compiler.stacked_names import names_in_stack
from pyc.passes.comparison.weight_errors import weight_errors
from pyc.passes.driver.build import build, build_context
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.driver.plan import plan
from pyc.passes.mixed_precision import mix_schemes as mixing
from pyc.passes.mixed_precision.scheme_problem import guessed_recipe, problem
from pyc.runtime.artifact.reader import open_artifact

pytestmark = pytest.mark.usefixtures("compiled_once")

TEXT = "the cat sat on the mat; the dog sat on the log\n" * 80
SMALL = {"shapes": {"tokens": [1, 64], "logits": [1]}, "targets": [{"isa": ["x86-64"]}]}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
UNTIED, TIED = ("llama", False), ("llama", True)
FACTORS = {"r": 2, "target_modules": ["q_proj"]}

REPLACED = {
    "head and embedding": (UNTIED, {**FACTORS, "modules_to_save": ["lm_head", "embed_tokens"]}),
    "a product": (UNTIED, {**FACTORS, "modules_to_save": ["down_proj"]}),
    "copies of the base": (UNTIED, {"r": 2, "target_modules": ["embed_tokens", "lm_head"]}),
    "rows of the embedding": (UNTIED, {**FACTORS, "trainable_token_indices": [7, 8]}),
    "DoRA": (UNTIED, {**FACTORS, "use_dora": True, "modules_to_save": ["lm_head"]}),
    "an encoder": (("bert", None), {"r": 2, "target_modules": ["query"], "modules_to_save": ["word_embeddings"]}),
}
OWN_HEAD = {
    "factors of the head": (TIED, {"r": 2, "target_modules": ["lm_head"]}),
    "factors of the embedding": (TIED, {"r": 2, "target_modules": ["embed_tokens"]}),
    "a saved head": (TIED, {**FACTORS, "modules_to_save": ["lm_head"]}),
    "rows of the head": (TIED, {**FACTORS, "trainable_token_indices": {"lm_head": [7, 8]}}),
}
CASES = {**REPLACED, **OWN_HEAD}


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def document(tmp_path, tiny_checkpoint, tiny_adapter):
    """`document(case, merge=None, **quantize)`: the recipe of a model with an adapter, or with two that are merged."""
    text = tmp_path / "text.txt"
    text.write_text(TEXT)

    def make(case, merge=None, **quantize):
        (model_type, is_tied), config = CASES[case]
        options = {} if is_tied is None else {"tie_word_embeddings": is_tied}
        checkpoint = tiny_checkpoint(model_type, dtype="bfloat16", **SIZES, **options)
        adapters = [
            {"path": str(tiny_adapter(checkpoint, seed=seed, **config))} for seed in ((1, 2) if merge else (1,))
        ]
        calibration = {"text": str(text), "window": 32, "tokens": 256}
        found = {"model": str(checkpoint), "adapters": adapters, **SMALL}
        return {**found, **({"merge": merge} if merge else {}), "quantize": {"calibration": calibration, **quantize}}

    return make


def taken(document, files):
    return ingest_recipe(recipe_from(document), files, None, {})


def check_bytes(document):
    """Bytes of groups and of the rest are those of a plan, whatever is chosen, and each matrix's are its tensor's."""
    random = np.random.default_rng(0)
    with SourceFiles() as files:
        found = problem(taken(document, files))
        choices = [tuple(int(random.integers(len(group.candidates))) for group in found.groups) for _ in range(3)]
        for choice in (*choices, found.uniform("bf16", "bf16"), found.uniform("int8", "int8")):
            planned = plan(found.resolved(choice))
            stored = {tensor.name: tensor.stored_bytes for tensor in planned.tensors}
            assert size_of(found.options(), choice) + found.sizes.others == planned.weights_bytes
            for group, index in zip(found.groups, choice, strict=True):
                tensor = next(name for name in stored if names_in_stack(name)[0] == group.names[0])
                gain = 4 * SIZES["hidden_size"]
                assert 0 <= found.sizes.of[group.names][group.candidates[index]] - stored[tensor] <= gain
    return found


@pytest.mark.parametrize("case", CASES)
def test_bytes_are_those_of_a_plan(case, document):
    found = check_bytes(document(case, bits_per_weight=32))
    names = [name for group in found.groups for name in group.names]
    if CASES[case][0] != ("bert", None):
        assert names[0] == EMBEDDING
        assert names[-1] == HEAD
    if case in OWN_HEAD:
        reads = found.read_by_a_token(found.options())
        assert {option.size_bytes for option in reads[0]} == {0}, "the embedding is only looked up now"
        assert all(option.size_bytes for option in reads[-1])


@pytest.mark.parametrize("case", ["copies of the base", "factors of the head", "factors of the embedding"])
def test_bytes_of_merged_adapters_are_those_of_a_plan(case, document):
    check_bytes(document(case, merge={"method": "linear"}, bits_per_weight=32))


@pytest.mark.parametrize("case", CASES)
def test_a_plan_keeps_the_goal(case, document):
    """Few bits for all matrices of a model, whose own head was left as f32 once."""
    given = document(case, bits_per_weight=5)
    with SourceFiles() as files:
        found = problem(taken(given, files))
        guess = guessed_recipe(taken(given, files))
    planned = plan(guess)
    budget = found.budget_bytes() + found.sizes.others
    assert budget * 0.9 < planned.weights_bytes <= budget
    assert not any(
        tensor.scheme == "f32" for tensor in planned.tensors if len(tensor.shape) == 2 and tensor.shape[0] > 64
    )


BUILT = [
    "head and embedding",
    "rows of the head",
    *(pytest.param(case, marks=pytest.mark.slow) for case in ("a product", "an encoder", "factors of the embedding")),
]


@pytest.mark.parametrize("case", BUILT if os.environ.get("PYC_CASES") == "all" else BUILT[:2])
def test_a_build_says_the_bits_of_its_tensors_and_builds_again_from_its_record(case, document, tmp_path, monkeypatch):
    given = document(case, bits_per_weight=6)
    made = build(given, output=tmp_path / "m.pyca")
    with open_artifact(made.path) as artifact, SourceFiles() as files:
        recipe = json.loads(artifact.header.provenance.recipe)
        errors = weight_errors(artifact, recipe_from(given), files, Cache(None))
    weights = sum(error.rows * error.columns for error in errors)
    bits = sum(error.bits * error.rows * error.columns for error in errors) / weights
    assert weights == sum(group.weights for group in made.mixture.groups)
    gains = 8 * 4 * SIZES["hidden_size"] * len(made.mixture.groups) / weights
    assert bits == pytest.approx(made.mixture.bits_per_weight, abs=gains)
    assert 5 < bits <= 6
    assert made.mixture.bits_per_weight <= 6
    assert all(group.size_bytes for group in made.mixture.groups)
    if case in OWN_HEAD:
        assert HEAD in {override["match"] for override in recipe["quantize"]["overrides"]}

    recipe |= {"model": given["model"], "adapters": given["adapters"]}
    recipe["quantize"]["calibration"]["text"] = given["quantize"]["calibration"]["text"]
    monkeypatch.setattr(mixing, "SchemeMeter", None)
    assert build(recipe, output=tmp_path / "again.pyca").path.read_bytes() == made.path.read_bytes()


def test_a_calibrated_distance_chooses_for_a_head_of_its_own(document):
    with build_context(Cache(None), 2) as context:
        given = taken(document("a saved head", max_kl=0.5, algorithm="gptq"), context.files)
        mixture = mixing.mix_schemes(given, context, lambda *what: None)
    assert mixture.groups[-1].names == (HEAD,)
    assert mixture.groups[-1].distance > 0
    assert mixture.measured <= 0.5


@pytest.mark.parametrize("named", ["q", "k", "v", "[qv]", "[qkv]"])
def test_a_stack_of_groups_belongs_to_each_by_its_rows(named, document):
    """Keys and values that take the scheme that the recipe gives to queries join their stack, adapters or none."""
    fixed = {"match": f"re:.*{named}_proj", "scheme": "int8"}
    given = document("a product", bits_per_weight=32, overrides=[fixed])
    with SourceFiles() as files:
        for each in (given, {**given, "adapters": []}):
            found = problem(taken(each, files))
            for choice in (found.uniform("int8", "int8"), found.uniform("bf16", "int8")):
                assert (
                    size_of(found.options(), choice) + found.sizes.others == plan(found.resolved(choice)).weights_bytes
                )
            attention = [group for group in found.groups if group.names[0].endswith(("q_proj.weight", "k_proj.weight"))]
            assert all(8 <= 8 * found.sizes.of[group.names]["int8"] / group.weights < 9 for group in attention)
