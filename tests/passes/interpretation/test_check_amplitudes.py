"""passes/interpretation/check_amplitudes.py: matrices that the scales of their scheme do not hold are named once."""

import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.schemes import SCHEMES
from pyc.passes.driver.build import build
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.passes.driver.plan import plan
from pyc.passes.interpretation.range_warnings import range_warnings

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
LAYER = "model.layers.0"
Q, GATE = f"{LAYER}.self_attn.q_proj.weight", f"{LAYER}.mlp.gate_proj.weight"
SMALL = {"shapes": {"tokens": [1, 16], "logits": [1]}, "targets": [{"backend": "onnx"}]}


@pytest.fixture
def sized(tiny_checkpoint, tmp_path_factory):
    """`sized({name: largest})`: a checkpoint with matrices of that largest magnitude."""

    def make(largest):
        path = tmp_path_factory.mktemp("sized") / "checkpoint"
        shutil.copytree(tiny_checkpoint("llama", **SIZES), path)
        tensors = load_file(path / "model.safetensors")
        for name, value in largest.items():
            tensors[name] = tensors[name] / tensors[name].abs().max() * value
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        return path

    return make


def document(path, scheme, **more):
    return {"model": str(path), **SMALL, "quantize": {"scheme": scheme, **more}}


def warnings(caplog):
    of = "pyc.passes.interpretation.check_amplitudes"
    found = [record.getMessage() for record in caplog.records if record.name == of]
    caplog.clear()
    return found


HOLD = {
    "int8": 0, "fp8": 0, "fp8-e5m2": 0, "fp8-tensor": 0, "fp8-b128": 0, "mxfp4": 0, "nvfp4": 0, "ternary": 0, "bf16": 0,
    "f32": 0, "none": 0, "f16": 3e-5, "int8-g32": 1e-3, "int4-g32": 1e-6, "int4-g128": 1e-6, "int4-g64-asym": 1e-5,
    "lut5-g32": 1e-5, "lut4-g32": 1e-5, "lut3-g32": 3e-6, "lut2-g128": 3e-6, "int3-g32": 3e-6, "int2-g128": 3e-6,
}  # fmt: skip
"""The largest weight of a matrix down to which a scheme's errors hardly grow: scales of f16 or a byte end at 2^-24."""


@pytest.mark.parametrize("scheme", HOLD)
def test_a_scheme_is_named_where_it_loses_precision_and_nowhere_else(scheme, sized, caplog):
    for largest in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8):
        if HOLD[scheme] / 20 < largest < HOLD[scheme]:
            continue  # it grows somewhere there
        recipe = recipe_from(document(sized({Q: largest}), scheme, embeddings="bf16"))
        with SourceFiles() as files:
            lower_recipe(recipe, files, observe=range_warnings(files))
        said = warnings(caplog)
        assert bool(said) == (largest < HOLD[scheme]), (largest, said)


def test_all_schemes_are_tried():
    families = {name.split("-")[0] for name in SCHEMES}
    assert families == {name.split("-")[0] for name in HOLD}


def test_a_plan_and_a_build_say_it_once(sized, tmp_path, caplog):
    path = sized({Q: 5e-6, GATE: 1e-7})
    planned = plan(recipe_from(document(path, "int8-g32")))
    assert {tensor.scheme for tensor in planned.tensors} >= {"int8-g32"}
    (line,) = warnings(caplog)
    assert line.startswith(f"{Q} and 1 more matrices: weights of at most ")
    assert "too small for the scales of int8-g32: rounding errs " in line
    assert line.endswith(" times as much as it does for larger ones; store them as int8, fp8 or bf16, by an override")
    build(document(path, "int8-g32"), output=tmp_path / "a.pyca")
    assert warnings(caplog) == [line]
    build(document(path, "int8-g32"), output=tmp_path / "a.pyca")  # from the cache
    assert warnings(caplog) == [line]
    kept = [{"match": name, "scheme": scheme} for name, scheme in ((Q, "int8"), (GATE, "bf16"))]
    build(document(path, "int8-g32", overrides=kept), output=tmp_path / "b.pyca")
    assert not warnings(caplog)


def test_a_build_that_calibrates_or_chooses_says_it_once(sized, tmp_path, caplog):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat; the dog sat on the log\n" * 20)
    given = {"calibration": {"text": str(text), "window": 32, "tokens": 256}}
    path = sized({Q: 1e-7})
    build(document(path, "int4-g32", algorithm="gptq", **given), output=tmp_path / "a.pyca")
    (line,) = warnings(caplog)
    assert line.startswith(f"{Q}: weights of at most")
    result = build(document(path, "none", bits_per_weight=5, **given), output=tmp_path / "b.pyca")
    chosen = {name: group.scheme for group in result.mixture.groups for name in group.names}
    assert len(warnings(caplog)) == (SCHEMES[chosen[Q]].name not in ("int8", "bf16"))


def test_a_gain_that_is_folded_counts(sized, caplog):
    """It is the product that is rounded."""
    path = sized({Q: 1e-2})
    tensors = load_file(path / "model.safetensors")
    tensors[f"{LAYER}.input_layernorm.weight"] *= 1e-4
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    plan(recipe_from(document(path, "int8-g32")))
    (line,) = warnings(caplog)
    assert Q in line or "more matrices" in line


def test_zeros_and_what_a_build_refuses_are_passed_over(sized, caplog):
    path = sized({Q: 0.0, GATE: float(np.float32(np.inf))})
    plan(recipe_from(document(path, "int8-g32")))
    assert not warnings(caplog)
