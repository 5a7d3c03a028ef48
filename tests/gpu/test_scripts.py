"""What make gpu-test and make gpu-bench run on a machine with a GPU, on an emulated one."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from built_models import target_of
from cuda_emulation import compile_emulated
from emulated_cuda import CUDA, emulated_cuda
from tiny_checkpoints import tiny_checkpoint

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "bench")]

import bench
import check
import from_disk
import kernel_cases
import kernel_times
import prepare
from hollow_checkpoint import LlamaShape

from pyc.backends.cuda.toolchain import nvrtc
from pyc.passes.driver.build import build
from pyc.runtime.executors.cuda.driver import Driver

LONG = pytest.mark.skipif(os.environ.get("PYC_CUDA") != "all", reason="PYC_CUDA=all: in make test-long")
__all__ = ["emulated_cuda", "tiny_checkpoint"]
TINY = LlamaShape(hidden=64, inner=96, layers=1, heads=4, kv_heads=2, head_dim=16, is_tied=True, vocabulary=4096)


def until_the_first_token(work, path):
    started = time.perf_counter()
    bench.main(["--work", str(work), "--first-token", str(path)])
    return time.perf_counter() - started


@pytest.mark.slow
def test_programs_are_measured_with_random_weights(tmp_path, emulated_cuda):
    buckets = {"context": 64, "tokens": [1, 2, 16], "batch": [2], "logits": [1]}
    prepare.build_shape(tmp_path / "1b-int4.pyca", TINY, {"scheme": "int4-g32"}, buckets, CUDA["isa"])
    prepare.write_manifest(tmp_path, CUDA["isa"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "COPY_BYTES", 1 << 20)
        patch.setattr(bench, "until_the_first_token", until_the_first_token)  # another process has no emulated driver
        output = ["--out", str(tmp_path / "report.json")]
        bench.main(["--work", str(tmp_path), *output, "--repeat=2", "--without-baselines"])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["device"] == "Emulated sm_90"
    assert report["copy_gb_s"] > 0
    found = report["models"]["1b-int4"]
    assert found.keys() == {"load_s", "decode_1", "decode_2", "prompt_16", "first_token_s"}
    assert found["first_token_s"] > 0
    assert found["decode_2"]["step_ms"] >= found["decode_2"]["graph_ms"] / 2
    assert min(found["decode_1"].values()) > 0
    assert found["decode_1"]["weight_bytes"] < 4096 * 64 * 2  # the head's int8, and matrices of int4, once
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_times, "COPY_BYTES", 1 << 20)
        asked = ["--model", "1b-int4", "--function", "forward:2", "forward:16", "logits:1", "--repeat=1"]
        kernel_times.main(["--work", str(tmp_path), *output, *asked])
    functions = json.loads((tmp_path / "report.json").read_text())["models"]["1b-int4"]
    assert functions.keys() == {"forward:2", "forward:16", "logits:1"}
    assert sum(kernel["launches"] for kernel in functions["forward:16"]) > 8
    assert all(kernel["total_ms"] > 0 for function in functions.values() for kernel in function)


@pytest.mark.slow
def test_steps_and_prompts_behind_many_positions_are_measured(tmp_path, emulated_cuda, monkeypatch):
    for module, name, value in ((bench, "DEPTH", 8), (bench, "LONG_DEPTH", 40), (bench, "COPY_BYTES", 1 << 20)):
        monkeypatch.setattr(module, name, value)
    buckets = {"context": 2128, "tokens": [1, 16], "batch": [1], "logits": [1]}
    prepare.build_shape(tmp_path / "long.pyca", TINY, {"scheme": "int4-g32"}, buckets, CUDA["isa"])
    prepare.write_manifest(tmp_path, CUDA["isa"])
    key = json.loads((tmp_path / "manifest.json").read_text())["key"]
    found = bench.measured(tmp_path / "long.pyca", key).measure(1, 1e9)
    assert found.keys() == {"decode_1", "prompt_16", "decode_1_behind_40", "prompt_16_behind_40"}
    assert found["decode_1_behind_40"]["cache_bytes"] == 5 * found["decode_1"]["cache_bytes"] > 0


@pytest.mark.slow
def test_the_first_token_of_a_file_is_measured(tmp_path, emulated_cuda, monkeypatch):
    buckets = {"context": 64, "tokens": [1, 16], "batch": [1], "logits": [1]}
    prepare.build_shape(tmp_path / "tiny.pyca", TINY, {"scheme": "int4-g32"}, buckets, CUDA["isa"])
    prepare.write_manifest(tmp_path, CUDA["isa"])

    def here(arguments):  # another process has no emulated driver
        started = time.perf_counter()
        from_disk.main(arguments)
        return time.perf_counter() - started, 1

    driver = Driver(emulated_cuda)
    changes = {"NAMES": ("tiny",), "PROMPT": 12, "measured": here, "open_driver": lambda: driver}
    for name, value in changes.items():
        monkeypatch.setattr(from_disk, name, value)
    given = ["--work", str(tmp_path), "--files", str(tmp_path / "files"), "--out", str(tmp_path / "report.json")]
    from_disk.main(given)
    found = json.loads((tmp_path / "report.json").read_text())["models"]["tiny"]
    assert found["file_bytes"] > 4096 * 64
    assert min(found.values()) > 0
    assert not any((tmp_path / "files").iterdir())


@pytest.mark.slow
def test_kernels_alone_are_compared_with_what_they_should_compute(tmp_path, emulated_cuda):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "compile_kernels", lambda sources, arch: compile_emulated(nvrtc.program_text(sources)))
        patch.setattr(kernel_cases, "open_driver", lambda: Driver(emulated_cuda))
        for name, value in {"SCHEMES": ("int8", "lut3-g128"), "ROWS": (1, 12), "DIVISIONS": ()}.items():
            patch.setattr(kernel_cases, name, value)
        kernel_cases.write_cases(tmp_path, "sm_90a")
        found = kernel_cases.run_cases(tmp_path)
        assert len(found) == 2 * 5
        assert all(case["is_right"] and case["error_of_bound"] > 0 for case in found)
        arrays = dict(np.load(tmp_path / "int8.npz"))
        np.savez(tmp_path / "int8.npz", **{**arrays, "values": np.roll(arrays["values"], 1)})
        wrong = {case["case"].split()[0] for case in kernel_cases.run_cases(tmp_path) if not case["is_right"]}
        assert wrong == {"int8"}


@LONG
def test_a_gpu_that_computes_something_else_is_found(tmp_path, emulated_cuda, tiny_checkpoint):
    path = tiny_checkpoint("llama", hidden_size=64, intermediate_size=96, max_position_embeddings=64)
    shapes = {"context": 64, "tokens": [1, 16], "batch": [1], "logits": [1, 16]}
    quantize = {"scheme": "int8", "activations": "f32"}
    recipe = {"model": str(path), "shapes": shapes, "quantize": quantize, "targets": [*target_of(), CUDA]}
    build(recipe, output=tmp_path / "demo.pyca")
    prepare.write_manifest(tmp_path, CUDA["isa"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "PROMPTS", ("a b c",))
        prepare.store_expected(tmp_path / "demo.pyca", tmp_path / "demo.npz", "cpu")
    arguments = ["--work", str(tmp_path), "--out", str(tmp_path / "report.json")]
    assert check.main(arguments) == 0
    assert json.loads((tmp_path / "report.json").read_text())["is_right"]
    expected = dict(np.load(tmp_path / "demo.npz"))
    expected["logits0"] = np.roll(expected["logits0"], 1, axis=1)
    np.savez(tmp_path / "demo.npz", **expected)
    assert check.main(arguments) == 1


def test_tokens_may_differ_where_rounding_decides():
    class Undecided:
        def logits(self, ids):
            return np.array([[0, 1.0, 1.001, 0.5]])

    assert check.agreement(Undecided(), [0], [1, 2], [1, 2])
    assert check.agreement(Undecided(), [0], [3, 1, 2], [3, 2, 0])
    assert not check.agreement(Undecided(), [0], [3, 1, 2], [3, 3, 2])
    assert not check.agreement(Undecided(), [0], [1, 2], [1])


def test_without_a_margin_logits_of_prompts_alone_are_compared():
    class OnlyPrompts:
        def logits(self, ids):
            return np.eye(3, dtype=np.float32)[: len(ids)]

    expected = {"ids0": np.array([1, 2]), "logits0": np.eye(3, dtype=np.float32)[:2], "tokens0": np.array([1])}
    (found,) = check.compare(OnlyPrompts(), expected, 1e-9, None)
    assert (found["is_right"], found["greedy_tokens_agree"]) == (True, None)
    (found,) = check.compare(OnlyPrompts(), {**expected, "logits0": np.eye(3)[1:]}, 1e-9, None)
    assert not found["is_right"]


@LONG
def test_the_baseline_runs():
    script = Path(bench.__file__).with_name("baseline.py")
    command = [sys.executable, script, "tiny", "eager", "--device=cpu", "--steps=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["step_ms"] > 0
