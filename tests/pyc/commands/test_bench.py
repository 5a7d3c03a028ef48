"""pyc bench: the keys that others read, and numbers that fit together."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from built_models import recipe_for

from pyc.passes.driver.build_programs import build_programs
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import list_trusted, remove_trusted
from pyc.runtime.artifact.validate import tensor_bytes


@pytest.mark.slow
def test_decoder(pyc, decoder_artifact):
    sizes = ("--prompt-tokens", 20, "--decode-tokens", 10, "--repeat", 2, "--threads", 1)
    code, out, err = pyc("bench", decoder_artifact, *sizes, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["prompt_tokens"], document["decode_tokens"], document["repeat"]) == (20, 10, 2)
    assert document["load_s"] > 0
    assert document["ttft_s"] > 20 / document["prefill_tok_s"] * 0.5
    assert document["decode_ms"]["p50"] <= document["decode_ms"]["p90"] <= document["decode_ms"]["p99"]
    assert sum(count for _, count in document["decode_histogram"]) == 20
    assert document["decode_histogram"][-1][0] >= document["decode_ms"]["p99"]
    assert document["peak_rss_bytes"] > 10 << 20
    for name in ("ttft_s", "prefill_tok_s", "decode_tok_s"):
        least, most = document["spread"][name]
        assert least <= document[name] <= most
    machine = document["machine"]
    assert machine["threads"] == 1
    assert machine["cores"] >= 1
    assert machine["cpu"]
    assert machine["kernel"].startswith("Linux ")
    assert machine["isa"]
    assert isinstance(machine["features"], list)


def test_defaults_fit_a_small_context(pyc, decoder_artifact):
    document = json.loads(pyc("bench", decoder_artifact, "--repeat", 1, "--json")[1])
    assert (document["prompt_tokens"], document["decode_tokens"]) == (32, 32)


@pytest.mark.slow
def test_the_table_has_the_units_of_llama_bench(pyc, decoder_artifact):
    sizes = ("-p", 4, "-n", 3, "-r", 2, "-t", 1)
    code, out, err = pyc("bench", decoder_artifact, *sizes)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"{decoder_artifact.name}, ") and "thousand parameters, f32" in lines[0]
    assert lines[1].endswith(", 1 thread")
    assert lines[3].split() == ["test", "result", "unit"]
    for name, unit in (("pp4", "t/s"), ("tg3", "t/s"), ("first token", "ms"), ("load", "ms")):
        (line,) = [line for line in lines if line.startswith(name + " ")]
        assert re.fullmatch(rf"{name} +[\d.]+ ± [\d.]+  {unit}", line)
    assert re.search(r"peak memory +\d+  MB", out)
    assert lines[-1] == "median ± standard deviation of 2 runs"
    assert max(map(len, lines)) <= 80


@pytest.mark.slow
def test_every_combination_is_measured(pyc, decoder_artifact, tmp_path):
    other = tmp_path / "other" / decoder_artifact.name  # of two of one name the folders are named, too
    other.parent.mkdir()
    other.write_bytes(decoder_artifact.read_bytes())
    asked = (decoder_artifact, other, "-p", "4,8", "-p", 8, "-n", 2, "-d", "0,16", "-t", "1,2", "-r", 1)
    code, out, err = pyc("bench", *asked, "--json")
    assert (code, err) == (0, "")
    runs = json.loads(out)["runs"]
    keys = [(run["artifact"], run["machine"]["threads"], run["depth_tokens"], run["prompt_tokens"]) for run in runs]
    names = [f"{each.parent.name}/{each.name}" for each in (decoder_artifact, other)]
    assert keys == [(name, t, d, p) for name in names for t in (1, 2) for d in (0, 16) for p in (4, 8)]
    assert all(run["decode_tok_s"] > 0 for run in runs)
    code, out, err = pyc("bench", other, *asked[2:-4], "-t", 2, "-r", 1, "--markdown")
    header, rule, *rows = out.splitlines()
    assert header == "| model | size | params | scheme | variant | threads | test | result | unit |"
    assert rule.count("---") == 9
    assert "\u00b1" not in out  # one run deviates from nothing
    tests = [row.split("|")[7].strip() for row in rows if other.name in row and row.split("|")[6].strip() == "2"]
    pairs = ["pp4", "pp8", "pp4 @ d16", "pp8 @ d16", "tg2", "tg2 @ d16"]
    assert tests[: len(pairs)] == pairs


def test_variants_with_commas_are_several(pyc, decoder_artifact):
    code, out, err = pyc("bench", decoder_artifact, "--isa", "no-such, x86-64", "-n", 2, "-p", 2, "-r", 1)
    assert (code, out) == (9, "")
    assert "no program for 'no-such';" in err


@pytest.mark.slow
def test_a_decoder_beside_an_encoder(pyc, decoder_artifact, encoder_artifact):
    code, out, err = pyc("bench", decoder_artifact, encoder_artifact, "-r", 1, "-p", 4, "-n", 2, "--sentences", 4)
    assert (code, err) == (0, "")
    for words in ("4 sentences", "texts/s", "one sentence", "pp4", decoder_artifact.name, encoder_artifact.name):
        assert words in out


@pytest.mark.slow
def test_peak_memory_is_that_of_one_artifact(pyc, decoder_artifact):
    """Not of what this process, or one that was measured before, has had."""
    ballast = bytearray(200 << 20)
    document = json.loads(pyc("bench", decoder_artifact, "-r", 1, "--json")[1])
    assert 30e6 < document["peak_rss_bytes"] < len(ballast)


@pytest.mark.slow
def test_an_error_of_the_measuring_process_is_reported_as_it_is(pyc, decoder_artifact):
    for key in list_trusted():
        remove_trusted(key.fingerprint)
    code, out, err = pyc("bench", decoder_artifact)
    assert (code, out) == (12, "")
    assert err.startswith(f"pyc: error: {decoder_artifact}: signed by key") and err.count("\n") == 1


@pytest.mark.slow
def test_what_is_replaced_meanwhile_is_not_measured(pyc, decoder_artifact, encoder_artifact, tmp_path, monkeypatch):
    from pyc.commands import bench_worker

    path, measure = tmp_path / "model.pyca", bench_worker.measure_apart
    shutil.copy(decoder_artifact, path)

    def replaced(request):
        shutil.copy(encoder_artifact, tmp_path / "other.pyca")
        os.replace(tmp_path / "other.pyca", path)
        return measure(request)

    monkeypatch.setattr(bench_worker, "measure_apart", replaced)
    code, out, err = pyc("bench", path, "-r", 1)
    assert (code, out) == (8, "")
    assert err == f"pyc: error: {path}: replaced while it was being measured: run pyc bench again\n"


def test_a_measuring_process_that_dies(pyc, decoder_artifact, monkeypatch):
    script = decoder_artifact.parent / "python"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    code, out, err = pyc("bench", decoder_artifact)
    assert (code, out) == (9, "")
    assert "died of SIGKILL; is there enough memory?" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-p", "4,x"), "'x': expected whole numbers with commas between them"),
        (("-p", "0"), "0 is not at least 1"),
        (("-n", str(1 << 40)), "is not at least 1 and below"),
        (("--markdown", "--json"), "--markdown or --json, not both"),
        (("-r", "99999999999999999999"), "is not in the range 1<=x<=10000"),
        (("--isa", "\udcff"), "--isa: not UTF-8 text"),
    ],
)
def test_options_that_make_no_sense(pyc, decoder_artifact, options, words):
    code, out, err = pyc("bench", decoder_artifact, *options)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())


@pytest.mark.slow
def test_programs_without_weights_are_measured_with_random_ones(pyc, key_home, tiny_checkpoint, tmp_path):
    checkpoint = tiny_checkpoint("llama", hidden_size=64, intermediate_size=96)
    recipe = recipe_for(checkpoint, quantize={"scheme": "int4-g32"})
    path = build_programs(recipe, output=tmp_path / "programs.pyca").path
    for command, says in (
        (("bench", path), "RECIPE -o model.pyca, or measure it with random ones: --random-weights\n"),
        (("run", path, "--prompt", "text"), "RECIPE -o model.pyca\n"),
    ):
        code, out, err = pyc(*command)
        assert (code, out) == (8, "")
        assert "has programs and no weights; add those of a checkpoint: pyc attach" in err and err.endswith(says)
    code, out, err = pyc("bench", path, "--random-weights", "-r", 1, "-p", 4, "-n", 3)
    assert (code, err) == (0, "")
    assert out.startswith("programs.pyca, ") and ", int4-g32, random weights" in out.splitlines()[0]
    code, out, err = pyc("bench", path, "--random-weights", "-r", 1, "-p", 4, "-n", 3, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["model"]["weights"] == "random"
    assert document["decode_tok_s"] > 0
    with open_artifact(path) as artifact:
        tensors = artifact.header.tensors
    assert document["model"]["size_bytes"] == sum(tensor_bytes(tensor.dtype, tensor.shape) for tensor in tensors)


@pytest.mark.slow
def test_an_artifact_with_weights_takes_random_ones_too(pyc, decoder_artifact):
    sizes = ("-r", 1, "-p", 4, "-n", 3, "--json")
    document = json.loads(pyc("bench", decoder_artifact, "--random-weights", *sizes)[1])
    assert (document["model"]["weights"], document["decode_tok_s"] > 0) == ("random", True)
    assert json.loads(pyc("bench", decoder_artifact, *sizes)[1])["model"]["weights"] == "own"


@pytest.mark.slow
def test_encoder(pyc, encoder_artifact):
    document = json.loads(pyc("bench", encoder_artifact, "--sentences", 8, "--repeat", 2, "--json")[1])
    assert document["sentences"] == 8
    assert document["sentences_s"] > 0
    assert document["latency_s"] > 0
    assert "ttft_s" not in document


def test_an_encoder_has_no_prompt_and_a_decoder_no_sentences(pyc, encoder_artifact, decoder_artifact):
    code, out, err = pyc("bench", encoder_artifact, "-p", 4)
    assert (code, out) == (2, "")
    assert "is an encoder, which has --sentences" in " ".join(err.split())
    code, _, err = pyc("bench", decoder_artifact, "--sentences", 2)
    assert code == 2 and "is a decoder, which has -p, -n and -d, and no --sentences" in " ".join(err.split())


@pytest.mark.parametrize("sizes", [("--depth", 60, "--decode-tokens", 10), ("-p", 100), ("-n", 65)])
def test_more_than_the_context_is_refused(pyc, decoder_artifact, sizes):
    code, out, err = pyc("bench", decoder_artifact, *sizes)
    assert (code, out) == (9, "")
    assert "exceed the context of 64" in err


def test_a_worker_whose_parent_has_ended_says_nothing():
    command = [sys.executable, "-c", "from pyc.commands.bench_worker import main; main()"]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    worker.stdout.close()
    worker.stdin.write(b"{}")
    worker.stdin.close()
    assert (worker.stderr.read(), worker.wait(60)) == (b"", 0)
    worker.stderr.close()
