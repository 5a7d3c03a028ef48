"""passes/interpretation/check_cache_range.py: keys and values that a cache of f16 does not hold are named."""

import platform
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.build import build
from pyc.passes.driver.lower_recipe import lower_recipe
from pyc.passes.interpretation.range_warnings import range_warnings
from pyc.runtime.model import load

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 64}
V, K = "model.layers.1.self_attn.v_proj", "model.layers.1.self_attn.k_proj"
PAIRS = {V: "o_proj", K: "q_proj"}


@pytest.fixture
def scaled(tiny_copy):
    """`scaled(kind, name, factor)`: a checkpoint that computes the same by keys or values that are `factor` times as
    large in one layer: what multiplies them next is as many times smaller."""

    def make(kind, name, factor):
        path = tiny_copy(kind, **SIZES)
        tensors = load_file(path / "model.safetensors")
        heads = tensors[f"{K}.weight"].shape[0]
        for each in (f"{name}.weight", f"{name}.bias"):
            if each in tensors:
                tensors[each] = tensors[each] * factor
        other = f"{name.rpartition('.')[0]}.{PAIRS[name]}"
        for each in (f"{other}.weight", f"{other}.bias"):
            if each in tensors and heads:
                tensors[each] = tensors[each] / factor
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
        return path

    return make


def warned(path, caplog, **quantize):
    caplog.clear()
    recipe = recipe_from({"model": str(path), "quantize": {"scheme": "none", **quantize}}, name="model")
    with SourceFiles() as files:
        lower_recipe(recipe, files, observe=range_warnings(files))
    of = "pyc.passes.interpretation.check_cache_range"
    return [record.getMessage() for record in caplog.records if record.name == of]


@pytest.mark.parametrize(("kind", "name"), [("llama", V), ("llama", K), ("qwen2", V), ("qwen3", V), ("mistral", K)])
@pytest.mark.parametrize("factor", [1e-9, 1e6])
def test_what_f16_does_not_hold_is_named(kind, name, factor, scaled, caplog):
    (text,) = warned(scaled(kind, name, factor), caplog)
    assert text.startswith(f"{name}.weight: {'keys' if name == K else 'values'} of about ")
    assert "kv_cache: f16 holds numbers from 6e-08 to 65504; set quantize.kv_cache: f32, or int8" in text


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
@pytest.mark.parametrize("factor", [1e-4, 1.0, 1e3])
def test_nothing_is_said_of_what_it_holds(kind, factor, scaled, caplog):
    assert warned(scaled(kind, V, factor), caplog) == []


@pytest.mark.parametrize("scheme", ["none", "bf16", "int8"])
@pytest.mark.parametrize(("gain", "factor", "is_named"), [(1e7, 1, True), (1e-9, 1, True), (1e6, 1e-6, False)])
def test_the_gain_of_the_norm_before_counts(scheme, gain, factor, is_named, tiny_copy, caplog):
    path = tiny_copy("llama", **SIZES, dtype="bfloat16")
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.1.input_layernorm.weight"] *= gain
    for name in (V, K):
        tensors[f"{name}.weight"] *= factor
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    assert len(warned(path, caplog, scheme=scheme)) == int(is_named)


def test_keys_with_a_norm_are_near_one(scaled, caplog):
    assert warned(scaled("qwen3", K, 1e-9), caplog) == []


@pytest.mark.parametrize("cache", ["f32", "int8", "fp8"])
def test_other_caches_have_scales_or_room(cache, scaled, caplog):
    assert warned(scaled("llama", V, 1e-9), caplog, kv_cache=cache) == []


def logits(path, cache, tmp_path):
    isa = {"x86_64": "x86-64-v3", "aarch64": "armv8"}[platform.machine()]
    quantize = {"scheme": "none", "activations": "f32", "kv_cache": cache}
    document = {"model": str(path), "quantize": quantize, "targets": [{"backend": "cpu", "isa": [isa]}]}
    build(document, output=tmp_path / "m.pyca")
    with load(tmp_path / "m.pyca") as model:
        return model.logits([3, 1, 4, 1, 5, 9, 2, 6])


@pytest.mark.parametrize(("factor", "is_named"), [(1e-9, True), (1e6, True), (1e-5, False)])
def test_what_is_named_is_what_goes_wrong(factor, is_named, scaled, tmp_path, caplog):
    """Against the same checkpoint with a cache of f32, which holds everything."""
    path = scaled("llama", V, factor)
    assert bool(warned(path, caplog)) is is_named
    found, exact = (logits(path, cache, tmp_path) for cache in ("f16", "f32"))
    is_right = float(np.abs(found - exact).max()) <= 0.05 * float(exact.std())  # NaN is not
    assert is_right is not is_named


@pytest.mark.parametrize("factor", [2.0**-30, 2.0**20])
def test_int8_holds_what_f16_does_not(factor, scaled, tmp_path):
    """Its scales go with the values: the codes are those of the checkpoint as it was."""
    path = scaled("llama", V, 1.0)
    expected = logits(path, "int8", tmp_path)
    shutil.rmtree(path)
    found = logits(scaled("llama", V, factor), "int8", tmp_path)
    assert float(np.abs(found - expected).max()) <= 1e-4 * float(expected.std())
