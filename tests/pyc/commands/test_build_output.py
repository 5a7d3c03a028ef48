"""pyc build -o: what a build may replace, and that it says so before any work."""

import os
from pathlib import Path

import pytest

from pyc.cli import main
from pyc.compiler.files.source_files import SourceFiles
from pyc.passes.driver import build as build_module
from pyc.passes.driver import build_calibration

SMALL = "shapes: {tokens: [1], logits: [1]}\ntargets: [{isa: [x86-64]}]\nquantize: {scheme: int8}\n"


@pytest.fixture
def folder(tiny_copy, tiny_adapter, tmp_path, monkeypatch):
    """A recipe with a checkpoint of its own and an adapter, in the current folder; work there is an error."""
    checkpoint = tiny_copy("llama")
    tiny_adapter(checkpoint, target_modules=["q_proj"]).rename(tmp_path / "lora")
    (tmp_path / "model.yaml").write_text(f"model: ./checkpoint\nadapters: [{{path: ./lora}}]\n{SMALL}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build_module, "emit_artifact", lambda *arguments, **options: pytest.fail("work began"))
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_no_source_is_replaced(folder, capsys):
    sources = [
        "model.yaml",
        "checkpoint/config.json",
        "checkpoint/model.safetensors",
        "checkpoint/tokenizer.json",
        "checkpoint/tokenizer_config.json",
        "lora/adapter_config.json",
        "lora/adapter_model.safetensors",
    ]
    os.link("checkpoint/model.safetensors", "hard.pyca")
    Path("link.pyca").symlink_to("model.yaml")
    before = snapshot(folder)
    for name in (*sources, "hard.pyca", "link.pyca", "lora/../model.yaml", str(folder / "model.yaml")):
        for force in ([], ["--force"]):
            assert main(["build", "model.yaml", "-o", name, *force]) == 8
            printed = capsys.readouterr()
            assert "which is read here" in printed.err
            assert printed.out == ""
    assert snapshot(folder) == before


def test_nothing_else_is_replaced_unasked(folder, capsys):
    Path("notes.txt").write_text("mine")
    os.mkfifo("pipe")
    before = snapshot(folder)
    cases = {
        "notes.txt": "is not a pyc artifact; choose another name with -o, or give --force",
        "pipe": "is a named pipe",
        "/dev/null": "is a device",
        "checkpoint": "is a folder",
        "": "is empty",
        ".": "names a folder",
        "new/": "names a folder",
        "no/model.pyca": "does not exist",
        "x" * 256: "the file system takes 255",
        "a\nb": "control characters",
    }
    for name, words in cases.items():
        assert main(["build", "model.yaml", "-o", name]) == 8
        printed = capsys.readouterr()
        assert printed.out == ""
        last = printed.err.splitlines()[-1]
        assert last.startswith("pyc: error: ") and words in last
    assert snapshot(folder) == before


def test_a_path_in_the_recipe_is_checked_alike(folder, capsys):
    cases = {
        "model.yaml": (8, "is the recipe"),
        ".": (8, "folder"),
        "''": (3, "text of 1 to 4096"),
        "checkpoint/model.safetensors": (8, "which is read here"),
    }
    for path, (code, words) in cases.items():
        assert main(["build", "model.yaml", "--set", f"artifact.path={path}"]) == code
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("options", [["build"], ["plan"], ["build", "--check"]])
def test_a_scheme_that_a_target_lacks_is_refused_before_sources_are_hashed(options, folder, capsys, monkeypatch):
    """Of a build without calibration, too, and by what says what a build would do."""
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    monkeypatch.setattr(SourceFiles, "digest", lambda self, path: pytest.fail(f"{path} was hashed"))
    before = snapshot(folder)
    command, *more = options
    assert main([command, "model.yaml", *more, "--set", TENSORRT, "--set", "quantize.scheme=int8-g32"]) == 7
    printed = capsys.readouterr()
    assert "target tensorrt: " in printed.err and "int8-g32 cannot be expressed" in printed.err
    assert (printed.out, snapshot(folder)) == ("", before)


WORK = {
    "an algorithm": "quantize.algorithm=yaqa",
    "a goal": "quantize={bits_per_weight: 12}",
}
TENSORRT = "targets=[{backend: tensorrt}]"
REFUSED = {
    "a foreign file": (["-o", "notes.txt"], 8, "is not a pyc artifact"),
    "a source": (["-o", "checkpoint/config.json", "--force"], 8, "which is read here"),
    "the text": (["--set", "quantize.calibration.text=long.txt", "-o", "long.txt", "--force"], 8, "calibration text"),
    "the key": (["--key", "ci.key", "-o", "ci.key", "--force"], 8, "is the signing key, which is read here"),
    "a short text of a gate": (["--set", "quality={text: short.txt, max_kl: 0.1}"], 3, "quality.text: short.txt: "),
    "no text of a gate": (["--set", "quality={text: none.txt, max_kl: 0.1}"], 3, "quality.text: none.txt: "),
    "another kind of limit": (["--set", "quality={text: long.txt, min_cosine: 0.9}"], 3, "quality.min_cosine: "),
    "a scheme that a target lacks": (
        ["--set", TENSORRT, "--set", "quantize.overrides=[{match: 're:.*o_proj', scheme: fp8-e5m2}]"],
        7,
        "e5m2",
    ),
}


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_refused_before_anything_is_calibrated_or_measured(work, case, folder, capsys, monkeypatch):
    for module, name in ((build_calibration, "calibrate"), (build_module, "mix_schemes")):
        monkeypatch.setattr(module, name, lambda *arguments, **options: pytest.fail("work began"))
    options, code, words = REFUSED[case]
    Path("notes.txt").write_text("mine")
    Path("short.txt").write_text("a")
    Path("long.txt").write_text("def add(a, b):\n    return a + b\n" * 400)
    assert main(["keygen", "-o", "ci.key"]) == 0
    capsys.readouterr()
    before = snapshot(folder)
    assert main(["build", "model.yaml", "--set", WORK[work], *options]) == code
    assert words in capsys.readouterr().err
    assert snapshot(folder) == before


def test_the_signing_key_is_not_replaced(folder, capsys):
    assert main(["keygen", "-o", "ci.key"]) == 0
    before = Path("ci.key").read_bytes()
    capsys.readouterr()
    assert main(["build", "model.yaml", "--key", "ci.key", "-o", "ci.key", "--force"]) == 8
    assert "ci.key: is the signing key, which is read here" in capsys.readouterr().err
    assert Path("ci.key").read_bytes() == before


@pytest.mark.slow
def test_force_and_artifacts_are_replaced(tiny_checkpoint, tmp_path, capsys):
    recipe, target = tmp_path / "model.yaml", tmp_path / "notes.txt"
    recipe.write_text(f"model: {tiny_checkpoint('llama')}\n{SMALL}")
    target.write_text("mine")
    assert main(["build", str(recipe), "-o", str(target), "--force"]) == 0
    assert main(["build", str(recipe), "-o", str(target)]) == 0
    long = tmp_path / ("x" * 250)
    assert main(["build", str(recipe), "-o", str(long)]) == 0
    assert long.read_bytes() == target.read_bytes()
