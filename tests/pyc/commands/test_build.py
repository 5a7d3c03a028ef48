"""pyc build: the artifact, the report, and what a failed build leaves behind."""

import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pyc
from pyc.cli import main
from pyc.passes.driver.build import build, parse
from pyc.passes.driver.build_source import read_source
from pyc.passes.driver.default_recipe import default_recipe
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.keys import parse_public_key
from pyc.runtime.errors import RecipeError

pytestmark = pytest.mark.usefixtures("compiled_once")

SMALL = "shapes: {tokens: [1, 8], logits: [1]}\ntargets: [{isa: [x86-64]}]\nquantize: {scheme: int8}\n"


@pytest.fixture
def recipe(tiny_checkpoint, tmp_path):
    """A recipe that compiles in seconds."""
    path = tmp_path / "tiny.yaml"
    path.write_text(f"model: {tiny_checkpoint('llama')}\n{SMALL}")
    return path


def build_document(capsys, *arguments):
    assert main(["build", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_json(recipe, tmp_path, capsys):
    document = build_document(capsys, recipe)
    path = tmp_path / "tiny.pyca"
    data = path.read_bytes()
    assert document["path"] == str(path)
    assert document["size_bytes"] == len(data)
    assert document["sha256"] == hashlib.sha256(data).hexdigest()
    with open_artifact(path) as artifact:
        header = artifact.header
        assert document["digest"] == f"header:{artifact.prelude.header_sha256.hex()}"
    assert document["tensors"] == len(header.tensors)
    assert sum(use["stored_bytes"] for use in document["codecs"]) == sum(
        c.stored_bytes for c in header.chunks
    )
    assert set(document["scheme_bytes"]) == {"f32", "int8"}
    assert document["elapsed_s"] > 0
    assert document["peak_rss_bytes"] > 1 << 20
    assert len(document["fingerprint"]) == 16
    assert sorted(os.listdir(tmp_path)) == ["tiny.pyca", "tiny.yaml"]


@pytest.mark.slow
def test_the_same_bytes_from_cache_and_workers_and_folder(recipe, tmp_path, monkeypatch, capsys):
    first = build_document(capsys, recipe)
    monkeypatch.chdir("/")
    again = build_document(capsys, recipe, "-o", tmp_path / "again.pyca", "--workers", "1")
    fresh = build_document(capsys, recipe, "-o", tmp_path / "fresh.pyca", "--no-cache", "--workers", "3")
    assert first["sha256"] == again["sha256"] == fresh["sha256"]
    assert (again["cache_misses"], fresh["cache_hits"]) == (0, 0)
    assert again["cache_hits"] == fresh["cache_misses"] > 0


@pytest.mark.slow
def test_the_plan_was_right(recipe, capsys):
    assert main(["plan", str(recipe), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    built = build_document(capsys, recipe)
    assert planned["scheme_bytes"] == built["scheme_bytes"]
    assert len(planned["tensors"]) == built["tensors"]
    assert planned["about_artifact_bytes"] == pytest.approx(built["size_bytes"], rel=0.25)


def test_text_and_plain_progress(recipe, tiny_checkpoint, tmp_path, capsys):
    output = tmp_path / "other.pyca"
    other = tiny_checkpoint("llama", seed=7)  # the same program, but weights that are not in the cache
    capsys.readouterr()
    assert main(["build", str(recipe), "-o", str(output), "--set", f"model={other}"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{output}: ")
    for words in ("sha256 ", "digest      header:", "weights ", "int8", "from the cache"):
        assert words in printed.out
    assert [line for line in printed.err.splitlines() if "signing key" not in line][:4] == [
        "pyc: reading headers",
        "pyc: hashing sources",
        "pyc: writing weights",
        "pyc: compiling programs",
    ]


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("quantise.scheme=int8", 3, "did you mean 'quantize'?"),
        ("quantize.scheme=int4-g32", 6, "not divisible"),
        ("shapes.context=100", 4, "the model serves 1 to 64"),
    ],
)
def test_refused_before_anything_is_written(setting, code, words, recipe, tmp_path, capsys):
    assert main(["build", str(recipe), "--set", setting]) == code
    assert words in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["tiny.yaml"]


def test_a_failure_in_the_middle_leaves_the_old_artifact(tiny_copy, tmp_path, capsys):
    checkpoint = tiny_copy("llama")
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(f"model: {checkpoint}\n{SMALL}")
    old = build_document(capsys, recipe)
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = np.nan
    save_file(weights, checkpoint / "model.safetensors")
    assert main(["build", str(recipe)]) == 4
    assert "model.layers.1.mlp.up_proj.weight" in capsys.readouterr().err
    data = (tmp_path / "tiny.pyca").read_bytes()
    assert hashlib.sha256(data).hexdigest() == old["sha256"]
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "tiny.pyca", "tiny.yaml"]


def test_an_output_that_cannot_be_written(recipe, tmp_path, capsys):
    assert main(["build", str(recipe), "-o", str(tmp_path / "no" / "x.pyca")]) == 8
    assert "does not exist" in capsys.readouterr().err


def test_what_needs_the_scheme_that_init_would_write(tiny_copy, monkeypatch):
    """It is there when the other keys are looked at; a goal chooses it, and then nothing names one."""
    monkeypatch.chdir(tiny_copy("llama").parent)
    found = [
        default_recipe("checkpoint", [f"quantize.{override}"])[0].quantize
        for override in ("algorithm=gptq", "algorithm=imatrix", "bits_per_weight=5")
    ]
    assert [(each.scheme, each.algorithm) for each in found] == [("int8", "gptq"), ("int8", "imatrix"), ("none", "rtn")]
    with pytest.raises(RecipeError, match="remove one of the keys"):
        default_recipe("checkpoint", ["quantize.bits_per_weight=5", "quantize.scheme=int8"])
    with pytest.raises(RecipeError, match="algorithm: got the text 'gpt', expected"):
        default_recipe("checkpoint", ["quantize.algorithm=gpt"])


@pytest.mark.slow
def test_a_checkpoint_is_built_as_init_would(tiny_copy, tmp_path, monkeypatch, capsys):
    tiny_copy("llama").rename(tmp_path / "Tiny-1B")
    monkeypatch.chdir(tmp_path)
    small = ["--set", "targets=[{isa: [x86-64]}]", "--set", "shapes={tokens: [1], logits: [1]}"]
    assert main(["build", "Tiny-1B", *small]) == 0
    printed = capsys.readouterr()
    assert "pyc: Tiny-1B: no recipe given, so the one of `pyc init`: scheme int8 (half the bytes" in printed.err
    assert printed.out.startswith("Tiny-1B.pyca: ")
    assert main(["init", "Tiny-1B"]) == 0
    assert main(["build", "model.yaml", *small]) == 0
    assert Path("model.pyca").read_bytes() == Path("Tiny-1B.pyca").read_bytes()
    assert build("Tiny-1B", overrides=[*small[1::2], "quantize.scheme=none"], output="api.pyca").path.is_file()
    monkeypatch.chdir("Tiny-1B")
    assert main(["build", ".", *small, "--set", "quantize.scheme=none"]) == 0
    printed = capsys.readouterr()
    assert "`pyc init`: scheme none\n" in printed.err
    assert Path("Tiny-1B.pyca").is_file()


@pytest.mark.parametrize(
    ("given", "artifact"),
    [
        ("qwen", "qwen.pyca"),
        ("./qwen/", "qwen.pyca"),
        ("models--org--Tiny-1B/snapshots/1a2b3c", "Tiny-1B.pyca"),
        ("models--org--Tiny-1B/newest/1a2b3c", "Tiny-1B.pyca"),
        ("qwen/.", "qwen.pyca"),
        ("qwen/inner/..", "1a2b3c.pyca"),
    ],
)
def test_a_link_to_a_checkpoint_names_its_artifact(given, artifact, tiny_copy, tmp_path, monkeypatch, capsys):
    """`..` behind a link leads to the folder itself, and the hub's cache has the model's name in a folder above."""
    (tmp_path / "models--org--Tiny-1B" / "snapshots").mkdir(parents=True)
    snapshot = tiny_copy("llama").rename(tmp_path / "models--org--Tiny-1B" / "snapshots" / "1a2b3c")
    monkeypatch.chdir(tmp_path)
    (snapshot / "inner").mkdir()
    Path("models--org--Tiny-1B/newest").symlink_to("snapshots")
    if given.endswith(".."):
        snapshot = snapshot.rename(tmp_path / "1a2b3c")
    Path("qwen").symlink_to(snapshot.relative_to(tmp_path))
    assert main(["build", given, "--check"]) == 1
    assert capsys.readouterr().out == f"{artifact}: not up to date: it is not there\n"


def test_notes_are_logged_where_nobody_is_told_of_progress(tiny_checkpoint, caplog):
    """And not beside: with -v the line would stand there twice."""
    caplog.set_level("INFO", "pyc.passes.build_events")
    told = []
    parse(tiny_checkpoint("llama"), progress=told.append)
    (note,) = [event.note for event in told if event.note]
    assert "no recipe given" in note and not caplog.records
    parse(tiny_checkpoint("llama"))
    assert [record.getMessage() for record in caplog.records] == [note]


def test_a_goal_takes_the_place_of_the_scheme_of_a_checkpoints_recipe(tiny_checkpoint, tmp_path, monkeypatch, capsys):
    checkpoint = str(tiny_checkpoint("llama"))
    monkeypatch.chdir(tmp_path)
    assert main(["plan", checkpoint, "--set", "quantize.bits_per_weight=12", "--set", "targets=[{isa: [x86-64]}]"]) == 0
    assert "the one of `pyc init`, with schemes chosen by bits_per_weight\n" in capsys.readouterr().err
    assert main(["build", checkpoint, "--set", "quantize.size_bytes=1000"]) == 3
    assert "quantize.size_bytes: got 1,000, expected at least" in capsys.readouterr().err
    for other in ("quantize.size_bytes=null", "quantize.activations=f32"):
        assert read_source(checkpoint, [other])[0].quantize.scheme == "int8"
    assert main(["plan", checkpoint, "--set", "quantize.max_kl=1", "--set", "quantize.scheme=int8"]) == 3
    assert "--set quantize.scheme=int8: quantize.scheme: got 'int8', but max_kl chooses" in capsys.readouterr().err


def test_a_key_that_is_made_is_announced_once(recipe, tmp_path, monkeypatch, capsys, caplog):
    caplog.set_level("INFO")
    home = tmp_path / "home"
    monkeypatch.setenv("PYC_HOME", str(home))
    document = build_document(capsys, recipe)
    (tmp_path / "tiny.pyca").unlink()
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "other"))
    assert main(["build", str(recipe)]) == 0
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if "signing key" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"pyc: made the signing key {tmp_path / 'other' / 'keys' / 'default.pem'}, fingerprint ")
    assert "signing key" not in caplog.text
    assert main(["build", str(recipe)]) == 0
    assert "signing key" not in capsys.readouterr().err
    assert document["fingerprint"] not in lines[0]


def test_the_key_of_a_job(recipe, tmp_path, monkeypatch, capfd):
    """A secret of the environment signs, is stored nowhere, and is in no output, log or artifact."""
    home = tmp_path / "home"
    monkeypatch.setenv("PYC_HOME", str(home))
    assert main(["keygen", "-o", str(tmp_path / "ci.key")]) == 0
    public = parse_public_key(capfd.readouterr().out)
    secret = (tmp_path / "ci.key").read_text().splitlines()[1]
    seed = base64.b64decode(secret)[-32:]
    monkeypatch.setenv("PYC_SIGNING_KEY", secret)
    assert main(["-vv", "build", str(recipe), "--set", "artifact.key=other"]) == 0
    printed = capfd.readouterr()
    assert public.fingerprint in printed.out
    data = (tmp_path / "tiny.pyca").read_bytes()
    for form in (secret.encode(), seed, seed.hex().encode(), base64.b64encode(seed)):
        assert form not in data + printed.out.encode() + printed.err.encode()
    assert not home.exists()
    assert main(["verify", str(tmp_path / "tiny.pyca")]) == 12  # not trusted by having signed
    assert main(["trust", "add", public.text()]) == 0
    assert main(["verify", str(tmp_path / "tiny.pyca")]) == 0
    monkeypatch.delenv("PYC_SIGNING_KEY")
    assert main(["build", str(recipe), "--key", str(tmp_path / "ci.key")]) == 0
    assert (tmp_path / "tiny.pyca").read_bytes() != data  # the recipe is another, and signed by the same key
    assert public.fingerprint in capfd.readouterr().out
    assert not (home / "keys").exists()


def test_a_key_that_is_none_is_refused_before_the_work(recipe, tmp_path, monkeypatch, capsys):
    began = "pyc.passes.driver.build.emit_artifact"
    monkeypatch.setattr(began, lambda *arguments, **options: pytest.fail("work began"))
    monkeypatch.setenv("PYC_SIGNING_KEY", "c2VjcmV0c2VjcmV0")
    assert main(["build", str(recipe)]) == 8
    err = capsys.readouterr().err
    assert "$PYC_SIGNING_KEY: not an ed25519 key" in err
    assert "c2VjcmV0" not in err


def test_a_key_that_is_none_is_refused_before_a_calibration(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("pyc.passes.driver.build.calibration", lambda *arguments: pytest.fail("it calibrated"))
    key = tmp_path / "key.pem"
    key.write_text("nothing")
    key.chmod(0o644)
    for arguments, message in ((("--key", str(key)), "that others may read"), ((), "is set, but empty")):
        monkeypatch.setenv("PYC_SIGNING_KEY", "")
        assert main(["build", str(recipe), *arguments]) == 8
        assert message in capsys.readouterr().err


def test_no_key_is_made_for_a_build_that_fails(recipe, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "new home"))
    assert main(["build", str(recipe), "--set", "shapes.context=999999"]) == 4
    assert not (tmp_path / "new home").exists()


@pytest.mark.slow
def test_a_full_standard_error_changes_nothing(recipe, tmp_path):
    """Nor a closed one: the verdict is the exit code, and the artifact is there."""
    target = tmp_path / "tiny.pyca"
    for redirection in ("2>/dev/full", "2>&-"):
        command = f"exec '{sys.executable}' -m pyc build '{recipe}' --json {redirection}"
        result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        assert result.returncode == 0
        assert json.loads(result.stdout)["sha256"] == hashlib.sha256(target.read_bytes()).hexdigest()
        target.unlink()


@pytest.mark.parametrize("stage", ["ingest", "lower", "compile"])
def test_a_progress_that_changes_the_folder_moves_nothing(recipe, tmp_path, monkeypatch, stage):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)

    def progress(event):
        if event.stage == stage:
            os.chdir(elsewhere)

    result = pyc.build(recipe.name, output="here.pyca", progress=progress)
    assert result.path == tmp_path / "here.pyca"
    assert (tmp_path / "here.pyca").exists()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("stage", ["ingest", "emit", "done"])
def test_a_stop_iteration_of_progress_arrives_as_it_is(recipe, stage):
    reason = StopIteration("enough")

    def progress(event):
        if event.stage == stage:
            raise reason

    with pytest.raises(StopIteration) as caught:
        pyc.build(recipe, progress=progress)
    assert caught.value is reason


def test_from_python(recipe, capsys):
    events = []
    result = pyc.build(recipe, progress=events.append)
    assert capsys.readouterr().err == ""
    assert [event.stage for event in events][-1] == "done"
    assert all(isinstance(event, pyc.BuildEvent) for event in events)
    assert pyc.build(str(recipe), progress=True).sha256 == result.sha256
    assert capsys.readouterr().err.startswith("pyc: reading headers\n")
    pyc.build(recipe, progress=None)
    assert capsys.readouterr().err == ""
    text = repr(result)
    assert text.startswith(f"BuildResult('{result.path}', ") and len(text) < 400
    with pytest.raises(pyc.RecipeError):
        pyc.build({"model": 3})
    with pytest.raises(pyc.ArtifactError):
        pyc.build(recipe, output="/dev/null")


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ("nothing.yaml", 3, "no such file"),
        ("nothing", 3, "no such file"),
        ("", 3, "expected a recipe, a checkpoint's folder or a hub id"),
        ("org/nothing", 4, "pyc init, build and attach fetch it with --download"),
        ("empty", 3, "is a folder"),
        ("x" * 300, 3, "File name too long"),
        ("x" * 5000 + ".yaml", 3, "File name too long"),
    ],
)
def test_what_is_neither_recipe_nor_checkpoint(given, code, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["build", given]) == code
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_workers_must_be_a_count(count, recipe, capsys):
    assert main(["build", str(recipe), "--workers", count]) == 2


@pytest.mark.slow
def test_a_gate_that_is_not_passed_prints_the_report(recipe, tmp_path, capfd):
    (tmp_path / "held.txt").write_text("the quick brown fox jumps over the lazy dog, again and again.\n" * 8)
    gate = f"quality={{text: {tmp_path}/held.txt, max_ppl: 1, reference: none, context: 16}}"
    assert main(["build", str(recipe), "--set", gate]) == 13
    captured = capfd.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].startswith("held.txt: ") and lines[2].startswith("tiny.pyca: ")
    assert lines[-1].startswith("max_ppl ") and "EXCEEDED" in lines[-1] and lines[-1].endswith("expected <= 1")
    assert "pyc: evaluating" in captured.err and "pyc: error: quality: max_ppl 1: got " in captured.err
    assert main(["build", str(recipe), "--set", gate, "--json"]) == 13
    assert json.loads(capfd.readouterr().out)["limits"][0]["name"] == "max_ppl"
    assert main(["build", str(recipe), "--set", gate, "--set", "quality.max_ppl=1e6"]) == 0
    assert "quality     max_ppl 1e+06: " in capfd.readouterr().out
    assert main(["plan", str(recipe), "--set", gate]) == 0
    assert f"gate        the build ends with a run over {tmp_path}/held.txt: max_ppl 1" in capfd.readouterr().out
