"""`pyc build --check`: after a build there is nothing to build, and every change of what goes into one shows."""

import json

import pytest
import yaml

from pyc.backends.onnx import backend as onnx_backend
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.comparison.check_artifact import with_chosen_schemes
from pyc.passes.driver import emit_artifact as emitting
from pyc.passes.driver.build import build
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.executors.onnx.program import CONVENTION

TEXT = "the cat sat on the mat; the dog sat on the log\n" * 80
ONNX = {"shapes": {"tokens": [1, 16], "logits": [1, 16]}, "targets": [{"backend": "onnx"}]}
"""Targets that take no compiler: what is compared is the same for all."""
GOAL = {"bits_per_weight": 8}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}
QUANTIZE = {
    "plain": {"scheme": "int8"},
    "gptq": {"scheme": "int4-g32", "algorithm": "gptq"},
    "smoothquant": {"scheme": "int8", "algorithm": "smoothquant"},
    "yaqa": {"scheme": "int4-g32", "algorithm": "yaqa"},
    "goal": GOAL,
}


@pytest.fixture(autouse=True)
def needs_onnx():
    pytest.importorskip("onnx", reason="the extra onnx is not installed")


@pytest.fixture
def recipe(tmp_path, tiny_copy, capfd):
    """`recipe(**keys)`: model.yaml beside a checkpoint of its own and a text."""
    checkpoint = tiny_copy("llama", **SIZES)
    capfd.readouterr()  # transformers draws a progress bar while it writes the checkpoint
    (tmp_path / "text.txt").write_text(TEXT)

    def make(**keys):
        quantize = {"calibration": {"text": "text.txt", "window": 32, "tokens": 512}, **keys.pop("quantize", {})}
        document = {"model": str(checkpoint), **ONNX, "quantize": quantize, **keys}
        path = tmp_path / "model.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    make.checkpoint = checkpoint
    return make


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUANTIZE)
def test_a_new_artifact_is_up_to_date(kind, pyc, recipe, tmp_path):
    path = recipe(quantize=QUANTIZE[kind])
    build(path)
    before = (tmp_path / "model.pyca").read_bytes()
    assert pyc("build", path, "--check") == (0, f"{tmp_path / 'model.pyca'}: up to date\n", "")
    assert (tmp_path / "model.pyca").read_bytes() == before
    if kind == "plain":
        return
    (tmp_path / "text.txt").write_text(TEXT.upper())  # the text of a calibration, or of measurements, is a source
    code, out, _ = pyc("build", path, "--check")
    assert code == 1 and "sources calibration/text.txt: " in out, out
    assert ("passes calibrate: " in out) == (kind != "goal"), out
    (tmp_path / "text.txt").unlink()
    code, _, err = pyc("build", path, "--check")
    assert code == 6 and "quantize.calibration.text: text.txt: cannot be read" in err, err


@pytest.mark.slow
def test_the_text_that_decided_schemes_is_named_by_attestations(pyc, recipe, tmp_path):
    """Also where the recipe that an artifact records is built again, which measures nothing."""
    path = recipe(quantize=GOAL)
    artifact = build(path).path
    assert "calibration/text.txt" in pyc("attest", artifact, "--format", "slsa")[1]
    with open_artifact(artifact) as opened:
        recorded = opened.header.provenance.recipe
    again = tmp_path / "again.yaml"
    again.write_text(recorded)
    assert build(again, output=tmp_path / "again.pyca").path.read_bytes() == artifact.read_bytes()


@pytest.mark.slow
def test_virtual_tokens(pyc, recipe, tiny_adapter):
    adapter = tiny_adapter(recipe.checkpoint, "prompt_tuning", num_virtual_tokens=4, task_type="CAUSAL_LM")
    path = recipe(adapters=[{"path": str(adapter)}])
    build(path)
    assert pyc("build", path, "--check")[0] == 0


@pytest.mark.slow
def test_every_change_has_its_line(pyc, recipe, tmp_path, monkeypatch):
    path = recipe(quantize={"scheme": "int8"})
    artifact = build(path).path
    code, out, err = pyc("build", path, "--check", "--set", "quantize.scheme=int4-g32")
    assert (code, err) == (1, "")
    assert out.splitlines()[0] == f"{artifact}: not up to date"
    assert 'recipe quantize.scheme: "int8" in the artifact, "int4-g32" now' in out.splitlines()
    assert any(line.startswith("passes assign_schemes: ") for line in out.splitlines())

    weights = recipe.checkpoint / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, out, _ = pyc("build", path, "--check", "--json")
    document = json.loads(out)
    assert (code, document["is_up_to_date"], document["exists"]) == (1, False, True)
    assert set(document["groups"]) == {"sources"}
    assert [change["name"] for change in document["groups"]["sources"]] == ["model.safetensors"]
    data[-1] ^= 1
    weights.write_bytes(data)
    assert pyc("build", path, "--check")[0] == 0

    real = emitting.importlib.metadata.version
    monkeypatch.setattr(emitting.importlib.metadata, "version", lambda name: "9" if name == "lz4" else real(name))
    code, out, _ = pyc("build", path, "--check")
    assert (code, len(out.splitlines())) == (1, 2)
    assert out.splitlines()[1].startswith("tools lz4: ") and out.endswith(" in the artifact, 9 now\n")


def test_programs_of_another_convention_are_not_up_to_date(pyc, recipe, monkeypatch):
    """This pyc runs none of them, so an answer that all is well would leave the artifact as it is."""
    path = recipe()
    with monkeypatch.context() as patch:
        patch.setattr(onnx_backend, "CONVENTION", ("pyc-onnx", "0"))
        artifact = build(path).path
    code, out, err = pyc("build", path, "--check")
    now = " ".join(CONVENTION)
    changes = f"programs onnx onnxruntime any: pyc-onnx 0 in the artifact, {now} now"
    assert (code, out, err) == (1, f"{artifact}: not up to date\n{changes}\n", "")
    document = json.loads(pyc("build", path, "--check", "--json")[1])
    change = {"name": "onnx onnxruntime any", "before": "pyc-onnx 0", "after": now}
    assert (document["is_up_to_date"], document["groups"]) == (False, {"programs": [change]})
    build(path, force=True)
    assert pyc("build", path, "--check")[0] == 0


def test_what_is_not_there_and_what_is_wrong(pyc, recipe, tmp_path):
    path = recipe()
    absent = tmp_path / "absent.pyca"
    assert pyc("build", path, "--check", "-o", absent)[:2] == (1, f"{absent}: not up to date: it is not there\n")
    document = json.loads(pyc("build", path, "--check", "-o", absent, "--json")[1])
    assert document == {"artifact": str(absent), "is_up_to_date": False, "exists": False, "groups": {}}
    for arguments, code, says in (
        ((path, "-o", tmp_path / "text.txt"), 8, "not a pyc artifact"),
        ((tmp_path / "none.yaml",), 3, "none.yaml: no such file"),
        ((path, "--set", "quantize.scheme=int9"), 3, "int9"),
        ((path, "--force"), 2, "--check writes nothing"),
        ((path, "--key", path), 2, "--check writes nothing"),
        ((path, "-o", ""), 8, "is empty"),
    ):
        found, out, err = pyc("build", "--check", *arguments)
        assert (found, out) == (code, ""), (arguments, err)
        assert says in err, err


def test_schemes_that_were_chosen_are_those_behind_the_recipes_own():
    own = {"match": "lm_head", "scheme": "int8"}
    chosen = [own, {"match": "model.layers.0.mlp.up_proj", "scheme": "int4-g32"}]
    wanted = recipe_from({"model": "m", "quantize": {**GOAL, "overrides": [own]}})

    def recorded(overrides):
        return json.dumps({"model": "m", "quantize": {**GOAL, "overrides": overrides}})

    made = with_chosen_schemes(wanted, recorded(chosen))
    assert [each.match for each in made.quantize.overrides] == [each["match"] for each in chosen]
    for other in (recorded(chosen[1:]), recorded([{"match": "a", "scheme": "int9"}]), "no JSON", "[" * 2000, "5"):
        assert with_chosen_schemes(wanted, other) == wanted, other[:50]
    plain = recipe_from({"model": "m", "quantize": {"overrides": [own]}})
    assert with_chosen_schemes(plain, recorded(chosen)) == plain
