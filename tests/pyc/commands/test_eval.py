"""pyc eval: what it prints of small artifacts, and what it says of texts and references that will not do."""

import json
import math
import os
import sys
import tempfile
from pathlib import Path

import jsonschema
import pytest
from built_models import recipe_for
from terminals import Terminal

from pyc.commands.eval_text import with_error
from pyc.commands.result_schemas import schema_of
from pyc.passes.driver import emit_programs
from pyc.passes.driver.build import build
from pyc.runtime.measure.quality import Estimate

TEXT = "the quick brown fox jumps over the lazy dog, and then it does it again.\n" * 8
CONTEXT = ("--context", 16)


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "held out.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def coarse(tiny_checkpoint, key_home, tmp_path, decoder_artifact) -> Path:
    """The model of `decoder_artifact` in int8."""
    recipe = recipe_for(tiny_checkpoint("llama"), quantize={"scheme": "int8"})
    return build(recipe, output=tmp_path / "coarse.pyca").path


def test_the_screen_of_one_artifact(pyc, decoder_artifact, text):
    code, out, err = pyc("eval", decoder_artifact, "--text", text, *CONTEXT)
    assert (code, err) == (0, "")
    first, gap, named, perplexity, speed = out.splitlines()
    assert first.startswith("held out.txt: ") and first.endswith(" scored") and gap == ""
    assert named.startswith(f"{decoder_artifact.name}: llama, ")
    assert perplexity.startswith("perplexity ") and " \u00b1 " in perplexity
    assert speed.startswith("speed ") and "decoding" in speed
    assert max(map(len, out.splitlines())) <= 120


def test_an_artifact_beside_itself(pyc, decoder_artifact, text):
    code, out, _ = pyc("eval", decoder_artifact, "--text", text, "--reference", decoder_artifact, *CONTEXT, "--json")
    document = json.loads(out)
    divergence = document["artifacts"][0]["divergence"]
    assert code == 0
    assert (divergence["kl"]["value"], divergence["same_top"]["value"]) == (0, 1)
    assert divergence["perplexity_difference"] == {"value": 0, "error": 0}
    jsonschema.validate(document, json.loads(schema_of("eval")))
    alone = pyc("eval", decoder_artifact, "--text", text, *CONTEXT, "--json")[1]
    jsonschema.validate(json.loads(alone), json.loads(schema_of("eval")))


@pytest.mark.slow
def test_a_table_of_several_beside_their_checkpoint(
    pyc, decoder_artifact, coarse, tiny_checkpoint, text, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    arguments = ("eval", decoder_artifact, coarse, "--text", text, "--reference", tiny_checkpoint("llama"), *CONTEXT)
    code, out, err = pyc(*arguments)
    lines = out.splitlines()
    assert code == 0
    assert lines[1].endswith(", compiled without rounding")
    assert lines[3].split()[:4] == ["artifact", "size", "bits", "PPL"]
    assert [line.split()[0] for line in lines[4:6]] == [decoder_artifact.name, "coarse.pyca"]
    assert "writing weights" in err, "the reference is built"
    document = json.loads(pyc(*arguments, "--json", "--no-speed")[1])
    plain, rounded = (artifact["divergence"]["kl"]["value"] for artifact in document["artifacts"])
    assert 0 <= plain < 1e-5 < rounded, "an unquantized build differs in the cache alone"
    assert document["reference"]["what"] == "checkpoint"
    assert [artifact["speed"]["decode_tokens_s"] for artifact in document["artifacts"]] == [None, None]
    assert not list(tmp_path.glob("pyc-eval-*"))


@pytest.mark.slow
@pytest.mark.parametrize("cut", [16, 40])
def test_the_reference_cuts_texts_where_the_artifact_does(cut, pyc, tiny_copy, key_home, tmp_path, caplog):
    """Be it below what its programs are compiled for, or beyond what the checkpoint says."""
    checkpoint = tiny_copy("bert", pooling="mean")
    (checkpoint / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 30}))
    shapes = {"tokens": [40], "context": 40, "text_tokens": cut}
    artifact = build(recipe_for(checkpoint, shapes=shapes), output=tmp_path / "cut.pyca").path
    texts = tmp_path / "texts"
    texts.write_text("".join(f"{word} the cat sat on the mat and then some more words {word * 9}\n" for word in "abcd"))
    caplog.clear()
    code, out, err = pyc("eval", artifact, "--text", texts, "--reference", checkpoint, "--no-speed", "--json")
    assert code == 0, err
    assert json.loads(out)["artifacts"][0]["vectors"]["cosine"]["value"] == pytest.approx(1, abs=1e-3)
    assert "recipe" not in caplog.text


def test_the_texts_of_an_encoder_are_those_of_embed(pyc, encoder_artifact, tmp_path):
    file = tmp_path / "texts"
    file.write_bytes("the cat\u2028sat\r\nthe\rdog\nthe log\x0con the mat\nfour\x1cth\n".encode())
    vectors = pyc("embed", encoder_artifact, "--file", file)[1].splitlines()
    out = pyc("eval", encoder_artifact, "--text", file, "--reference", encoder_artifact)[1]
    assert (len(vectors), out.partition(" texts of")[0]) == (4, "texts: 4")


def test_an_encoder_beside_its_checkpoint(pyc, encoder_artifact, tiny_checkpoint, text, tmp_path):
    texts = tmp_path / "texts"
    texts.write_text("the cat\n\nthe dog\nthe dog sat on the log\nlog\n")
    code, out, _ = pyc("eval", encoder_artifact, "--text", texts, "--reference", tiny_checkpoint("bert"))
    assert code == 0
    assert out.startswith("texts: 4 texts of ")
    labels = [line[:18].strip() for line in out.splitlines()[4:]]
    assert labels == ["cosine", "rank correlation", "speed"]
    document = json.loads(pyc("eval", encoder_artifact, "--text", texts, "--reference", encoder_artifact, "--json")[1])
    jsonschema.validate(document, json.loads(schema_of("eval")))
    assert document["artifacts"][0]["vectors"]["rank_correlation"] == pytest.approx(1)
    code, out, err = pyc("eval", encoder_artifact, "--text", texts)
    assert (code, out) == (9, "")
    assert "is an encoder, whose vectors say nothing alone; compare them with --reference CHECKPOINT" in err


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"", 9, "the text: it is empty"),
        (b" \n", 9, "the text: it is empty"),
        (b"the fox", 9, "expected at least 16, one window; give a longer text, or a smaller --context"),
        (TEXT.encode("utf-16"), 2, "not UTF-8 text at byte 0"),
        (b"the fox \xff" * 99, 2, "not UTF-8 text at byte 8"),
    ],
)
def test_texts_that_will_not_do(pyc, decoder_artifact, tmp_path, content, code, says):
    path = tmp_path / "text"
    path.write_bytes(content)
    found, out, err = pyc("eval", decoder_artifact, "--text", path, *CONTEXT)
    assert (found, out) == (code, "")
    assert says in err
    assert "Traceback" not in err


def test_what_does_not_go_together(pyc, decoder_artifact, encoder_artifact, text, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for arguments, code, says in (
        ((decoder_artifact, "--context", 4096), 9, "--context 4096 exceeds the 64 tokens that it was compiled for"),
        ((decoder_artifact, "--context", 2), 2, "--context"),
        ((decoder_artifact, encoder_artifact, "--reference", decoder_artifact), 9, "got a model of the kind encoder"),
        ((decoder_artifact, "--reference", encoder_artifact), 9, "got a model of the kind encoder, expected decoder"),
        ((decoder_artifact, "--reference", tmp_path / "absent.yaml"), 3, "absent.yaml: no such file"),
        ((decoder_artifact, "--reference", folder), 3, "folder"),
        ((tmp_path / "absent.pyca",), 10, "absent.pyca: cannot be opened"),
        ((text,), 8, "not a pyc artifact"),
        ((), 2, "ARTIFACT"),
    ):
        found, out, err = pyc("eval", *arguments, "--text", text)
        assert (found, out) == (code, ""), (arguments, err)
        assert says in err, arguments


def test_a_reference_that_is_not_in_the_cache_names_a_command_that_fetches_it(
    pyc, decoder_artifact, text, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    code, out, err = pyc("eval", decoder_artifact, "--text", text, "--reference", "org/nothing", *CONTEXT)
    assert (code, out) == (4, "")
    assert f"no model of this name in the cache {tmp_path}; pyc init, build and attach fetch it with --download" in err


def test_a_reference_without_compilers_is_refused_before_an_artifact_is_loaded(
    pyc, decoder_artifact, tiny_checkpoint, text, monkeypatch
):
    monkeypatch.setattr(emit_programs, "COMPILERS", ("absent-compiler",))
    monkeypatch.setattr("pyc.runtime.model.load", lambda *given, **more: pytest.fail("an artifact was loaded"))
    code, _, err = pyc("eval", decoder_artifact, "--text", text, "--reference", tiny_checkpoint("llama"), *CONTEXT)
    assert (code, "compared with, and absent-compiler is not installed; give an artifact" in err) == (69, True), err


def test_a_page_never_replaces_the_reference(pyc, decoder_artifact, tiny_copy, text, tmp_path):
    checkpoint, artifact, recipe = tiny_copy(), tmp_path / "reference.pyca", tmp_path / "model.yaml"
    artifact.write_bytes(decoder_artifact.read_bytes())
    recipe.write_text(f"model: {checkpoint}\n")
    for reference, page in (
        (artifact, artifact),
        (checkpoint, checkpoint / "config.json"),
        (recipe, recipe),
        (recipe, checkpoint / "model.safetensors"),
    ):
        before = page.read_bytes()
        arguments = ("--text", text, "--reference", reference, "--html", page, "--force")
        code, out, err = pyc("eval", decoder_artifact, *arguments, *CONTEXT)
        assert (code, out) == (8, "")
        assert "is a file of this evaluation, which is read here" in err
        assert page.read_bytes() == before


def test_a_text_whose_name_is_no_text(pyc, decoder_artifact, text, tmp_path):
    odd = tmp_path / "odd\udcff.txt"
    odd.write_bytes(text.read_bytes())
    code, out, _ = pyc("eval", decoder_artifact, "--text", odd, *CONTEXT, "--json")
    assert (code, json.loads(out)["text"]["name"]) == (0, r"odd\udcff.txt")


def test_figures_of_any_size_are_short():
    assert with_error(Estimate(math.exp(600), math.exp(600))) == "3.773e+260 ± 3.8e+260"
    assert with_error(Estimate(263.0, 1e-15)) == "263"
    assert with_error(Estimate(16.804, 0.49)) == "16.80 ± 0.49"


def test_a_text_from_standard_input(pyc, decoder_artifact, text, monkeypatch):
    with text.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        code, out, _ = pyc("eval", decoder_artifact, "--text", "-", *CONTEXT, "--tokens", 33, "--no-speed")
    assert code == 0
    assert out.startswith("standard input: ") and "2 windows of 16, 14 scored" in out


@pytest.mark.slow
def test_a_terminal_sees_how_far_it_is_and_control_c_leaves_nothing(decoder_artifact, text, tmp_path):
    text.write_text(TEXT * 2000)
    command = [sys.executable, "-m", "pyc", "eval", str(decoder_artifact), "--text", str(text), *map(str, CONTEXT)]
    with Terminal(command, {**os.environ, "TMPDIR": str(tmp_path), "TERM": "xterm"}) as terminal:
        terminal.expect("scoring windows: 1 of ")
        terminal.expect(" s left")
        terminal.interrupt()
        assert terminal.wait() == 130
        assert "Traceback" not in terminal.shown
        assert "perplexity" not in terminal.shown
    assert not list(tmp_path.glob("pyc-*"))


def test_an_artifact_in_the_place_of_the_text(pyc, decoder_artifact, text):
    code, out, err = pyc("eval", text, "--text", decoder_artifact)
    assert (code, out) == (2, "") and f"--text {decoder_artifact}: this is an artifact; name it without --text" in err


def test_a_page_appears_beside_the_screen_and_replaces_no_other_file(pyc, decoder_artifact, text, tmp_path):
    page = tmp_path / "page.html"
    arguments = ("eval", decoder_artifact, "--text", text, "--reference", decoder_artifact, *CONTEXT, "--html", page)
    code, out, _ = pyc(*arguments)
    assert (code, out.count("perplexity")) == (0, 1)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert pyc(*arguments)[0] == 0, "a page is replaced"
    for foreign in ("mine", "<!DOCTYPE html>\n<html>mine</html>"):
        page.write_text(foreign)
        code, out, err = pyc(*arguments)
        assert (code, out) == (8, "")
        assert "is there already and is not a page of pyc; choose another name with --html" in err
        assert page.read_text() == foreign
    assert pyc(*arguments, "--force")[0] == 0
    code, _, err = pyc("eval", decoder_artifact, "--text", text, *CONTEXT, "--html", text, "--force")
    assert code == 8 and "is a file of this evaluation, which is read here" in err


def test_of_several_artifacts_the_wrong_one_is_named(pyc, decoder_artifact, tiny_copy, key_home, tmp_path, text):
    folder = tiny_copy("llama")
    (folder / "tokenizer.json").unlink()
    bare = build(recipe_for(folder), output=tmp_path / "bare.pyca").path
    code, out, err = pyc("eval", decoder_artifact, bare, "--text", text, *CONTEXT)
    assert (code, out) == (9, "") and err.endswith("again, or pass token ids in Python\n")
    assert f"pyc: error: {bare}: this artifact has no tokenizer" in err
    code, out, err = pyc("eval", bare, "--text", text, *CONTEXT, "--backend", "onnx")
    assert (code, out) == (9, "") and f"error: {bare}: backend onnx: the artifact has no program for it" in err
