"""passes/mixed_precision/mix_schemes.py: what is measured, against transformers; what is chosen, kept and refused."""

import json
import os
import platform
import shutil

import ml_dtypes
import numpy as np
import pytest
from built_models import target_of
from safetensors.numpy import load_file, save_file

from pyc.backends.cpu.isa import ISAS
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.manager import run_passes
from pyc.compiler.quantization import dequantize_rows, quantize_rows
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.scheme_choice import Option, path, size_of
from pyc.compiler.schemes import SCHEMES
from pyc.compiler.weights import Stored
from pyc.passes import host_targets
from pyc.passes.assign_schemes import AssignSchemes
from pyc.passes.calibration import calibrate as calibration
from pyc.passes.calibration import rounding
from pyc.passes.calibration.calibration_text import calibration_windows, held_back_windows
from pyc.passes.driver.build import build, build_context
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.driver.plan import plan
from pyc.passes.interpretation.interpret_text import Windows, stored_rows
from pyc.passes.interpretation.predict_text import Predictor
from pyc.passes.mixed_precision import measured_windows
from pyc.passes.mixed_precision import mix_schemes as mixing
from pyc.passes.mixed_precision.measure_schemes import SchemeMeter
from pyc.passes.mixed_precision.measure_speed import SpeedMeter
from pyc.passes.mixed_precision.mix_schemes import Ingested, _within, mix_schemes, problem
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import IngestError, QuantizeError, RecipeError
from pyc.runtime.executors.cpu import features
from pyc.runtime.text.tokenizer import Tokenizer

IS_LONG = os.environ.get("PYC_CASES") == "all"
TEXT = "the cat sat on the mat; the dog sat on the log\n" * 80
SMALL = {"shapes": {"tokens": [1, 64], "logits": [1]}, "targets": [{"isa": ["x86-64"]}]}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def document(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)

    def make(checkpoint, **quantize):
        calibration = {"text": str(text), "window": 32, "tokens": 512}
        return {"model": str(checkpoint), **SMALL, "quantize": {"calibration": calibration, **quantize}}

    return make


def ingested(document, files):
    return ingest_recipe(recipe_from(document), files, None, {})


def mixture_of(document, cache=None, workers=2):
    reports = []
    with build_context(cache or Cache(None), workers) as context:
        found = mix_schemes(ingested(document, context.files), context, lambda *what: reports.append(what))
    return found, reports


def windows(count=4, length=24):
    ids = np.random.default_rng(0).integers(3, 90, (count, length)).astype(np.int32)
    return Windows(ids, "digest")


def meter_of(document, files, given):
    """A meter of the checkpoint's matrices, no gain in them, and what it is to measure of groups under schemes."""
    quantize = {"scheme": "f32", "embeddings": "f32"}
    recipe = recipe_from({**document, "quantize": quantize})
    taken = Ingested(recipe, ingest_recipe(recipe, files, None, {}).module, ())
    module = run_passes(taken.module, (AssignSchemes(recipe.quantize),))

    def distances(groups, schemes):
        stored = {
            names: [{name: Stored(taken.module.weights[name], scheme) for name in names} for scheme in schemes]
            for names in groups
        }
        return meter.distances(stored)

    meter = SchemeMeter(module, module, given, files, Cache(None), 2, lambda runs: None)
    return meter, distances


@pytest.mark.parametrize("goal", [{"bits_per_weight": 6}, {"bits_per_weight": 6, "algorithm": "gptq"}])
def test_gains_are_rounded_with_their_matrices_whatever_a_checkpoint_is_stored_as(goal, tiny_copy, document):
    """The same numbers in bf16 and in f32: a build multiplies a norm's gain into a matrix before it rounds it."""
    path = tiny_copy("llama", dtype="bfloat16", **SIZES)
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("norm.weight"):
            tensor *= 2.0 ** (np.arange(len(tensor)) % 4)
    save_file({name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors.items()}, path / "model.safetensors")
    short, _ = mixture_of(document(path, **goal))
    exact = {name: tensor.astype(ml_dtypes.bfloat16).astype(np.float32) for name, tensor in tensors.items()}
    save_file(exact, path / "model.safetensors")
    long, _ = mixture_of(document(path, **goal))
    assert short.measured == pytest.approx(long.measured, rel=1e-3)
    assert short.recipe.quantize.overrides == long.recipe.quantize.overrides


DOWN, OUT = "model.layers.1.mlp.down_proj.weight", "model.layers.0.self_attn.o_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize("name", [DOWN, OUT, EMBEDDING])
def test_a_distance_is_that_of_transformers(name, tiny_checkpoint, document):
    """KL of next tokens, in float32, with one matrix replaced by what its codes stand for."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path, given = tiny_checkpoint("qwen3", tie_word_embeddings=True, **SIZES), windows()
    schemes = [SCHEMES[each] for each in ("int4-g32", "int8", "int4-g32-asym")]
    with SourceFiles() as files:
        _, distances = meter_of(document(path), files, given)
        measured = [distances([(name,)], [scheme])[name,][0] for scheme in schemes]
        predicted = distances([(name,)], schemes)[name,]
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    matrix, ids = model.eval().get_parameter(name), torch.tensor(given.ids.astype(np.int64))
    exact = matrix.detach().numpy().copy()
    with torch.no_grad():
        wanted = torch.log_softmax(model(ids).logits.double(), -1)
        for position, scheme in enumerate(schemes):
            matrix.copy_(torch.tensor(dequantize_rows(quantize_rows(exact, scheme), scheme)))
            found = torch.log_softmax(model(ids).logits.double(), -1)
            kl = float((wanted.exp() * (wanted - found)).sum(-1).mean())
            assert measured[position] == pytest.approx(kl, rel=2e-3), scheme.name
            assert predicted[position] == pytest.approx(kl, rel=0.35), scheme.name
    assert predicted[0] == measured[0], "the first scheme is measured"


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_distances_of_groups_add_up(model_type, tiny_checkpoint, document):
    path = tiny_checkpoint(model_type, **SIZES)
    with SourceFiles() as files:
        found = problem(ingested(document(path, bits_per_weight=8), files))
        meter, distances = meter_of(document(path), files, windows(8, 32))
        groups = [group.names for group in found.groups]
        for name in ("int4-g64", "int8"):
            scheme = SCHEMES[name]
            alone = distances(groups, [scheme])
            together = distances([sum(groups, ())], [scheme])[sum(groups, ())][0]
            assert sum(distance for (distance,) in alone.values()) == pytest.approx(together, rel=0.25), name
            assert distances([groups[0]], [SCHEMES["f32"]]) == {groups[0]: [0]}
        assert meter.metric == ("KL" if model_type == "llama" else "1 - cosine")


def test_groups_are_the_stacks_of_a_build(tiny_checkpoint, document):
    """And a matrix that the recipe has a scheme for is on its own."""
    path = tiny_checkpoint("qwen2", **SIZES)
    with SourceFiles() as files:
        found = problem(ingested(document(path, bits_per_weight=6), files))
        assert [tuple(name.split(".")[-2] for name in group.names) for group in found.groups] == [
            ("embed_tokens",),
            *[("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",)] * 2,
            ("lm_head",),
        ]
        fixed = {"match": "model.layers.0.self_attn.q_proj", "scheme": "int8"}
        found = problem(ingested(document(path, bits_per_weight=6, overrides=[fixed], embeddings="none"), files))
        kinds = {group.names[0].split(".")[-2]: group for group in found.groups[:3]}
        assert [(group.candidates, group.is_fixed) for name, group in kinds.items() if name != "k_proj"] == [
            (("none",), True),
            (("int8",), True),
        ]
        assert [name.split(".")[-2] for name in kinds["k_proj"].names] == ["k_proj", "v_proj"]


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


def a_line(reads, fixed_s, byte_s, asked):
    def seconds(choice):
        asked.append(choice)
        return fixed_s + byte_s * size_of(reads, choice)

    return seconds


ROWS = [[Option(str(bits), rows * bits, 4.0**-bits) for bits in (2, 4, 8, 16)] for rows in range(100, 140)]


@pytest.mark.parametrize("share", [0.05, 0.4, 0.9])
def test_the_most_bytes_within_a_time(share):
    least, most = (size_of(ROWS, choice) for choice in (path(ROWS)[0], path(ROWS)[-1]))
    limit_s = 1 + 1e-4 * (least + share * (most - least))
    asked = []
    choice, elapsed_s, predicted_s = _within(ROWS, [], limit_s, a_line(ROWS, 1, 1e-4, asked))
    assert limit_s * 0.97 <= elapsed_s <= limit_s
    assert elapsed_s == pytest.approx(1 + 1e-4 * size_of(ROWS, choice))
    assert predicted_s == pytest.approx(elapsed_s)
    assert len(asked) <= 2 + mixing.SPEED_ATTEMPTS


def test_times_at_both_ends():
    largest, smallest = path(ROWS)[-1], path(ROWS)[0]
    assert _within(ROWS, [], 1e9, a_line(ROWS, 1, 1e-4, []))[0] == largest
    choice, elapsed_s, _ = _within(ROWS, [], 0.5, a_line(ROWS, 1, 1e-4, []))
    assert (choice, elapsed_s > 0.5) == (smallest, True)


def test_a_scheme_of_more_bytes_that_is_faster():
    """Where the kernels count and not the bytes."""
    plain = tuple(2 for _ in ROWS)
    times = {path(ROWS)[0]: 3.0, path(ROWS)[-1]: 4.0, plain: 1.0}
    choice, elapsed_s, _ = _within(ROWS, [plain], 2.0, lambda choice: times.get(choice, 5.0))
    assert (choice, elapsed_s) == (plain, 1.0)


def test_a_mix_that_is_fast_enough(tiny_checkpoint, document, monkeypatch):
    """The table that is only looked up costs no time, and is kept as exact as can be."""

    def tokens_per_second(self, recipe):
        bits = {"lut2": 2, "lut3": 3, "int4": 4, "lut4": 4, "lut5": 5, "int8": 8, "bf16": 16}
        schemes = {each.match: bits[each.scheme[:4]] for each in recipe.quantize.overrides}
        del schemes[EMBEDDING]
        return 1e6 / (10 + sum(schemes.values()))

    monkeypatch.setattr(SpeedMeter, "tokens_per_second", tokens_per_second)
    given = document(tiny_checkpoint("llama", **SIZES), min_tok_s=8000)
    given["targets"] = [{"arch": platform.machine()}]
    found, _ = mixture_of(given)
    measured, predicted = found.tokens_per_second
    assert measured >= 8000
    assert predicted == pytest.approx(measured, rel=0.3)
    assert found.groups[0].scheme == "bf16"
    with pytest.raises(RecipeError, match=r"^quantize.min_tok_s: got 1e\+06, expected at most [\d.e+]+, the most that"):
        mixture_of({**given, "quantize": {**given["quantize"], "min_tok_s": 1e6}})


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="builds for x86-64")
def test_a_mix_is_timed_on_this_machine(tiny_checkpoint, document):
    found, _ = mixture_of(document(tiny_checkpoint("llama", **SIZES), min_tok_s=0.01))
    assert {group.scheme for group in found.groups} == {"bf16"}
    assert found.tokens_per_second[0] > 1


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [{"min_tok_s": 0.01}, {"bits_per_weight": 6, "algorithm": "gptq"}], ids=str)
def test_what_is_timed_or_measured_is_made_as_the_artifact_is(quantize, tiny_checkpoint, document, tmp_path, executors):
    """By the same workers, with the same cache or none."""
    path = tiny_checkpoint("llama", **{**SIZES, "num_hidden_layers": 1})
    given = {**document(path, **quantize), "targets": target_of()}
    made = build(given, output=tmp_path / "model.pyca", use_cache=False, workers=3)
    assert made.mixture is not None
    assert not (tmp_path / "cache").exists()
    assert executors == [3]
    assert (made.cache_hits, made.cache_misses) == (0, made.tensors + 1)


@pytest.mark.slow
def test_a_checkpoint_that_is_renamed_over_while_choices_are_timed(tiny_copy, document, tmp_path):
    path = tiny_copy("llama", **{**SIZES, "num_hidden_layers": 1})
    stages = []

    def progress(event):
        stages.append(event.stage)
        if event.stage == "compare" and event.done_bytes == 0:
            shutil.copy(path / "config.json", tmp_path / "other")
            (tmp_path / "other").rename(path / "config.json")

    given = {**document(path, min_tok_s=0.01), "targets": target_of()}
    with pytest.raises(IngestError, match=r"/config\.json: the file changed while the build read it"):
        build(given, output=tmp_path / "model.pyca", progress=progress)
    assert "lower" not in stages


def test_what_is_timed_is_not_calibrated(document, tmp_path):
    """Codes leave the speed of kernels as it is."""
    override = {"match": "a", "scheme": "int8", "algorithm": "imatrix"}
    given = document("m", min_tok_s=5, algorithm="gptq", overrides=[override])
    given["quantize"]["calibration"] = {"imatrix": "a.dat"}
    recipe = recipe_from(given)
    timed = SpeedMeter(recipe, 64, tmp_path, None)._small(recipe).quantize
    assert (timed.calibrates(), timed.reads_text(), timed.calibration.imatrix) == (False, False, None)
    assert [each.scheme for each in timed.overrides] == ["int8"]


def test_goals_that_a_model_or_a_machine_has_not(tiny_checkpoint, document):
    for goal in ({"max_kl": 0.1}, {"min_tok_s": 10.0}):
        with pytest.raises(RecipeError, match=r"is an encoder, expected size_bytes or bits_per_weight; take m"):
            mixture_of(document(tiny_checkpoint("bert", **SIZES), **goal))


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ([{"arch": "aarch64"}], "on x86_64, and no target is for its CPU; add one for it, or take another goal"),
        ([{"backend": "cuda"}], "on x86_64, and no target is for its CPU"),
        (
            [{"isa": ["x86-64-v3", "avx-vnni"]}],
            r"and this CPU \(A CPU, x86_64\) runs no target's isa: avx-vnni needs avx_vnni, movbe; "
            "x86-64-v3 needs movbe; add x86-64, which every x86_64 runs, to targets.isa, or take another goal",
        ),
    ],
)
def test_a_speed_that_this_machine_cannot_time_is_refused_before_the_work(
    targets, says, tiny_checkpoint, document, monkeypatch, tmp_path
):
    """By a plan, a build and what chooses schemes: from headers, before a text is read or anything is measured."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(features, "cpu_features", lambda: frozenset(("avx2", "fma", "f16c", "bmi1", "bmi2", "abm")))
    monkeypatch.setattr(features, "cpu_model", lambda: "A CPU")
    monkeypatch.setattr(host_targets, "cpu_model", lambda: "A CPU")

    def begun(*what, **more):
        raise AssertionError("the work has begun")

    monkeypatch.setattr(mixing, "calibration_windows", begun)
    monkeypatch.setattr("pyc.passes.driver.refuse_early.calibration_windows", begun)
    monkeypatch.setattr("pyc.passes.driver.plan.calibration_windows", begun)
    given = {**document(tiny_checkpoint("llama", **SIZES), algorithm="gptq", min_tok_s=10.0), "targets": targets}
    expected = f"^quantize.min_tok_s: decoding is timed where the artifact is built, {says}"
    with pytest.raises(RecipeError, match=expected):
        mixture_of(given)
    with pytest.raises(RecipeError, match=expected):
        build(given, output=tmp_path / "m.pyca")
    with pytest.raises(RecipeError, match=expected):
        plan(recipe_from(given))


def test_where_nothing_is_left_to_choose_no_speed_is_timed(tiny_checkpoint, document):
    """So the recipe in an artifact builds the same bytes on another machine."""
    override = {"match": "re:.*", "scheme": "int8"}
    given = document(tiny_checkpoint("llama", **SIZES), min_tok_s=10.0, overrides=[override])
    given["targets"] = [{"arch": "aarch64" if platform.machine() == "x86_64" else "x86_64"}]
    assert mixture_of(given)[0] is None
    assert plan(recipe_from(given)).goal == ("min_tok_s", 10.0)


def test_of_the_instruction_sets_of_a_recipe_the_fastest_here_is_timed(document, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    isas = ["x86-64", "x86-64-v3", "avx512-vnni"]
    given = {**document("m", min_tok_s=5), "targets": [{"arch": "aarch64"}, {"isa": isas[:1]}, {"isa": isas[1:]}]}
    for lacks, chosen in (({"avx512f"}, "x86-64-v3"), ({"avx2"}, "x86-64"), (set(), "avx512-vnni")):
        found = frozenset(name for isa in ISAS.values() for name in isa.features) - lacks
        monkeypatch.setattr(features, "cpu_features", lambda found=found: found)
        assert host_targets.speed_target(recipe_from(given)).isa == (chosen,)


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


def test_what_is_calibrated_is_measured_as_it_is_built(tiny_checkpoint, document, tmp_path, monkeypatch):
    """The codes that measuring chose are those of the build, from its cache."""
    path, cache = tiny_checkpoint("llama", **SIZES), Cache(tmp_path / "own")
    nearest, _ = mixture_of(document(path, bits_per_weight=4.6), cache)
    given = document(path, bits_per_weight=4.6, algorithm="gptq")
    found, _ = mixture_of(given, cache)
    assert found.measured < nearest.measured
    assert found.uniform is None or found.measured <= found.uniform.measured
    chosen = []
    monkeypatch.setattr(rounding, "descend", lambda *arguments: chosen.append(arguments))
    with SourceFiles() as files:
        module = ingested(given, files).stored(found.recipe.quantize)
        windows = calibration_windows(found.recipe, module, files)
        calibration.calibrate(module, windows, files, cache, tmp_path, lambda weights: None)
    assert not chosen


@pytest.mark.parametrize("algorithm", ["imatrix", "awq", "smoothquant-gptq", "yaqa"])
def test_a_mix_is_measured_by_the_algorithm_that_builds_it(algorithm, tiny_checkpoint, document, tmp_path):
    """Beside transformers, with the weights that a build of what was chosen has."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    path = tiny_checkpoint("llama", **SIZES)
    given = document(path, bits_per_weight=4.6, algorithm=algorithm)
    (tmp_path / "text.txt").write_text(" ".join(f"the cat {number} sat on {number * 7}" for number in range(2000)))
    found, _ = mixture_of(given)
    assert found.uniform is None or found.measured <= found.uniform.measured
    with SourceFiles() as files:
        taken = ingested(given, files)
        module = taken.stored(found.recipe.quantize)
        text = calibration_windows(found.recipe, module, files)
        made = calibration.calibrate(module, text, files, Cache(None), tmp_path, lambda weights: None, algorithm, 0.5)
        behind = held_back_windows(found.recipe, module, files, measured_windows.TOKENS)
        model = Predictor(made, behind)

        def rows_of(name, start, stop):
            return stored_rows(name, made.weights[name], start, stop, files)

        got = model.predictions(model.inputs(), 0, rows_of, model.positions(1 << 30))
    exact = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        wanted = torch.log_softmax(exact(torch.tensor(behind.ids.astype(np.int64))).logits.double(), -1)
    rounded = torch.log_softmax(torch.from_numpy(got).double(), -1).reshape(wanted.shape)
    kl = float((wanted.exp() * (wanted - rounded)).sum(-1).mean())
    assert found.measured == pytest.approx(kl, rel=5e-3)


def test_a_calibrated_mix_that_is_worse_gives_way_to_a_uniform_scheme(tiny_checkpoint, document, monkeypatch):
    monkeypatch.setattr(mixing, "choose", lambda items, budget: mixing.smallest(items))
    found, _ = mixture_of(document(tiny_checkpoint("llama", **SIZES), bits_per_weight=9, algorithm="imatrix"))
    assert found.is_uniform
    assert found.measured == found.uniform.measured


def test_what_measures_does_not_calibrate(tiny_checkpoint, document, tmp_path):
    """Tokens behind the calibration's where the text goes on, else some of its own."""
    given = document(tiny_checkpoint("llama", **SIZES), bits_per_weight=6, algorithm="gptq")
    words = " ".join(f"cat {number}" for number in range(2000))
    (tmp_path / "text.txt").write_text(words)
    with SourceFiles() as files:
        taken = ingested(given, files)
        own = calibration_windows(taken.recipe, taken.module, files)
        behind = held_back_windows(taken.recipe, taken.module, files, 256)
        assert (own.ids.size, behind.ids.size) == (512, 256)
        tokenizer = Tokenizer(dict(taken.module.files)["tokenizer.json"], None)
        assert [*own.ids.reshape(-1), *behind.ids.reshape(-1)] == tokenizer.encode(words)[:768]
        assert measured_windows._apart(own, behind, 256) == (behind, own)
        measured, kept = measured_windows._apart(own, None, 256)
        assert np.array_equal(np.concatenate([kept.ids, measured.ids]), own.ids)
        assert measured.ids.size == 128
        assert kept.digest != own.digest
    (tmp_path / "text.txt").write_text(words[:400])
    with SourceFiles() as files:
        assert held_back_windows(taken.recipe, taken.module, files, 256) is None


def test_wholes_are_measured_behind_virtual_tokens(tiny_checkpoint, tiny_adapter, document):
    """In eight bits they are near the exact model, which has them too; without them in one of the two KL is 0.8."""
    path = tiny_checkpoint("llama", **{**SIZES, "num_hidden_layers": 1})
    adapter = tiny_adapter(path, "prefix_tuning", num_virtual_tokens=6, task_type="CAUSAL_LM")
    given = {**document(path, bits_per_weight=8, algorithm="gptq"), "adapters": [{"path": str(adapter)}]}
    with build_context(Cache(None), 1) as context:
        found = problem(ingested(given, context.files))
        mixer = mixing._Mixer(found, context, lambda *what: None)
        assert mixer._measured(found.uniform("int8", "int8")) < 0.01


@pytest.mark.parametrize("goal", [{"bits_per_weight": 14}, {"max_kl": 1.0, "embeddings": "int8"}])
def test_smoothquant_scales_nothing_where_no_norm_is_read_by_quantized_matrices_alone(goal, tiny_checkpoint, document):
    """Of mixes that are compared some are such; what is chosen may be, and is built."""
    given = document(tiny_checkpoint("llama", **SIZES), algorithm="smoothquant", **goal)
    found, _ = mixture_of(given)
    assert found.measured <= goal.get("max_kl", found.measured)
    with SourceFiles() as files:
        module = ingested(given, files).stored(found.recipe.quantize)
    assert all(name in module.weights for name in (DOWN, OUT))


@pytest.mark.parametrize("quantize", [{}, {"algorithm": "gptq"}, {"algorithm": "imatrix"}])
def test_a_matrix_that_no_scale_holds_is_named(quantize, tiny_copy, document):
    """Its groups need scales beyond f16, which is found while schemes are measured."""
    from safetensors.torch import load_file, save_file

    path = tiny_copy("llama", **SIZES)
    tensors = load_file(path / "model.safetensors")
    tensors[OUT] *= 1e7
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(QuantizeError, match=rf"quantize: {OUT}: a group needs a scale of .*, beyond f16"):
        mixture_of(document(path, bits_per_weight=6, **quantize))
