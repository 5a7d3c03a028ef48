"""pyc export: folders that appear whole or not at all, and what stands in the way."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from pyc.models import catalog
from pyc.passes.driver.build import build

ONNX = {"shapes": {"tokens": [1, 8], "logits": [1]}, "targets": [{"backend": "onnx"}]}


@pytest.fixture
def recipe(tiny_checkpoint, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps({"model": str(tiny_checkpoint("llama")), **ONNX}))
    return path


@pytest.fixture
def artifact(recipe, tmp_path, key_home):
    return build(recipe, output=tmp_path / "tiny.pyca").path


def left_over(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("onnx", {"model.onnx", "model.onnx.data", "genai_config.json", "config.json", "tokenizer.json"}),
        ("hf", {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"}),
        ("torch", {"model.pt2", "config.json", "tokenizer.json"}),
    ],
)
def test_a_folder_of_an_artifact_and_of_its_recipe(form, expected, recipe, artifact, tmp_path, pyc):
    for source in (artifact, recipe):
        folder = tmp_path / f"{source.suffix[1:]}-{form}"
        code, out, err = pyc("export", source, folder, "--to", form)
        assert code == 0, err
        assert out.startswith(f"{folder}: ")
        assert expected <= {path.name for path in folder.iterdir()}
    if form == "torch":
        return  # the program of an artifact is written from its program for ONNX, whose weights have other names
    first, second = (tmp_path / f"{suffix}-{form}" for suffix in ("pyca", "yaml"))
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}
    assert not left_over(tmp_path)


GENERATION = {
    "bos_token_id": 1,
    "pad_token_id": 0,
    "eos_token_id": [2, 5, 1 << 20],
    "do_sample": True,
    "temperature": 0.7,
    "max_new_tokens": 77,
    "max_length": 200,
    "num_beams": 4,
    "length_penalty": 0.5,
}


@pytest.mark.parametrize("form", ["hf", "compressed-tensors", "onnx"])
def test_generation_defaults_are_the_checkpoints(form, tiny_copy, tmp_path, key_home, pyc):
    """Lengths above all, without which transformers generates 20 tokens."""
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    checkpoint = tiny_copy("llama")
    (checkpoint / "generation_config.json").write_text(json.dumps(GENERATION))
    recipe = tmp_path / "lengths.yaml"
    recipe.write_text(json.dumps({"model": str(checkpoint), "quantize": {"scheme": "int8"}, **ONNX}))
    artifact = build(recipe, output=tmp_path / "lengths.pyca").path
    for source in (artifact, recipe):
        folder = tmp_path / f"of-{source.suffix[1:]}"
        code, _, err = pyc("export", source, folder, "--to", form)
        assert code == 0, err
        written = json.loads((folder / "generation_config.json").read_bytes())
        assert written == GENERATION | {"eos_token_id": [2, 5]}, "without the id beyond the vocabulary"


def test_an_older_artifact_without_the_checkpoints_generation_defaults(
    tiny_copy, tmp_path, key_home, pyc, monkeypatch, caplog
):
    checkpoint = tiny_copy("llama")
    (checkpoint / "generation_config.json").write_text(json.dumps(GENERATION))
    with_files = catalog._with_files

    def without(*given):
        module = with_files(*given)
        return replace(module, files=tuple(file for file in module.files if file[0] != "generation_config.json"))

    monkeypatch.setattr(catalog, "_with_files", without)
    path = build({"model": str(checkpoint), **ONNX}, output=tmp_path / "old.pyca").path
    code, _, err = pyc("export", path, tmp_path / "made", "--to", "hf")
    assert code == 0, err
    assert "old.pyca: an older pyc built it, without generation_config.json: " in caplog.text
    written = json.loads((tmp_path / "made" / "generation_config.json").read_bytes())
    ids = {"bos_token_id": 1, "pad_token_id": 0, "eos_token_id": [2, 5]}
    assert written == ids | {"do_sample": True, "temperature": 0.7}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "hf", "torch"])
def test_calibrated_codes_are_what_is_exported(form, tiny_checkpoint, tmp_path, pyc):
    """A recipe with gptq gives other weights than one without, in every form."""
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat; the dog sat on the log\n" * 80)
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    quantize = {"scheme": "int4-g32", "calibration": {"text": str(text), "window": 32}}
    found = {}
    for algorithm in ("rtn", "gptq"):
        path = tmp_path / f"{algorithm}.yaml"
        model = {"model": str(tiny_checkpoint("llama", **sizes)), **ONNX}
        document = {**model, "quantize": {**quantize, "algorithm": algorithm}}
        path.write_text(json.dumps(document))
        folder = tmp_path / f"{algorithm}-{form}"
        code, _, err = pyc("export", path, folder, "--to", form)
        assert code == 0, err
        names = {"onnx": "model.onnx.data", "hf": "model.safetensors", "torch": "model.pt2"}
        found[algorithm] = (folder / names[form]).read_bytes()
    assert found["rtn"] != found["gptq"]


def test_an_empty_folder_is_filled_and_a_full_one_is_not(artifact, tmp_path, pyc):
    folder = tmp_path / "out"
    folder.mkdir()
    assert pyc("export", artifact, folder, "--to", "hf")[0] == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, _, err = pyc("export", artifact, folder, "--to", "onnx")
    assert (code, "is there already and is not an empty folder; choose another" in err) == (8, True), err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("missing/out", "the directory"),
        ("file", "is there already"),
        ("", "is empty; give one"),
        (".", "is there already"),
        ("link", "is there already"),
    ],
)
def test_a_place_where_nothing_can_be_written(target, said, artifact, tmp_path, pyc):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    code, _, err = pyc("export", artifact, str(tmp_path / target) if target else "", "--to", "hf")
    assert (code, said in err) == (8, True), err
    assert (tmp_path / "file").read_text() == "mine"
    assert not left_over(tmp_path)


@pytest.mark.parametrize(
    ("form", "option", "value"),
    [
        ("onnx", "--dtype", "f16"),
        ("torch", "--dtype", "auto"),
        ("hf", "--flavour", "standard"),
        ("torch", "--flavour", "float4"),
        ("compressed-tensors", "--flavour", "fused"),
    ],
)
def test_an_option_of_another_form_is_refused(form, option, value, artifact, tmp_path, pyc):
    code, out, err = pyc("export", artifact, tmp_path / "out", "--to", form, option, value)
    assert (code, out) == (2, "") and f"{option} is for --to " in err
    assert not left_over(tmp_path)


def test_an_artifact_for_cpus_alone(decoder_artifact, tmp_path, pyc, monkeypatch):
    monkeypatch.setattr("pyc.passes.export.source.require_trusted", lambda artifact: ())
    code, _, err = pyc("export", decoder_artifact, tmp_path / "out", "--to", "onnx")
    assert code == 8
    assert "add `- backend: onnx` to the targets" in err


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (("compressed-tensors",), "none of its matrices is quantized; export it with --to hf, or "),
        (("onnx", "--flavour", "float4"), "no matrix is mxfp4 or nvfp4, which the flavour float4 is for; "),
    ],
)
def test_what_an_export_cannot_be_made_of_is_called_as_it_was_given(form, said, recipe, tmp_path, pyc, key_home):
    """And not as the artifact that was built of it, which is gone."""
    checkpoint = json.loads(recipe.read_text())["model"]
    scheme = ("--set", "quantize.scheme=f32")
    for source, more in ((recipe, scheme), (checkpoint, (*scheme, "--set", "shapes.tokens=[1,8]"))):
        code, _, err = pyc("export", source, tmp_path / "out", "--to", *form, *more)
        assert code == 8 and f"error: {source}: {said}" in err, err
        assert ".pyca" not in err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_an_artifact_that_nobody_vouches_for(artifact, tmp_path, pyc, monkeypatch):
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "another"))
    code, _, err = pyc("export", artifact, tmp_path / "out", "--to", "onnx")
    assert (code, "trust" in err) == (12, True), err
    assert not (tmp_path / "out").exists()


def test_altered_weights(artifact, tmp_path, pyc):
    data = bytearray(artifact.read_bytes())
    place = data.rindex(b"\x00" * 64) // 2
    while not data[place]:
        place += 1
    data[place] ^= 1
    artifact.write_bytes(data)
    code, _, err = pyc("export", artifact, tmp_path / "out", "--to", "hf")
    assert (code, "altered" in err) == (8, True), err
    assert not (tmp_path / "out").exists()
    assert not left_over(tmp_path)


def test_changes_of_an_artifacts_recipe(artifact, tmp_path, pyc):
    code, _, err = pyc("export", artifact, tmp_path / "out", "--to", "hf", "--set", "quantize.scheme=int8")
    assert (code, "--set is for a recipe" in err) == (8, True), err


def test_without_onnx(artifact, tmp_path, key_home):
    program = (
        "import sys; sys.modules['onnx'] = None\n"
        "from pyc.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "export", str(artifact), str(tmp_path / "out"), "--to", "onnx"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 69
    assert "onnx" in done.stderr and "pip install -c constraints.txt '.[onnx]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(artifact, tmp_path, pyc, monkeypatch):
    def full(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyc.passes.export.checkpoint.cast_rows", full)
    code, _, err = pyc("export", artifact, tmp_path / "out", "--to", "hf")
    assert (code, "No space left on device" in err) == (8, True), err
    assert not (tmp_path / "out").exists()
    assert not left_over(tmp_path)
