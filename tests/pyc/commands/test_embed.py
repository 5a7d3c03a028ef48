"""pyc embed: vectors as JSON lines and as a .npy file."""

import numpy as np
from running_models import json_lines

from pyc.runtime.model import load

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


def test_texts_or_a_file(pyc, encoder_artifact, tmp_path):
    assert pyc("embed", encoder_artifact)[0] == 2
    file = tmp_path / "texts.txt"
    file.write_text("a\n")
    assert pyc("embed", encoder_artifact, "a", "--file", file)[0] == 2
    file.write_bytes(b"\xff")
    code, _, err = pyc("embed", encoder_artifact, "--file", file)
    assert code == 2
    assert "not UTF-8" in err


def test_a_decoder_does_not_embed(pyc, decoder_artifact):
    code, out, err = pyc("embed", decoder_artifact, "a")
    assert (code, out) == (9, "")
    assert "use generate" in err
