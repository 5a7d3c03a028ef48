"""passes/mixed_precision/mix_schemes.py: what is chosen for a budget or a distance, kept and refused."""

import json

import numpy as np
import pytest
from mixed_recipes import EMBEDDING, IS_LONG, SIZES, ingested, mixture_of

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.scheme_choice import size_of
from pyc.passes.driver.build import build
from pyc.passes.driver.plan import plan
from pyc.passes.mixed_precision import mix_schemes as mixing
from pyc.passes.mixed_precision.measure_schemes import SchemeMeter
from pyc.passes.mixed_precision.mix_schemes import problem
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import QuantizeError, RecipeError


def test_a_scheme_that_does_not_divide_is_no_candidate(tiny_checkpoint, document):
    path = tiny_checkpoint("llama", **{**SIZES, "intermediate_size": 96})
    with SourceFiles() as files:
        found = problem(ingested(document(path, bits_per_weight=8), files))
    by_name = {group.names[0].split(".")[-2]: group.candidates for group in found.groups}
    assert "int4-g64" in by_name["q_proj"]
    assert "int4-g128" not in by_name["q_proj"]
    assert not any("g64" in name or "g128" in name for name in by_name["down_proj"])
    assert {"int4-g32", "int4-g32-asym", "int8", "int8-g32", "bf16"} <= set(by_name["down_proj"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "algorithm"), [("llama", "gptq"), ("bert", "rtn"), ("qwen3", "rtn")][: 3 if IS_LONG else 2]
)
def test_a_build_keeps_its_budget_and_builds_again_from_what_it_chose(
    model_type, algorithm, tiny_checkpoint, document, tmp_path, monkeypatch
):
    path = tiny_checkpoint(model_type, **SIZES, **({"tie_word_embeddings": True} if model_type == "qwen3" else {}))
    budget = 90_000
    small = document(path, size_bytes=budget, algorithm=algorithm)
    events = []
    made = build(small, output=tmp_path / "m.pyca", progress=events.append)
    mixture = made.mixture
    assert len({group.scheme for group in mixture.groups}) > 1
    with open_artifact(made.path) as artifact:
        stored = sum(artifact.tensor(tensor.name).nbytes for tensor in artifact.header.tensors)
        recipe = json.loads(artifact.header.provenance.recipe)
    assert stored == mixture.size_bytes == sum(size for _, size in made.scheme_bytes)
    assert budget * 0.9 < stored <= budget
    assert mixture.uniform is None or mixture.measured <= mixture.uniform.measured
    assert [stage for stage in dict.fromkeys(event.stage for event in events) if stage in ("measure", "compare")]
    assert recipe["quantize"]["size_bytes"] == budget

    recipe["model"] = str(path)
    recipe["quantize"]["calibration"]["text"] = small["quantize"]["calibration"]["text"]
    monkeypatch.setattr(mixing, "SchemeMeter", None)
    again = build(recipe, output=tmp_path / "again.pyca")
    assert again.mixture is None
    assert again.path.read_bytes() == made.path.read_bytes()


def test_more_bytes_are_never_worse(tiny_checkpoint, document, tmp_path):
    """And a mix is never worse than the best uniform scheme within its bytes."""
    path, cache = tiny_checkpoint("llama", **SIZES), Cache(tmp_path / "own")
    measured = []
    for bits in (3, 5, 6, 9, 16.5):
        found, _ = mixture_of(document(path, bits_per_weight=bits), cache)
        assert found.bits_per_weight <= bits
        assert found.uniform is None or found.measured <= found.uniform.measured
        if found.measured < 0.3:  # beyond, what is added up is more than a distribution can differ
            assert found.predicted == pytest.approx(found.measured, rel=0.3, abs=1e-9)
        measured.append(found.measured)
    assert measured == sorted(measured, reverse=True)


def test_a_mix_that_is_worse_gives_way_to_a_uniform_scheme(tiny_checkpoint, document, monkeypatch):
    monkeypatch.setattr(mixing, "choose", lambda items, budget: mixing.smallest(items))
    found, _ = mixture_of(document(tiny_checkpoint("llama", **SIZES), bits_per_weight=9))
    assert found.is_uniform
    assert found.measured == found.uniform.measured
    assert {group.scheme for group in found.groups} <= {found.uniform.scheme, found.uniform.embeddings}


def test_an_interrupted_measurement_goes_on(tiny_checkpoint, document, tmp_path, monkeypatch):
    given = document(tiny_checkpoint("llama", **SIZES), bits_per_weight=6)
    wanted, _ = mixture_of(given)
    cache, finish, runs = Cache(tmp_path / "own"), SchemeMeter._finish, []

    def interrupted(self, *arguments):
        runs.append(1)
        if len(runs) == 6:
            raise KeyboardInterrupt
        return finish(self, *arguments)

    monkeypatch.setattr(SchemeMeter, "_finish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mixture_of(given, cache, workers=1)
    assert mixture_of(given, cache, workers=1)[0] == wanted
    count = len(runs)
    assert mixture_of(given, cache)[0] == wanted
    assert len(runs) == count, "everything is in the cache"


def test_the_number_of_workers_does_not_matter(tiny_checkpoint, document):
    given = document(tiny_checkpoint("qwen3", **SIZES), bits_per_weight=6)
    assert mixture_of(given, workers=1)[0] == mixture_of(given, workers=3)[0]


def test_what_the_recipe_fixes_stays(tiny_checkpoint, document):
    fixed = [{"match": "re:.*down_proj", "scheme": "bf16"}]
    given = document(tiny_checkpoint("llama", **SIZES), bits_per_weight=8, overrides=fixed, embeddings="int8")
    found, _ = mixture_of(given)
    schemes = {name: group.scheme for group in found.groups for name in group.names}
    assert {scheme for name, scheme in schemes.items() if "down_proj" in name} == {"bf16"}
    assert schemes[EMBEDDING] == schemes["lm_head.weight"] == "int8"
    overrides = found.recipe.quantize.overrides
    assert overrides[0].match == "re:.*down_proj"
    assert not any("down_proj" in override.match for override in overrides[1:])


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        ({"size_bytes": 1000}, r"^quantize.size_bytes: got 1,000, expected at least [\d,]+, what tensors take"),
        ({"bits_per_weight": 2}, r"^quantize.bits_per_weight: got 2, expected at least 2\.\d+, what the smallest"),
    ],
)
def test_a_goal_that_cannot_be_kept(goal, said, tiny_checkpoint, document, tmp_path):
    given = document(tiny_checkpoint("llama", **SIZES), **goal)
    for run in (lambda: build(given, output=tmp_path / "m.pyca"), lambda: plan(recipe_from(given))):
        with pytest.raises(RecipeError, match=said):
            run()
    assert not (tmp_path / "m.pyca").exists()


def test_the_least_that_is_named_can_be_kept(tiny_checkpoint, document):
    path = tiny_checkpoint("llama", **SIZES)
    with pytest.raises(RecipeError) as refused:
        plan(recipe_from(document(path, size_bytes=1)))
    least = int(str(refused.value).split("at least ")[1].split(", what")[0].replace(",", ""))
    assert plan(recipe_from(document(path, size_bytes=least))).weights_bytes <= least
    with pytest.raises(RecipeError):
        plan(recipe_from(document(path, size_bytes=least - 1)))


def test_a_plan_measures_nothing(tiny_checkpoint, document, monkeypatch):
    monkeypatch.setattr(mixing, "SchemeMeter", None)
    found = plan(recipe_from(document(tiny_checkpoint("llama", **SIZES), size_bytes=90_000)))
    assert found.goal == ("size_bytes", 90_000)
    assert 80_000 < found.weights_bytes <= 90_000


def test_a_model_without_a_tokenizer(tiny_checkpoint, document, tmp_path):
    given = document(tiny_checkpoint("llama", tokenizer=False, **SIZES), bits_per_weight=6)
    with pytest.raises(QuantizeError, match=r"^quantize.bits_per_weight reads a text .* has no tokenizer.json"):
        build(given, output=tmp_path / "m.pyca")


@pytest.mark.parametrize("goal", [{"bits_per_weight": 32}, {"max_kl": 1e-9}])
def test_a_loss_of_nothing(goal, tiny_checkpoint, document):
    """A checkpoint in bf16 as it is, whose gains a build leaves apart from its matrices."""
    found, _ = mixture_of(document(tiny_checkpoint("llama", dtype="bfloat16", **SIZES), **goal))
    assert {group.scheme for group in found.groups} == {"bf16"}
    assert [group.distance for group in found.groups] == [0] * len(found.groups)
    assert found.measured == 0


@pytest.mark.parametrize("algorithm", ["rtn", "imatrix"])
def test_the_fewest_bytes_that_keep_a_distance(algorithm, tiny_checkpoint, document, tmp_path):
    path, cache = tiny_checkpoint("llama", **SIZES), Cache(tmp_path / "own")
    sizes = []
    for limit in (0.3, 0.05, 0.005):
        found, _ = mixture_of(document(path, max_kl=limit, algorithm=algorithm), cache)
        assert limit / 4 < found.measured <= limit
        assert found.uniform.measured <= limit
        assert found.size_bytes <= found.uniform.size_bytes
        sizes.append(found.size_bytes)
    assert sizes == sorted(set(sizes))


def test_a_distance_that_no_scheme_keeps(tiny_checkpoint, document):
    given = document(tiny_checkpoint("llama", **SIZES), max_kl=1e-9)
    with pytest.raises(RecipeError, match=r"^quantize.max_kl: got 1e-09, expected at least [\d.e-]+, what the largest"):
        mixture_of(given)


def test_goals_that_a_model_or_a_machine_has_not(tiny_checkpoint, document):
    for goal in ({"max_kl": 0.1}, {"min_tok_s": 10.0}):
        with pytest.raises(RecipeError, match=r"is an encoder, expected size_bytes or bits_per_weight; take m"):
            mixture_of(document(tiny_checkpoint("bert", **SIZES), **goal))


def test_a_plan_guesses_for_goals_that_are_not_bytes(tiny_checkpoint, document):
    found = plan(recipe_from(document(tiny_checkpoint("llama", **SIZES), max_kl=0.1)))
    assert found.goal == ("max_kl", 0.1)
    assert len(found.scheme_bytes) > 1


@pytest.mark.parametrize("model_type", ["qwen3", "qwen2", "bert"])
def test_bytes_are_those_of_a_plan(model_type, tiny_checkpoint, document):
    """Whatever is chosen; gains of norms are stored beside matrices that they are not folded into."""
    random = np.random.default_rng(0)
    with SourceFiles() as files:
        path = tiny_checkpoint(model_type, dtype="bfloat16", **SIZES)
        found = problem(ingested(document(path, bits_per_weight=32), files))
        choices = [[int(random.integers(len(group.candidates))) for group in found.groups] for _ in range(6)]
        choices.append([group.candidates.index("bf16") for group in found.groups])
        for choice in choices:
            wanted = plan(found.resolved(choice)).weights_bytes
            assert size_of(found.options(), choice) + found.sizes.others == wanted
        assert found.uniform("bf16", "bf16") == tuple(choices[-1])
