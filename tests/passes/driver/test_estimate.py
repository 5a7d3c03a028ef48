"""Estimates of memory, beside what processes take: a fifth is allowed, which versions of numpy and of the C library may
differ by. PYC_CASES=all (`make test-long`) has more algorithms and texts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from built_models import artifacts, recipe_for
from long_runs import IS_LONG

from pyc.compiler.estimate import build_peak_bytes, tokenizer_bytes, workspace_bytes
from pyc.compiler.ir import Function, Operation, TensorType, Value
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.calibration_memory import calibration_peak_bytes
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.passes.driver.plan import plan

__all__ = ["artifacts"]

RUN = """
import sys
from pyc.runtime.host.machine import peak_rss_bytes
from pyc.runtime.model import load
with load(sys.argv[1], threads=2) as model:
    if model.info.kind == "decoder":
        tokens = int(sys.argv[2])
        ids = [number % 200 + 10 for number in range(tokens - 8)]
        for token in model.generate(ids, max_tokens=8, temperature=0.5, seed=1, ignore_eos=True):
            pass
        model.tokenizer.encode("a text")
    else:
        model.embed(["a text of some words"] * 64)
    print(peak_rss_bytes())
"""


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """Keys and a cache of the test's own."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))


def run_bytes(path, tokens):
    command = [sys.executable, "-P", "-c", RUN, str(path), str(tokens)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return int(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


@pytest.mark.slow
def test_a_decoder_of_which_half_is_weights(own_home, artifacts, tiny_checkpoint):
    """13 million parameters in f32, and a cache of f32 that is as large when it is full."""
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8}
    heads = {"num_key_value_heads": 8, "head_dim": 64}
    checkpoint = tiny_checkpoint("qwen3", **sizes, **heads, max_position_embeddings=2048)
    recipe = {"quantize": {"kv_cache": "f32"}, "shapes": {"tokens": [1, 128, 512], "batch": [1], "logits": [1]}}
    path = artifacts(checkpoint, **recipe).path
    planned = plan(recipe_from(recipe_for(checkpoint, **recipe)))
    assert planned.run_tokens == 512
    assert planned.about_run_bytes == pytest.approx(run_bytes(path, 512), rel=0.2)
    assert planned.about_run_full_bytes == pytest.approx(run_bytes(path, 2048), rel=0.2)
    assert planned.about_run_full_bytes - planned.about_run_bytes > 20e6


@pytest.mark.slow
def test_small_models(own_home, artifacts, tiny_checkpoint):
    """Nearly all is the interpreter and libraries."""
    for family, shapes in (("llama", {"tokens": [1, 16]}), ("bert", {"tokens": [16, 64]})):
        checkpoint = tiny_checkpoint(family)
        path = artifacts(checkpoint, shapes=shapes).path
        planned = plan(recipe_from(recipe_for(checkpoint, shapes=shapes)))
        assert planned.about_run_full_bytes == pytest.approx(run_bytes(path, 64), rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["none", "fp8", "int8", "int4-g32"] if IS_LONG else ["int4-g32"])
def test_onnx_runtime_copies_weights(scheme, own_home, artifacts, tiny_checkpoint):
    """13 million parameters in bf16, f32 in ONNX Runtime, and what it packs; the build needs no compiler."""
    pytest.importorskip("onnxruntime")
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8}
    checkpoint = tiny_checkpoint("llama", **sizes, dtype="bfloat16")
    recipe = {"quantize": {"scheme": scheme}, "shapes": {"tokens": [1, 128], "batch": [1], "logits": [1]}}
    recipe |= {"targets": [{"backend": "onnx"}]}
    path = artifacts(checkpoint, **recipe).path
    planned = plan(recipe_from(recipe_for(checkpoint, **recipe)))
    assert planned.about_run_bytes == pytest.approx(run_bytes(path, planned.run_tokens), rel=0.2)
    assert planned.about_compilers_bytes == 0
    assert planned.about_build_peak_bytes < 150e6


@pytest.mark.slow
def test_onnx_runtime_has_keys_and_values_in_f32(own_home, artifacts, tiny_checkpoint):
    """134 MB of them, of which 512 positions of each of 64 heads are a huge page: an eighth of them takes all."""
    pytest.importorskip("onnxruntime")
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 4}
    checkpoint = tiny_checkpoint("llama", **heads, hidden_size=128, intermediate_size=256, max_position_embeddings=4096)
    recipe = {"shapes": {"tokens": [1, 128], "batch": [1], "logits": [1], "context": 4096}}
    recipe |= {"quantize": {"scheme": "none", "kv_cache": "int8"}, "targets": [{"backend": "onnx"}]}
    path = artifacts(checkpoint, **recipe).path
    planned = plan(recipe_from(recipe_for(checkpoint, **recipe)))
    assert planned.kv_cache_bytes == 4 * 2 * 8 * 4096 * 128 * 4
    for about, tokens in ((planned.about_run_bytes, 512), (planned.about_run_full_bytes, 4096)):
        assert about == pytest.approx(run_bytes(path, tokens), rel=0.2)


def test_what_a_gpu_takes_of_the_hosts_memory_is_not_known(own_home, tiny_checkpoint):
    pytest.importorskip("onnx")
    recipe = recipe_for(tiny_checkpoint("llama"), targets=[{"backend": "tensorrt"}])
    planned = plan(recipe_from(recipe))
    assert planned.about_run_bytes is None and planned.about_run_full_bytes is None
    both = plan(recipe_from({**recipe, "targets": [{"backend": "onnx"}, {"backend": "cpu", "isa": ["x86-64"]}]}))
    assert both.about_run_bytes < 80e6


@pytest.mark.slow
def test_a_build(own_home, tiny_checkpoint, tmp_path):
    """In a process of its own, without a cache: what it says itself."""
    recipe = recipe_for(tiny_checkpoint("llama"), shapes={"tokens": [1, 16], "logits": [1]})
    (tmp_path / "model.yaml").write_text(json.dumps(recipe))
    code = "import sys; from pyc.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, "build", str(tmp_path / "model.yaml"), "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    planned = plan(recipe_from(recipe))
    assert planned.about_build_peak_bytes == pytest.approx(json.loads(done.stdout)["peak_rss_bytes"], rel=0.2)


CALIBRATED = [("gptq", 8192), ("awq", 2048), ("yaqa", 2048), ("gptq", 2048), ("awq", 8192), ("yaqa", 8192)]
CHOSEN: list[tuple[dict[str, str], int]] = [({}, 2048), ({"algorithm": "gptq"}, 2048), ({}, 4096)]
DEMO = Path(__file__).parents[3] / "models" / "demo" / "checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "tokens"), CALIBRATED if IS_LONG else CALIBRATED[1:2])
def test_a_build_that_calibrates(algorithm, tokens, own_home, tmp_path):
    quantize = {"scheme": "int4-g32", "algorithm": algorithm, "calibration": {"tokens": tokens}}
    recipe = {"model": str(DEMO), "quantize": quantize, "targets": [{"backend": "onnx"}]}
    (tmp_path / "model.yaml").write_text(json.dumps(recipe))
    code = "import sys; from pyc.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, "build", str(tmp_path / "model.yaml"), "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["peak_rss_bytes"]
    parsed = recipe_from(recipe)
    module = lower_recipe(parsed).common
    estimated = calibration_peak_bytes(module, (algorithm,), tokens // 512, 512, 2)
    assert estimated == pytest.approx(found, rel=0.2)
    assert plan(parsed).about_build_peak_bytes >= estimated
    assert calibration_peak_bytes(module, ("rtn",), tokens // 512, 512, 2) == 0


@pytest.mark.slow
@pytest.mark.skipif(not IS_LONG, reason="PYC_CASES=all: in make test-long")
@pytest.mark.parametrize(("quantize", "tokens"), CHOSEN)
def test_a_build_that_chooses_schemes(quantize, tokens, own_home, tmp_path):
    """Measuring takes most: several times what the build takes behind it."""
    goal = {"bits_per_weight": 5, **quantize, "calibration": {"tokens": tokens}}
    recipe = {"model": str(DEMO), "quantize": goal, "targets": [{"backend": "onnx"}]}
    (tmp_path / "model.yaml").write_text(json.dumps(recipe))
    code = "import sys; from pyc.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", code, "build", str(tmp_path / "model.yaml"), "--json", "--workers", "2"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["peak_rss_bytes"]
    planned = plan(recipe_from(recipe), workers=2)
    assert planned.about_build_peak_bytes == pytest.approx(found, rel=0.25)


def test_a_recipe_that_leaves_nothing_to_choose_measures_nothing(own_home):
    def planned(**more):
        quantize = {"size_bytes": 10_000_000, **more}
        recipe = {"model": str(DEMO), "quantize": quantize, "targets": [{"backend": "onnx"}]}
        return plan(recipe_from(recipe), workers=2).about_build_peak_bytes

    fixed = planned(overrides=[{"match": "re:.*", "scheme": "int8"}])
    assert fixed < 150e6 < 300e6 < planned()


def test_a_worker_has_a_piece_at_a_time():
    pieces = (1 << 20, 5, 1 << 21, 1 << 19)
    assert build_peak_bytes(2, pieces, 7) == build_peak_bytes(0, (), 0) + 7 + 3 * (1 << 20) * 12
    assert build_peak_bytes(16, pieces, 0) - build_peak_bytes(0, (), 0) == sum(pieces) * 12


@pytest.mark.slow
def test_a_tokenizer_is_counted_by_its_tokens():
    def of(tokens, merges, **layout):
        vocab = {f"token {number}": number for number in range(tokens)}
        model = {"type": "BPE", "vocab": vocab, "merges": [["a", "b"]] * merges}
        return tokenizer_bytes((("tokenizer.json", json.dumps({"model": model}, **layout).encode()),))

    assert tokenizer_bytes(()) == 0
    assert of(1000, 0) < of(1000, 1000) < of(2000, 1000)
    assert 100e6 < of(150_000, 150_000) < 160e6
    assert of(0, 0) > 0
    assert tokenizer_bytes((("tokenizer.json", b"{" * 100_000),)) > 0


def test_memory_of_a_workspace_is_used_again():
    row, wide = TensorType("f32", ("tokens", 16)), TensorType("f32", ("tokens", 64))

    def step(result, kind, *operands):
        return Operation("any", Value(result, kind), operands)

    first = (step("a", row, "x"), step("b", wide, "a"), step("c", row, "b"))
    operations = (*first, step("d", row, "c", "a"), step("e", row, "d"))
    function = Function("forward", (Value("x", row),), operations, "e")
    # a lives on until d is there beside c: three rows at once; e is the caller's memory
    assert workspace_bytes(function, 4) == 4 * (3 * 16 + 64) * 4
