"""pyc embed: vectors as JSON and as a .npy file, which replaces nothing of somebody else's."""

import errno
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from built_models import recipe_for
from running_models import CONTEXT, json_lines
from terminals import Terminal

from pyc.passes.driver.build import build
from pyc.runtime.errors import RunError
from pyc.runtime.model import Model, load

TEXTS = ["the cat", "", "the dog sat on the log"]


def test_json_lines(pyc, encoder_artifact):
    code, out, err = pyc("embed", encoder_artifact, *TEXTS)
    with load(encoder_artifact) as model:
        expected = model.embed(TEXTS)
    assert (code, err) == (0, "")
    lines = json_lines(out)
    assert [line["index"] for line in lines] == [0, 1, 2]
    np.testing.assert_array_equal(np.array([line["embedding"] for line in lines], dtype=np.float32), expected)


def test_a_file_of_lines_to_npy(pyc, encoder_artifact, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    target = tmp_path / "vectors.npy"
    code, out, _ = pyc("embed", encoder_artifact, "--file", file, "--npy", target)
    with load(encoder_artifact) as model:
        expected = model.embed(TEXTS)
    assert (code, out) == (0, "")
    np.testing.assert_array_equal(np.load(target), expected)


def test_lines_of_standard_input(pyc, encoder_artifact, tmp_path, monkeypatch):
    expected = pyc("embed", encoder_artifact, *TEXTS)[1]
    file = tmp_path / "texts.txt"
    file.write_bytes("\r\n".join(TEXTS).encode())
    for arguments in ((), ("--file", "-")):
        with file.open() as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert pyc("embed", encoder_artifact, *arguments) == (0, expected, "")
    file.write_bytes("a\u2028b\x0bc\x85d\n".encode())
    assert len(json_lines(pyc("embed", encoder_artifact, "--file", file)[1])) == 1, "only newlines end a line"


def test_the_name_of_a_file_in_place_of_a_text(pyc, encoder_artifact, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat").write_text("the cat\n")
    code, out, err = pyc("embed", encoder_artifact, "cat")
    assert (code, len(json_lines(out))) == (0, 1)
    assert err == "pyc: 'cat' was embedded as a text, and is a file; --file embeds its lines\n"
    for texts in (("cat", "dog"), ("dog",), (".",), ("c\0t",), ("c" * 300,)):
        assert "is a file" not in pyc("embed", encoder_artifact, *texts)[2]


def test_a_file_of_json_lines(pyc, encoder_artifact, tmp_path):
    """As of `pyc run --prompts`."""
    file = tmp_path / "texts.jsonl"
    file.write_text('"the cat"\n{"text": ""}\n{"id": 7, "text": "the dog\\nsat on the log"}\n')
    code, out, err = pyc("embed", encoder_artifact, "--file", file)
    lines = json_lines(out)
    assert (code, err) == (0, "")
    assert [line.pop("id", None) for line in lines] == [None, None, 7]
    assert lines == json_lines(pyc("embed", encoder_artifact, "the cat", "", "the dog\nsat on the log")[1])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("the dog", "not JSON (Expecting value: line 1 column 1 (char 0)); expected a JSON string or {"),
        ("", "it is empty; expected a JSON string"),
        ("[1]", 'expected a JSON string or {"text": "..."}, and "id" beside it if you like'),
        ('{"prompt": "the dog"}', "expected a JSON string or"),
        ('{"text": "a", "title": "b"}', "expected a JSON string or"),
        ('{"text": "a", "text": "b"}', "the name 'text' occurs twice"),
        ('{"text": 1}', "expected a JSON string or"),
        ('{"text": "a", "id": 1.5}', '"id" is neither text nor an integer'),
        ('"\\ud800"', "not UTF-8 text at character 0"),
    ],
)
def test_json_lines_that_are_no_texts(line, says, pyc, encoder_artifact, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text(f'"the cat"\n{line}\n"log"\n')
    code, out, err = pyc("embed", encoder_artifact, "--file", file)
    assert (code, out) == (2, "")
    assert f"{file}: line 2: " in err and says in err


@pytest.mark.parametrize("option", [(), ("--file", "-"), ("--file", "/dev/stdin")])
def test_texts_and_the_artifact_cannot_both_come_from_standard_input(option, pyc):
    code, out, err = pyc("embed", "-", *option)
    assert (code, out) == (2, "") and "the artifact comes from standard input, so give texts, or a file" in err


def test_no_texts(pyc, encoder_artifact, tmp_path):
    target = tmp_path / "vectors.npy"
    assert pyc("embed", encoder_artifact, "--file", "/dev/null") == (0, "", "pyc: there are no texts\n")
    assert pyc("embed", encoder_artifact, "--file", "/dev/null", "--npy", target)[0] == 0
    with load(encoder_artifact) as model:
        assert np.load(target).shape == (0, model.info.hidden_size)


def test_one_json_document_and_texts_that_are_cut(pyc, encoder_artifact):
    long = "x" * 100
    code, out, err = pyc("embed", encoder_artifact, "--json", "the cat", long, "y" * 62, long)
    with load(encoder_artifact) as model:
        expected = model.embed(["the cat", long, "y" * 62, long])
        assert model.count_cut([long, "y" * 62]) == 1
    document = json.loads(out)
    assert (code, document["texts_cut"]) == (0, 2)
    np.testing.assert_array_equal(np.array(document["embeddings"], dtype=np.float32), expected)
    assert err == f"pyc: 2 of 4 texts have more than the {CONTEXT} tokens that the model reads, and were cut\n"


@pytest.mark.parametrize("options", [("--file", "-"), ("a",)])
def test_npy_does_not_replace_standard_input(options, encoder_artifact, tmp_path):
    target = tmp_path / "vectors.npy"
    np.save(target, np.zeros(3))
    before = target.read_bytes()
    command = [sys.executable, "-m", "pyc", "embed", encoder_artifact, *options, "--npy", target, "--force"]
    with open(target, "rb") as standard_input:
        done = subprocess.run(command, stdin=standard_input, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (8, "")
    assert f"{target}: is standard input, which is read here" in done.stderr
    assert target.read_bytes() == before


def test_npy_replaces_npy_files_only(pyc, encoder_artifact, tmp_path):
    target, link = tmp_path / "vectors.npy", tmp_path / "link.npy"
    target.write_text("precious")
    code, out, err = pyc("embed", encoder_artifact, "a", "--npy", target)
    assert (code, out, target.read_text()) == (8, "", "precious")
    assert "is there already and is not a .npy file; choose another name with --npy" in err
    link.symlink_to(target)
    assert pyc("embed", encoder_artifact, "a", "--npy", link)[0] == 8
    assert pyc("embed", encoder_artifact, "a", "--npy", link, "--force")[0] == 0
    assert link.is_symlink()
    assert np.load(target).shape[0] == 1
    assert pyc("embed", encoder_artifact, "a", "b", "--npy", target)[0] == 0
    assert np.load(target).shape[0] == 2
    for place, kind in (("/dev/full", "a device"), (tmp_path, "a folder")):
        code, _, err = pyc("embed", encoder_artifact, "a", "--npy", place, "--force")
        assert (code, f"is {kind}, expected a file name" in err) == (8, True)


def test_npy_replaces_nothing_that_is_read(pyc, encoder_artifact, tmp_path):
    texts, link = tmp_path / "texts.txt", tmp_path / "link.npy"
    texts.write_text("a\n")
    link.symlink_to(encoder_artifact)
    before = encoder_artifact.read_bytes()
    for target, role in ((encoder_artifact, "the artifact"), (link, "the artifact"), (texts, "the file of texts")):
        code, _, err = pyc("embed", encoder_artifact, "--file", texts, "--npy", target, "--force")
        assert (code, f"is {role}, which is read here" in err) == (8, True)
    assert (encoder_artifact.read_bytes(), texts.read_text()) == (before, "a\n")


def test_npy_appears_whole_or_not_at_all(pyc, encoder_artifact, tmp_path, monkeypatch):
    target = tmp_path / "vectors.npy"
    assert pyc("embed", encoder_artifact, "a", "--npy", target)[0] == 0
    before = target.read_bytes()

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        code, out, err = pyc("embed", encoder_artifact, "b", "--npy", target)
    assert (code, out) == (74, "")
    assert "cannot be written: No space left on device" in err
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["vectors.npy"]
    code, _, err = pyc("embed", encoder_artifact, "b", "--npy", tmp_path / "none" / "vectors.npy")
    assert (code, "does not exist" in err) == (8, True)


@pytest.mark.slow
def test_npy_to_standard_output(encoder_artifact):
    command = [sys.executable, "-m", "pyc", "embed", str(encoder_artifact), *TEXTS, "--npy", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    with load(encoder_artifact) as model:
        np.testing.assert_array_equal(np.load(io.BytesIO(done.stdout)), model.embed(TEXTS))


@pytest.mark.slow
def test_a_terminal_is_told_what_it_waits_for_and_gets_no_binary(encoder_artifact):
    command = [sys.executable, "-m", "pyc", "embed", str(encoder_artifact)]
    with Terminal(command, os.environ) as terminal:
        terminal.expect("pyc: reading one text a line from the terminal; end with Ctrl-D\n")
        terminal.send(b"a\nb\n\x04")
        assert terminal.wait() == 0
        assert [line["index"] for line in json_lines(terminal.shown.partition("b\n")[2])] == [0, 1]
    with Terminal([*command, "a", "--npy", "-"], os.environ) as terminal:
        assert terminal.wait() == 2
        assert "takes no binary data here" in terminal.shown


def test_an_error_names_the_batch(pyc, encoder_artifact, tmp_path, monkeypatch):
    def fails(model, texts):
        if "bad" in texts:
            raise RunError("embed: text 0 has 0 tokens")
        return np.zeros((len(texts), model.info.hidden_size), np.float32)

    monkeypatch.setattr(Model, "embed", fails)
    file = tmp_path / "texts.txt"
    file.write_text("a\n" * 512 + "bad\n")
    code, _, err = pyc("embed", encoder_artifact, "--file", file)
    assert (code, "from text 512 on: embed: text 0" in err) == (9, True)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_lines_without_tokens(pooling, pyc, tiny_copy, tmp_path):
    """A tokenizer that adds no special tokens: the mean of no rows is zero, a first row is not there."""
    path = tiny_copy("bert", pooling=pooling)
    tokenizer = path / "tokenizer.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"post_processor": None}))
    artifact = build(recipe_for(path, shapes={"tokens": [64], "batch": [2]}), output=tmp_path / "encoder.pyca").path
    file = tmp_path / "texts.txt"
    file.write_text("a\n" * 513 + "\nb\n")
    code, out, err = pyc("embed", artifact, "--file", file)
    if pooling == "mean":
        assert code == 0, err
        lines = json_lines(out)
        assert len(lines) == 515 and not any(lines[513]["embedding"]) and any(lines[514]["embedding"])
    else:
        said = "embed: text 513 (line 514) has 0 tokens, expected 1 to 64; leave it out"
        assert (code, said in err) == (9, True), err
        code, _, err = pyc("embed", artifact, "a", "")
        assert (code, "embed: text 1 has 0 tokens, expected 1 to 64; leave it out" in err) == (9, True), err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "--file", __file__), "not both"),
        (("a", "--npy", "x.npy", "--json"), "not both"),
        (("a", "--force"), "--force is for --npy"),
        (("\udcff",), "TEXTS: not UTF-8 text"),
        (("--file", "/"), "is a directory"),
    ],
)
def test_refusals(pyc, encoder_artifact, arguments, message):
    code, out, err = pyc("embed", encoder_artifact, *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_texts_that_are_not_utf8(pyc, encoder_artifact, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_bytes(b"\xff")
    code, _, err = pyc("embed", encoder_artifact, "--file", file)
    assert (code, "not UTF-8" in err) == (2, True)


def test_a_decoder_does_not_embed(pyc, decoder_artifact):
    code, out, err = pyc("embed", decoder_artifact, "a")
    assert (code, out) == (9, "")
    assert "use pyc run" in err
