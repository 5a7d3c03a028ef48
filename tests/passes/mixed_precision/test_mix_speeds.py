"""passes/mixed_precision/mix_schemes.py: the most bytes within a time, and what is timed."""

import platform
import shutil

import pytest
from built_models import target_of
from mixed_recipes import EMBEDDING, SIZES, mixture_of

from pyc.backends.cpu.isa import ISAS
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.scheme_choice import Option, path, size_of
from pyc.passes import host_targets
from pyc.passes.driver.build import build
from pyc.passes.driver.plan import plan
from pyc.passes.mixed_precision import mix_schemes as mixing
from pyc.passes.mixed_precision.measure_speed import SpeedMeter
from pyc.passes.mixed_precision.mix_schemes import _within
from pyc.runtime.errors import IngestError, RecipeError
from pyc.runtime.executors.cpu import features

pytestmark = pytest.mark.usefixtures("compiled_once")


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


@pytest.mark.parametrize("is_slow_again", [False, True])
def test_what_was_slow_by_chance_is_timed_again(is_slow_again):
    """Where something else ran on this machine as all but the smallest choice were timed, or always does."""
    least, most = (size_of(ROWS, choice) for choice in (path(ROWS)[0], path(ROWS)[-1]))
    limit_s, asked = 1 + 1e-4 * (least + 0.5 * (most - least)), []

    def seconds(choice):
        asked.append(choice)
        is_disturbed = asked.count(path(ROWS)[0]) == 1 or is_slow_again
        return (1 + 1e-4 * size_of(ROWS, choice)) * (9 if is_disturbed and choice != path(ROWS)[0] else 1)

    _, elapsed_s, _ = _within(ROWS, [], limit_s, seconds)
    assert elapsed_s <= limit_s
    if is_slow_again:
        assert elapsed_s < 0.7 * limit_s
    else:
        assert elapsed_s >= 0.97 * limit_s == pytest.approx(0.97 + 0.97e-4 * (least + 0.5 * (most - least)))
    assert len(asked) <= 2 * (2 + mixing.SPEED_ATTEMPTS)


@pytest.mark.parametrize(("other_s", "warns"), [(1e-3, True), (1.1e-4, False)])
def test_a_mix_that_is_much_faster_than_asked_is_told(other_s, warns, tiny_checkpoint, document, monkeypatch, caplog):
    timed = []

    def tokens_per_second(self, recipe):
        timed.append(recipe)
        return 1e4 if len(timed) == 1 else 1 / other_s

    monkeypatch.setattr(SpeedMeter, "tokens_per_second", tokens_per_second)
    given = document(tiny_checkpoint("llama", **SIZES), min_tok_s=8000)
    given["targets"] = [{"arch": platform.machine()}]
    found, _ = mixture_of(given)
    assert found.tokens_per_second[0] >= 8000
    assert ("min_tok_s: 1e+04 tokens a second are timed where 8000 are asked for" in caplog.text) is warns


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
