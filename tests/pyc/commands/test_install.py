"""pyc install: engines are built ahead, once, and what stands in the way is told. TensorRT and CUDA are doubles."""

import json
import sys

import pytest
import tensorrt_double
import tensorrt_parser
from tensorrt_double import gpu

from pyc.passes.driver.build import build
from pyc.runtime.model import load

__all__ = ["gpu"]

TINY = {"tokenizer": False, "num_hidden_layers": 1}
SHAPES = {"tokens": [1, 8], "logits": [1]}


@pytest.fixture
def artifact(tiny_checkpoint, tmp_path, key_home):
    recipe = {"model": str(tiny_checkpoint("llama", **TINY)), "shapes": SHAPES, "targets": [{"backend": "tensorrt"}]}
    return build(recipe, output=tmp_path / "tiny.pyca").path


def engines(key_home):
    return sorted(path.suffix for path in (key_home / "engines").iterdir())


def test_engines_are_built_once_and_used_by_the_first_run(pyc, artifact, gpu, key_home):
    code, out, err = pyc("install", artifact)
    assert code == 0, err
    done = [line.partition(",")[0] for line in out.splitlines()[:2]]
    assert done == ["forward: built in 0 s", "logits: built in 0 s"]
    assert out.splitlines()[2] == "for Double GPU (9.0), driver for CUDA 13.0, TensorRT 11.1.0.106"
    told = [f"{graph}: building; this takes minutes" for graph in ("forward", "logits")]
    assert err.splitlines()[-2:] == told
    assert engines(key_home) == [".engine", ".engine", ".timings"]
    assert gpu.count("build_serialized_network") == 2

    code, out, err = pyc("install", artifact)
    assert (code, err) == (0, "")
    done = [line.partition(",")[0] for line in out.splitlines()[:2]]
    assert done == ["forward: there already", "logits: there already"]
    with load(artifact, backend="tensorrt") as model:
        assert model.logits([5, 6, 7]).shape == (3, model.info.vocab_size)
    assert gpu.count("build_serialized_network") == 2


def test_the_first_run_builds_what_is_not_there(artifact, gpu, key_home):
    load(artifact).close()
    assert gpu.count("build_serialized_network") == 2
    load(artifact).close()
    assert gpu.count("build_serialized_network") == 2


def test_again(pyc, artifact, gpu):
    pyc("install", artifact)
    code, out, _ = pyc("install", artifact, "--again")
    assert code == 0
    assert out.count("built in") == 2
    assert gpu.count("build_serialized_network") == 4


def test_another_gpu_driver_or_version_has_engines_of_its_own(pyc, artifact, gpu, monkeypatch):
    pyc("install", artifact)
    for change in ({"gpu": "Other GPU"}, {"driver": 12080}, {}):
        for name, value in change.items():
            setattr(gpu, name, value)
        if not change:
            tensorrt_double.install(monkeypatch, gpu, "11.4.0.106")
        before = gpu.count("build_serialized_network")
        assert pyc("install", artifact)[0] == 0
        assert gpu.count("build_serialized_network") == before + 2
        assert pyc("install", artifact)[1].count("there already") == 2


@pytest.mark.parametrize("harm", ["cut", "altered", "foreign"])
def test_an_engine_that_is_not_ours_any_more_is_built_again(harm, pyc, artifact, gpu, key_home):
    pyc("install", artifact)
    for path in (key_home / "engines").glob("*.engine"):
        data = bytearray(path.read_bytes())
        if harm == "altered":
            data[len(data) // 2] ^= 1
        path.write_bytes(data[:-7] if harm == "cut" else bytes(100) + data if harm == "foreign" else data)
    code, out, err = pyc("install", artifact)
    assert (code, out.count("built in")) == (0, 2)
    assert err.count("an engine was there, and is not used: ") == 2
    assert pyc("install", artifact)[1].count("there already") == 2


def test_the_same_model_in_another_artifact_has_the_same_engines(pyc, artifact, gpu, tiny_checkpoint, tmp_path):
    pyc("install", artifact)
    targets = [{"backend": "onnx"}, {"backend": "tensorrt"}]
    recipe = {"model": str(tiny_checkpoint("llama", **TINY)), "shapes": SHAPES, "targets": targets}
    other = build(recipe, output=tmp_path / "other.pyca").path
    assert pyc("install", other)[1].count("there already") == 2


def test_an_artifact_without_a_program_for_tensorrt(pyc, make_artifact, gpu):
    code, _, err = pyc("install", make_artifact())
    assert code == 9
    assert "has no program for TensorRT, only for cpu; add `- backend: tensorrt` to the recipe's targets" in err


def test_an_artifact_that_nobody_signed(pyc, make_artifact, gpu):
    code, _, err = pyc("install", make_artifact(signed=False))
    assert (code, "not signed" in err) == (11, True)


def test_a_machine_without_a_gpu(pyc, artifact, gpu):
    gpu.devices = 0
    code, _, err = pyc("install", artifact)
    assert code == 9
    assert "it needs an NVIDIA GPU and its driver, and CUDA finds none" in err
    said = " ".join(pyc("inspect", artifact)[1].split())
    assert "runs here no: backend tensorrt: it needs an NVIDIA GPU" in said


def test_a_machine_without_tensorrt(pyc, artifact, monkeypatch):
    for name in ("tensorrt", "cuda"):
        monkeypatch.setitem(sys.modules, name, None)
    code, _, err = pyc("install", artifact)
    assert code == 9
    assert "is not installed; to install it, in a checkout of pyc: pip install -c constraints.txt '.[tensorrt]'" in err


def test_what_tensorrt_does_not_take_is_told_with_its_layer(pyc, artifact, gpu, monkeypatch):
    monkeypatch.delitem(tensorrt_parser.OPERATORS, "Attention")
    code, out, err = pyc("install", artifact)
    assert (code, out) == (9, "")
    assert "TensorRT 11.1.0.106 cannot express the graph 'forward'" in err
    assert "Attention at layer 0/Attention/" in err


def test_plan_inspect_and_doctor_know_the_target(pyc, artifact, gpu, tiny_checkpoint, tmp_path):
    recipe = tmp_path / "tiny.yaml"
    targets = [{"backend": "tensorrt"}]
    recipe.write_text(json.dumps({"model": str(tiny_checkpoint("llama", **TINY)), "targets": targets}))
    code, out, err = pyc("plan", recipe)
    assert code == 0, err
    assert "backend tensorrt" in out
    code, out, err = pyc("inspect", artifact, "--all")
    assert code == 0, err
    assert "yes, as tensorrt" in out
    assert "program     tensorrt cuda linux any tensorrt" in out
    assert pyc("doctor")[0] in (0, 1)
