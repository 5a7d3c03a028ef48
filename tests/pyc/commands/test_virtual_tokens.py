"""Artifacts with virtual tokens on the command line: what inspect says, what eval takes, what is not exported."""

import json

import pytest

from pyc.passes.driver.build import build

TOKENS = 6
ONNX = {"shapes": {"tokens": [1, 16], "logits": [1, 16]}, "targets": [{"backend": "onnx"}]}
CARRIED = "keys and values in front of every sequence, for which exported models have no place"


@pytest.fixture(scope="module")
def recipe(tiny_checkpoint, tiny_adapter, tmp_path_factory):
    checkpoint = tiny_checkpoint("llama")
    adapter = tiny_adapter(checkpoint, "prompt_tuning", num_virtual_tokens=TOKENS, task_type="CAUSAL_LM")
    path = tmp_path_factory.mktemp("virtual") / "tuned.yaml"
    path.write_text(json.dumps({"model": str(checkpoint), "adapters": [{"path": str(adapter)}], **ONNX}))
    return path


@pytest.fixture
def artifact(recipe, tmp_path, key_home):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    return build(recipe, output=tmp_path / "tuned.pyca").path


def test_inspect(artifact, pyc):
    lines = pyc("inspect", artifact)[1].splitlines()
    assert f"context      {64 - TOKENS} tokens behind {TOKENS} virtual ones, 4 sequences at a time" in lines
    assert [line for line in lines if line.endswith(f"(prompt tuning, {TOKENS} tokens)")]
    document = json.loads(pyc("inspect", artifact, "--json")[1])
    assert "kv_prefix" in json.dumps(document)
    shape = [2, 2, 2, TOKENS, 12]
    assert f"tensor      kv_prefix  f32 {shape}" in pyc("inspect", artifact, "--tensors")[1].splitlines()


def test_windows_of_an_evaluation_are_what_is_left(artifact, recipe, tmp_path, pyc):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat; the dog sat on the log\n" * 20)
    code, out, err = pyc("eval", artifact, "--text", text, "--json")
    assert code == 0, err
    assert json.loads(out)["text"]["context"] == 64 - TOKENS
    code, _, err = pyc("eval", artifact, "--text", text, "--context", 60)
    assert (code, f"exceeds the {64 - TOKENS} tokens that it was compiled for" in err) == (9, True), err
    code, out, err = pyc("bench", artifact, "-r", 1, "--json")
    assert code == 0, err


@pytest.mark.parametrize("form", ["onnx", "hf", "torch"])
def test_no_export_has_a_place_for_them(form, artifact, recipe, tmp_path, pyc):
    for source, expected in ((artifact, 8), (recipe, 5)):
        code, _, err = pyc("export", source, tmp_path / "out", "--to", form)
        assert (code, CARRIED in err) == (expected, True), err
        assert not (tmp_path / "out").exists()


def test_a_recipe_leaves_them_room(tiny_checkpoint, tiny_adapter, tmp_path, pyc):
    checkpoint = tiny_checkpoint("llama")
    adapter = tiny_adapter(checkpoint, "p_tuning", num_virtual_tokens=TOKENS, task_type="CAUSAL_LM")
    path = tmp_path / "tuned.yaml"
    code, _, err = pyc("init", checkpoint, "--adapter", adapter, "-o", path)
    assert code == 0, err
    assert f"context: {64 - TOKENS}" in path.read_text()
    assert pyc("plan", path)[0] == 0
