"""`pyc eval`, `pyc bench` and `pyc export` of artifacts that lie on another machine."""

import json

import pytest
from built_models import recipe_for, target_of
from range_server import range_server

from pyc.passes.driver.build import build

__all__ = ["range_server"]

TEXT = "the cat sat on the mat; the dog sat on the log\n" * 60


@pytest.fixture
def served(range_server, tiny_checkpoint, tmp_path, key_home, monkeypatch):
    """An artifact of this folder, and its URL."""
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    checkpoint = tiny_checkpoint("llama", hidden_size=64, intermediate_size=96)
    shapes = {"tokens": [1, 16], "logits": [1], "context": 64}
    targets = [*target_of(), {"backend": "onnx"}]
    recipe = recipe_for(checkpoint, quantize={"scheme": "int8"}, shapes=shapes, targets=targets)
    path = build(recipe, output=tmp_path / "m.pyca").path
    range_server.files["/m.pyca"] = path.read_bytes()
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))  # no chunks of it
    return path, f"{range_server.url}/m.pyca"


def test_an_evaluation_is_that_of_the_file(served, pyc):
    path, url = served
    found = []
    for artifact, reference in ((path, path), (f"{url}?token=SECRET", url)):
        arguments = ("--text", "text.txt", "--context", 32, "--reference", reference, "--no-speed", "--json")
        code, out, err = pyc("eval", artifact, *arguments)
        assert code == 0, err
        assert "SECRET" not in out + err
        found.append(json.loads(out)["artifacts"][0])
    there, here = ({name: value for name, value in each.items() if name not in ("name", "speed")} for each in found)
    assert there == here


def test_a_benchmark(served, pyc):
    _, url = served
    code, out, err = pyc("bench", f"{url}?token=SECRET", "-p", 8, "-n", 4, "-r", 1, "--json")
    assert code == 0, err
    assert json.loads(out)["load_s"] > 0
    assert "SECRET" not in out + err
    code, out, err = pyc("bench", f"{url}?token=SECRET", "-p", 800, "-r", 1)
    assert (code, "m.pyca: 800 prompt tokens exceed" in err, "SECRET" in out + err) == (9, True, False), err


def test_an_export_is_that_of_the_file(served, tmp_path, pyc):
    path, url = served
    for form in ("hf", "onnx", "compressed-tensors"):
        for name, source in (("here", path), ("there", f"{url}?token=SECRET")):
            code, out, err = pyc("export", source, f"{form}-{name}", "--to", form)
            assert (code, "SECRET" in out + err) == (0, False), err
        here = {file.name: file.read_bytes() for file in (tmp_path / f"{form}-here").iterdir()}
        there = {file.name: file.read_bytes() for file in (tmp_path / f"{form}-there").iterdir()}
        assert here == there


COMMANDS = {
    "eval": ("eval", "URL", "--text", "text.txt"),
    "reference": ("eval", "FILE", "--text", "text.txt", "--reference", "URL", "--context", "32"),
    "bench": ("bench", "URL", "-r", "1", "-p", "8", "-n", "4"),
    "export": ("export", "URL", "out", "--to", "hf"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_other_machine_gives_is_trusted_no_more_than_a_file(
    command, served, range_server, tmp_path, monkeypatch, pyc
):
    path, url = served
    words = {"URL": url, "FILE": path}
    line = [words.get(word, word) for word in COMMANDS[command]]
    whole = range_server.files["/m.pyca"]
    damaged = bytearray(whole)
    for place in range(len(whole) // 2, len(whole), 997):
        damaged[place] ^= 1
    range_server.files["/m.pyca"] = bytes(damaged)
    assert pyc(*line)[0] == 8
    del range_server.files["/m.pyca"]
    assert pyc(*line)[0] == 10
    range_server.files["/m.pyca"] = whole
    if command != "reference":
        monkeypatch.setenv("PYC_HOME", str(tmp_path / "another_home"))
        assert pyc(*line)[0] == 12
    assert not (tmp_path / "out").exists()
