"""The gate of a recipe: what it lets through, what it refuses, and what is there afterwards."""

import importlib.util
import json
import os
import platform
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from built_models import recipe_for
from msgspec.structs import replace

from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.recipe.types import AdapterRef
from pyc.passes.driver.build import build
from pyc.passes.driver.plan import plan
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.errors import ArtifactError, IngestError, QualityError, RecipeError, RunError
from pyc.runtime.executors.cpu import features
from pyc.runtime.executors.cuda.device import Gpu
from pyc.runtime.measure.quality_report import QualityReport

pytestmark = pytest.mark.usefixtures("compiled_once")

TEXT = "the quick brown fox jumps over the lazy dog, and then it does it again.\n" * 8
KEPT = {"text": "held.txt", "max_kl": 0.5, "max_ppl": 1e6, "min_same_top": 0.1, "context": 16, "tokens": 64}
EXCEEDED = {**KEPT, "max_kl": 0, "max_ppl": 1}


@pytest.fixture
def gated(tiny_checkpoint, tmp_path, monkeypatch):
    """`gated(quality, kind="llama", **recipe)`: a recipe of an int8 model with that gate, its text beside it."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "held.txt").write_text(TEXT)

    def make(quality: dict[str, object], kind: str = "llama", **more: object):
        recipe = recipe_for(tiny_checkpoint(kind), quantize={"scheme": "int8"}, quality=quality, **more)
        return recipe_from(recipe, folder=folder, name="tiny")

    return make


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.slow
def test_a_gate_that_is_passed_and_one_that_is_not(gated, tmp_path):
    folder = tmp_path / "work"
    stages: list[str] = []
    result = build(gated(KEPT), progress=lambda event: stages.append(event.stage))
    assert files(folder) == ["held.txt", "tiny.pyca", "tiny.quality.json"]
    assert [limit.name for limit in result.quality.limits] == ["max_kl", "max_ppl", "min_same_top"]
    assert all(limit.is_kept for limit in result.quality.limits)
    written = msgspec.json.decode((folder / "tiny.quality.json").read_bytes(), type=QualityReport)
    assert written == result.quality
    divergence = written.artifacts[0].divergence
    assert {limit.name: limit.measured for limit in written.limits} == {
        "max_kl": divergence.kl.value,
        "max_ppl": written.artifacts[0].perplexity.value,
        "min_same_top": divergence.same_top.value,
    }
    assert divergence.kl.value > 0
    assert (written.text.name, written.text.windows, written.artifacts[0].name) == ("held.txt", 4, "tiny.pyca")
    assert list(dict.fromkeys(stages))[-3:] == ["reference", "evaluate", "done"]
    with open_artifact(result.path) as artifact:
        assert json.loads(artifact.header.provenance.recipe)["quality"]["max_kl"] == 0.5

    before = result.path.read_bytes()
    with pytest.raises(QualityError, match=r"quality: max_kl 0: got 0\.0\S*, max_ppl 1: got \S+; no art") as found:
        build(gated(EXCEEDED))
    assert files(folder) == ["held.txt", "tiny.pyca", "tiny.quality.json"]
    assert result.path.read_bytes() == before, "the older artifact is as it was"
    assert (folder / "tiny.quality.json").read_text() == found.value.report
    refused = msgspec.json.decode(found.value.report, type=QualityReport)
    assert [limit.is_kept for limit in refused.limits] == [False, False, True]
    assert refused.artifacts[0].divergence == divergence

    again = build(gated(KEPT), output=folder / "again.pyca")
    assert again.sha256 == result.sha256, "what was measured is not in the artifact"
    assert not list(Path(tempfile.gettempdir()).glob("pyc-eval-*/reference.pyca"))


@pytest.mark.slow
def test_the_reference_is_built_as_the_artifact_is(gated, tmp_path, executors):
    """By the same workers, with the same cache or none; what it looks up there does not count for the artifact."""
    without = build(gated(KEPT), use_cache=False, workers=3)
    assert not (tmp_path / "cache").exists()
    assert executors == [3]
    counted = [(built.cache_hits, built.cache_misses) for built in (without, build(gated(KEPT)), build(gated(KEPT)))]
    misses = without.tensors + 1
    assert counted == [(0, misses), (0, misses), (misses, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "moment", "limits"),
    [
        ("model.safetensors", "reference", KEPT),
        ("model.safetensors", "evaluate", EXCEEDED),
        ("adapter_model.safetensors", "reference", EXCEEDED),
        ("held.txt", "evaluate", KEPT),
    ],
)
def test_a_file_that_is_renamed_over_while_the_gate_runs(gated, tiny_adapter, tmp_path, name, moment, limits):
    recipe = gated(limits)
    checkpoint = Path(shutil.copytree(recipe.model, tmp_path / "checkpoint"))
    adapter = Path(shutil.copytree(tiny_adapter(checkpoint), tmp_path / "adapter"))
    recipe = replace(recipe, model=str(checkpoint), adapters=(AdapterRef(path=str(adapter)),))
    path = next(tmp_path.glob(f"[caw]*/{name}"))

    def progress(event):
        if event.stage == moment and not (tmp_path / "former").exists():
            shutil.copy(path, tmp_path / "other")
            path.rename(tmp_path / "former")
            (tmp_path / "other").rename(path)

    with pytest.raises(IngestError, match=rf"/{name}: the file changed while the build read it"):
        build(recipe, progress=progress)
    assert files(tmp_path / "work") == ["held.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["absolute", "relative"])
def test_a_link_to_the_checkpoint_that_leads_elsewhere_meanwhile(kind, gated, tiny_checkpoint, tmp_path, monkeypatch):
    """What was opened is what the artifact is compared with."""
    link = tmp_path / "current"
    recipe = gated(KEPT)
    expected = build(recipe).quality.limits
    link.symlink_to(recipe.model)

    def progress(event):
        if event.stage == "reference" and os.readlink(link) == recipe.model:
            link.unlink()
            link.symlink_to(tiny_checkpoint("llama", seed=5))

    recipe_of_link = replace(recipe, model=str(link))
    if kind == "relative":
        monkeypatch.chdir(recipe.folder)
        recipe_of_link = replace(recipe, model=os.path.relpath(link), folder=".")
    assert build(recipe_of_link, progress=progress).quality.limits == expected
    assert os.readlink(link) != recipe.model


@pytest.mark.slow
def test_perplexity_needs_no_reference(gated):
    wanted = {"text": "held.txt", "max_ppl": 1e6, "reference": "none", "context": 16}
    stages: list[str] = []
    result = build(gated(wanted), progress=lambda event: stages.append(event.stage))
    assert result.quality.reference is None
    assert "reference" not in stages


@pytest.mark.slow
def test_an_encoder(gated):
    recipe = {"kind": "bert", "shapes": {"tokens": [16, 64]}}
    wanted = {"text": "held.txt", "min_cosine": 0.9}
    assert build(gated(wanted, **recipe)).quality.limits[0].measured > 0.99
    with pytest.raises(QualityError, match=r"quality: min_cosine 1: got 0\.99"):
        build(gated({**wanted, "min_cosine": 1}, **recipe))


@pytest.mark.parametrize(
    ("quality", "says"),
    [
        ({"text": "absent.txt"}, r"quality\.text: absent\.txt: cannot be read: No such file"),
        ({"text": "."}, r"quality\.text: \.: cannot be read"),
        ({"context": 65}, r"quality\.context: got 65, expected at most 64"),
        ({"min_cosine": 0.9}, r"quality\.min_cosine: llama is a decoder, expected max_kl, max_ppl, min_same_top"),
        ({"tokens": 15}, r"held\.txt: the text: it has 15 tokens, expected at least 16, .*quality\.context"),
    ],
)
def test_what_is_wrong_is_said_before_the_work_and_by_plan(gated, quality, says, tmp_path):
    for run in (build, plan):
        with pytest.raises(RecipeError, match=says):
            run(gated({**KEPT, **quality}))
    assert files(tmp_path / "work") == ["held.txt"]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "it is empty"), (b"the \xff", "not UTF-8 at byte 4"), (b"the fox", "expected at least 16, one window")],
)
def test_texts_that_will_not_do(gated, content, says, tmp_path):
    (tmp_path / "work" / "held.txt").write_bytes(content)
    with pytest.raises(RecipeError, match=rf"quality\.text: held\.txt: .*{says}"):
        plan(gated(KEPT))


def test_an_encoder_has_its_own_limit_and_needs_some_texts(gated, tmp_path):
    recipe = {"kind": "bert", "shapes": {"tokens": [16, 64]}}
    with pytest.raises(RecipeError, match=r"quality\.max_kl: bert is an encoder, expected min_cosine"):
        plan(gated({"text": "held.txt", "max_kl": 1}, **recipe))
    (tmp_path / "work" / "held.txt").write_text("one\u2028still one\n\ntwo\x0cstill two\rtoo\n", newline="")
    with pytest.raises(RecipeError, match=r"it has 2 lines with text, expected at least 3"):
        plan(gated({"text": "held.txt", "min_cosine": 0.5}, **recipe))


def test_targets_of_other_machines_alone(gated):
    other = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    with pytest.raises(RecipeError, match=r"the gate runs the artifact where it is built, on .*, and no target is for"):
        plan(gated(KEPT, targets=[{"arch": other}]))


def test_instruction_sets_that_this_cpu_has_not(gated, monkeypatch):
    """Are found before the work, as other machines are."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(features, "cpu_features", frozenset)
    targets = [{"arch": "x86_64", "isa": ["x86-64-v3"]}]
    says = r"^quality: the gate runs .*, and this CPU \(.*, x86_64\) runs no target's isa: x86-64-v3 needs .*`pyc eval`"
    for run in (plan, build):
        with pytest.raises(RecipeError, match=says):
            run(gated(KEPT, targets=targets))
    plan(gated(KEPT, targets=[*targets, {"backend": "onnx"}]))


CUDA = {"backend": "cuda", "arch": ["sm_90a"]}
OTHER_MACHINE = {"arch": "x86_64" if platform.machine() == "aarch64" else "aarch64"}


@pytest.mark.parametrize(
    ("targets", "gpu", "lacks"),
    [
        ([CUDA], None, "no target is for its CPU, and cuda needs an NVIDIA GPU and its driver; add one for it, or "),
        ([CUDA], (8, 0), "and cuda needs another GPU than one"),
        ([CUDA], (9, 0), None),
        ([{"backend": "cuda", "arch": ["compute_100"]}], (12, 0), None),
        ([OTHER_MACHINE, CUDA], None, "and cuda needs an NVIDIA GPU"),
        ([{"backend": "tensorrt"}], None, "and tensorrt needs TensorRT, and an NVIDIA GPU with its driver"),
        ([{"backend": "onnx"}], None, None),
        ([CUDA, {"backend": "onnx"}], None, None),
        ([CUDA, {"arch": platform.machine()}], None, None),
    ],
)
def test_engines_that_this_machine_has_not(targets, gpu, lacks, gated, monkeypatch):
    """Are found before the work, too: programs for GPUs are built where there is none."""

    def find_gpu(driver):
        if gpu is None:
            raise RunError("no GPU")
        return Gpu(0, "one", 1 << 30, gpu)

    def check_machine():
        raise RunError("no GPU")

    monkeypatch.setattr("pyc.runtime.executors.cuda.driver.open_driver", lambda: None)
    monkeypatch.setattr("pyc.runtime.executors.cuda.device.find_gpu", find_gpu)
    monkeypatch.setattr("pyc.runtime.executors.tensorrt.toolkit.check_machine", check_machine)
    if lacks is None:
        plan(gated(KEPT, targets=targets))
        return
    for run in (plan, build):
        with pytest.raises(RecipeError, match=f"^quality: the gate runs the artifact where it is built, .*{lacks}"):
            run(gated(KEPT, targets=targets))


def test_onnxruntime_may_lack(gated, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxruntime" else real(name))
    with pytest.raises(RecipeError, match="and onnx needs the package onnxruntime"):
        plan(gated(KEPT, targets=[{"backend": "onnx"}]))


def test_neither_text_nor_somebody_elses_file_is_replaced(gated, tmp_path):
    folder = tmp_path / "work"
    with pytest.raises(ArtifactError, match="is the text of the gate, which is read here"):
        build(gated(KEPT), output=folder / "held.txt", force=True)
    (folder / "tiny.quality.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"tiny\.quality\.json: is there already and is not a quality report"):
        build(gated(KEPT))
    assert files(folder) == ["held.txt", "tiny.quality.json"]


def test_plan_says_that_there_is_a_gate(gated):
    planned = plan(gated(KEPT))
    assert planned.quality.limits() == (("max_kl", 0.5), ("max_ppl", 1e6), ("min_same_top", 0.1))
