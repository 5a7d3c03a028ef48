"""passes/export/source.py: a recipe with a goal is exported in the schemes that its build chooses."""

import json
import shutil

import pytest

from pyc.backends.onnx import backend as onnx_backend
from pyc.compiler.recipe.api import recipe_from, recipe_text
from pyc.passes.driver.build import build, build_cache, build_context
from pyc.passes.export import source as export_source
from pyc.passes.export.source import exportable
from pyc.runtime.errors import ArtifactError, IngestError, RecipeError

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 1}


@pytest.mark.slow
def test_a_program_of_another_convention_is_not_read(tiny_checkpoint, tmp_path, monkeypatch):
    """Its module may mean something else."""
    document = {"model": str(tiny_checkpoint("llama", **SIZES)), "targets": [{"backend": "onnx"}]}
    with monkeypatch.context() as patch:
        patch.setattr(onnx_backend, "CONVENTION", ("pyc-onnx", "0"))
        path = build(document, output=tmp_path / "older.pyca").path
    told = r"of another pyc \(pyc-onnx 0\); this one has .*; export it with the pyc that"
    with pytest.raises(ArtifactError, match=told), exportable(path):
        pass


def with_chosen_schemes(recipe):
    with build_context(build_cache(use_cache=True)) as context:
        return export_source.with_chosen_schemes(recipe, context)


@pytest.mark.slow
def test_an_export_has_the_schemes_of_the_build(tiny_checkpoint, tmp_path, monkeypatch):
    """Lookup tables among them, which would not be chosen for ONNX Runtime: 3.5 bits could not be kept."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))
    quantize = {"bits_per_weight": 3.5, "calibration": {"tokens": 256}}
    shapes = {"tokens": [1, 8], "logits": [1], "context": 64}
    recipe = {"model": str(tiny_checkpoint("llama", **SIZES)), "quantize": quantize, "shapes": shapes}
    recipe |= {"targets": [{"backend": "cpu", "arch": "x86_64", "isa": ["x86-64"]}]}
    mixture = build(recipe, output=tmp_path / "a.pyca").mixture
    assert mixture is not None
    wanted = {name: group.scheme for group in mixture.groups for name in group.names}
    assert any(scheme.startswith("lut") for scheme in wanted.values())
    quantize = with_chosen_schemes(recipe_from(recipe)).quantize
    assert quantize.goal() is None
    assert {override.match: override.scheme for override in quantize.overrides} == wanted
    (tmp_path / "model.yaml").write_text(json.dumps(recipe))
    named = {**recipe, "quantize": {"overrides": [{"match": name, "scheme": wanted[name]} for name in wanted]}}
    (tmp_path / "named.yaml").write_text(json.dumps(named))
    with exportable(tmp_path / "model.yaml") as source, exportable(tmp_path / "named.yaml") as expected:
        assert source.graph == expected.graph
        for name, tensor in expected.tensors().items():
            assert source.artifact.tensor(name).tobytes() == expected.artifact.tensor(name).tobytes(), tensor


def test_a_recipe_without_a_goal_is_what_it_was(tiny_checkpoint):
    recipe = recipe_from({"model": str(tiny_checkpoint("llama")), "quantize": {"scheme": "int8"}})
    assert with_chosen_schemes(recipe) is recipe


def test_schemes_that_a_speed_chooses_are_not_chosen_anew(tiny_checkpoint, tmp_path, monkeypatch):
    """Another measurement would choose others than the build's; what a build recorded has nothing left to choose."""
    monkeypatch.setattr(export_source, "mixed", lambda *given: pytest.fail("it was measured"))
    recipe = {"model": str(tiny_checkpoint("llama")), "quantize": {"min_tok_s": 0.001}}
    path = tmp_path / "model.yaml"
    path.write_text(json.dumps(recipe))
    said = r"quantize\.min_tok_s: speed is measured anew each time.*--recipe > chosen\.yaml.*write them again"
    with pytest.raises(RecipeError, match=said):
        with_chosen_schemes(recipe_from(recipe))
    with pytest.raises(RecipeError, match="speed is measured anew"), exportable(path):
        pass
    monkeypatch.undo()
    recipe["quantize"]["overrides"] = [{"match": "re:.*", "scheme": "int8"}]
    recorded = recipe_from(json.loads(recipe_text(recipe_from(recipe))) | {"model": recipe["model"]})
    quantize = with_chosen_schemes(recorded).quantize
    assert (quantize.goal(), quantize.overrides) == (None, recorded.quantize.overrides)


@pytest.mark.slow
def test_a_checkpoint_that_is_renamed_over_behind_the_choice_of_schemes(tiny_copy, tmp_path, monkeypatch):
    """The schemes would be those of another model."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    checkpoint = tiny_copy("llama", **SIZES)
    recipe = {"model": str(checkpoint), "quantize": {"bits_per_weight": 9, "calibration": {"tokens": 256}}}
    recipe |= {"shapes": {"tokens": [1, 8], "logits": [1], "context": 64}}
    (tmp_path / "model.yaml").write_text(json.dumps(recipe))

    def progress(event):
        if event.stage == "compare" and event.done_bytes == 0:
            shutil.copy(checkpoint / "model.safetensors", tmp_path / "other")
            (tmp_path / "other").rename(checkpoint / "model.safetensors")

    changed = pytest.raises(IngestError, match=r"/model\.safetensors: the file changed while the build read it")
    with changed, exportable(tmp_path / "model.yaml", progress=progress):
        pass
