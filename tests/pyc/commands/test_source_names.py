"""Names of folders and files that no artifact can record are refused before the work, with what to do."""

import json
import shutil

import pytest

from pyc.passes.driver import build_calibration
from pyc.passes.driver.emit_programs import ProgramCompiler

LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
TEXT = "the cat sat on the mat; the dog sat on the log\n" * 200


@pytest.fixture
def no_work(monkeypatch):
    """Nothing is calibrated or compiled."""
    monkeypatch.setattr(build_calibration, "calibrate", lambda *arguments: pytest.fail("work began"))
    monkeypatch.setattr(ProgramCompiler, "__init__", lambda *arguments: pytest.fail("work began"))


def test_the_folder_of_an_adapter(tiny_checkpoint, tiny_adapter, tmp_path, no_work, pyc):
    checkpoint = tiny_checkpoint("llama")
    odd = tmp_path / r"l\x"
    shutil.copytree(tiny_adapter(checkpoint, "lora", **LORA), odd)
    (tmp_path / "link").symlink_to(odd)
    recipe = tmp_path / "model.yaml"
    for given in (odd, tmp_path / "link"):
        recipe.write_text(json.dumps({"model": str(checkpoint), "adapters": [{"path": str(given)}]}))
        for command in (
            ("init", checkpoint, "--adapter", given, "-o", tmp_path / "new.yaml"),
            ("plan", recipe),
            ("build", recipe, "-o", tmp_path / "m.pyca"),
        ):
            code, _, err = pyc(*command)
            assert (code, r"'l\\x' is no plain name" in err, "rename the folder itself" in err) == (5, True, True), err
            assert "hashing" not in err
    odd.rename(tmp_path / "l\u00e4 x'[1]")
    recipe.write_text(json.dumps({"model": str(checkpoint), "adapters": [{"path": "l\u00e4 x'[1]"}]}))
    assert pyc("plan", recipe)[0] == 0, "any other character may be in one"


@pytest.mark.parametrize(("key", "algorithm"), [("text", "awq"), ("text", "gptq"), ("imatrix", "imatrix")])
def test_the_files_of_a_calibration(key, algorithm, tiny_checkpoint, tmp_path, no_work, pyc):
    (tmp_path / r"a\b").write_text(TEXT)
    (tmp_path / "link").symlink_to(tmp_path / r"a\b")
    recipe = tmp_path / "model.yaml"
    for given, is_refused in ((r"a\b", True), ("link", False)):
        calibration = {key: given, **({"tokens": 256, "window": 32} if key == "text" else {})}
        quantize = {"scheme": "int8", "algorithm": algorithm, "calibration": calibration}
        recipe.write_text(json.dumps({"model": str(tiny_checkpoint("llama")), "quantize": quantize}))
        code, _, err = pyc("plan", recipe)
        assert ("is no plain one" in err and "make a link to it" in err) == is_refused, err
        assert code == (6 if is_refused or key == "imatrix" else 0), err
    recipe.write_text(recipe.read_text().replace('"link"', r'"a\\b"'))
    code, _, err = pyc("build", recipe, "-o", tmp_path / "m.pyca")
    assert (code, "is no plain one" in err, "hashing" in err) == (6, True, False), err
