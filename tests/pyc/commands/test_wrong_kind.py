"""What newcomers hand to the wrong command, and what the command answers: one line, with the command to type."""

from pathlib import Path

import pytest


@pytest.fixture
def files(make_artifact, tiny_checkpoint, tmp_path, monkeypatch):
    """model.pyca, model.yaml and a checkpoint's folder, in the current folder."""
    make_artifact()
    (tmp_path / "checkpoint").symlink_to(tiny_checkpoint("llama"))
    (tmp_path / "lora").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text("{}")
    (tmp_path / "model.yaml").write_text("model: ./checkpoint\n")
    monkeypatch.chdir(tmp_path)


CASES = [
    *[
        ([*command, name], 8, words)
        for command in (["run", "-p", "x"], ["verify"], ["inspect"], ["bench"])
        for name, words in (
            ("model.yaml", "compile it first: pyc build model.yaml"),
            ("checkpoint", "compile it first: pyc build checkpoint"),
            ("checkpoint/model.safetensors", "pyc build checkpoint"),
        )
    ],
    *[([command, "model.pyca"], 3, "run it with: pyc run model.pyca") for command in ("build", "plan")],
    *[([command, "checkpoint/model.safetensors"], 3, "pyc build checkpoint") for command in ("build", "plan")],
    *[([command, "lora"], 3, "pyc init CHECKPOINT --adapter lora") for command in ("build", "plan")],
    *[([command, "empty"], 3, "give a checkpoint's folder or a model.yaml") for command in ("build", "plan")],
    (["init", "-o", "new.yaml", "model.pyca"], 4, "run it with: pyc run model.pyca"),
    (["init", "-o", "new.yaml", "model.yaml"], 4, "compile it first: pyc build model.yaml"),
    (["init", "-o", "new.yaml", "checkpoint/model.safetensors"], 4, "pyc build checkpoint"),
]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("arguments", "code", "words"), CASES, ids=str)
def test_the_answer_says_what_to_type(arguments, code, words, pyc):
    found, out, err = pyc(*arguments)
    assert (found, out) == (code, "")
    assert words in err
    assert err.startswith("pyc: error: ") and err.count("\n") == 1
    assert Path("model.yaml").read_text() == "model: ./checkpoint\n"


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("biuld", "Did you mean 'build'?"),
        ("BUILD", "Did you mean 'build'?"),
        ("frobnicate", "`pyc --help` lists the commands."),
        ("verfy", "Did you mean 'verify'?"),
        ("model.pyca", "Did you mean 'pyc run model.pyca'?"),
        ("model.yaml", "Did you mean 'pyc build model.yaml'?"),
        ("", "`pyc --help` lists the commands."),
    ],
)
def test_an_unknown_command(word, words, pyc):
    code, out, err = pyc(word)
    assert (code, out) == (2, "")
    assert words in err


def test_an_unknown_option(pyc):
    code, _, err = pyc("build", "model.yaml", "--outptu", "x")
    assert code == 2
    assert "--output" in err
