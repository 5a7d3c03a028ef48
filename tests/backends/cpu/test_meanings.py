"""backends/cpu/meanings.py: quantized rows stand for numbers near what was rounded, and fusion changes no meaning.

That each fused operator means what it stands for is seen where each pass is tested (tests/backends/cpu/passes).
"""

import math

import numpy as np
import pytest
from graph_interpreter import Interpreter

from pyc.backends.cpu.backend import CpuBackend
from pyc.backends.cpu.meanings import cpu_meanings, fake_quantized
from pyc.backends.cpu.operators import CPU_OPERATORS
from pyc.compiler.interpret import PagedCache
from pyc.compiler.recipe.api import recipe_from
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.pipeline import pipeline

pytest.importorskip("torch")


def test_every_operator_has_a_meaning():
    assert cpu_meanings(PagedCache(64, np.float64)).keys() == CPU_OPERATORS.keys()


@pytest.mark.parametrize("row_format", ["float_scale", "power_of_two", "interleaved"])
def test_quantized_rows_are_whole_numbers_of_a_groups_scale(row_format):
    x = np.random.default_rng(0).normal(size=(7, 77)) * 10.0 ** np.arange(-3, 4)[:, None]
    x[1], x[2] = 0, 0
    x[2, 5], x[3, :3] = 127, (127, 0.5, 1.5)  # a scale of 1 at most, and ties
    x[3, 3:] = np.clip(x[3, 3:], -127, 127)
    found = fake_quantized(row_format, x)
    for row in range(7):
        for start in range(0, 77, 32):
            group, made = (values[row, start : start + 32] for values in (x, found))
            scale = max(abs(value) for value in group) / 127
            if not scale:
                assert not made.any()
                continue
            if row_format != "float_scale":
                scale = 2.0 ** math.ceil(math.log2(scale))
            assert np.abs(made / scale - np.rint(made / scale)).max() < 1e-9
            assert np.abs(made / scale).max() <= 127 + 1e-9
            assert np.abs(made - group).max() <= scale / 2 * (1 + 1e-9)
    assert found[3, :3].tolist() == [127, 0, 2]  # ties go to even numbers


def test_records_of_bf16_have_eight_bits():
    x = np.array([[1, 1 + 2**-7, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3.3, 0, 1e30]])
    found = fake_quantized("bf16", x)
    assert found[0, :5].tolist() == [1, 1 + 2**-7, 1, 1 + 2**-6, 1 + 2**-7]
    assert np.abs(found - x).max() <= 1e30 * 2**-8
    assert abs(found[0, 5] + 3.3) <= 2 * 2**-8
    assert np.array_equal(fake_quantized("bf16", found), found)


SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_hidden_layers": 2}
MIXED = {"overrides": [{"match": "re:.*gate_proj", "scheme": "int8"}]}
MODELS = {
    "qwen3-int4": ("qwen3", SIZES, {"scheme": "int4-g32"}, {"scale_folded", "scale_folded_whole", "amx"}),
    "llama-int8": ("llama", {**SIZES, "attention_bias": True}, {"scheme": "int8"}, {"scale_folded", "amx"}),
    "llama-mixed": ("llama", SIZES, {"scheme": "int4-g32", **MIXED}, {"scale_folded", "amx"}),
    "qwen2-bf16": ("qwen2", {"hidden_size": 128}, {"scheme": "bf16", "activations": "bf16"}, {"scale_folded", "amx"}),
    "qwen2-exact": ("qwen2", {"hidden_size": 128}, {"scheme": "bf16"}, {"scale_folded", "amx"}),
    "llama-fp8": ("llama", SIZES, {"scheme": "fp8", "activations": "fp8", **MIXED}, {"scale_folded", "amx"}),
    "llama-mxfp8": ("llama", SIZES, {"scheme": "fp8", "activations": "mxfp8", **MIXED}, {"scale_folded", "amx"}),
    "mistral-f32": ("mistral", {**SIZES, "sliding_window": 5}, {}, {"scale_folded"}),
}
COUNT = 9
ROWS = {"positions": np.arange(COUNT), "sequences": np.zeros(COUNT, np.int64), "row": np.array([COUNT - 2])}


def results(module, name, version=""):
    """What a function gives, after another run has filled the cache in part."""
    random = np.random.default_rng(0)
    inputs = {"token_ids": random.integers(0, module.info.vocab_size, COUNT), **ROWS}
    inputs["hidden"] = random.normal(size=(COUNT, module.info.hidden_size))
    interpreter, wanted = Interpreter(module), module.graph.function(name).parameters
    given = {value.name: inputs[value.name] for value in wanted if value.name != "block_table"}
    first = interpreter.run(name, version, **given)
    if "positions" not in given:
        return first
    return np.concatenate([first, interpreter.run(name, version, **given | {"positions": ROWS["positions"] + COUNT})])


@pytest.mark.parametrize("case", MODELS)
def test_fusion_keeps_the_meaning_bit_for_bit(case, tiny_checkpoint):
    model_type, config, quantize, versions = MODELS[case]
    path = tiny_checkpoint(model_type, tokenizer=False, **config)
    module, wanted = load_model(ModelSource(str(path), path)), None
    for step in (*pipeline(recipe_from({"model": str(path), "quantize": quantize}), ()), *CpuBackend().passes()):
        module = step.run(module)
        if wanted is not None:
            for function in module.graph.all_functions:
                found = results(module, function.name, function.version)
                assert np.array_equal(found, wanted[function.name]), (step.name, function.name, function.version)
        if step.name == "specialize_prefill":
            wanted = {function.name: results(module, function.name) for function in module.graph.functions}
    assert {function.version for function in module.graph.versions} == versions


def test_an_encoder_too(tiny_checkpoint):
    path = tiny_checkpoint("bert", pooling="mean", normalize=True)
    inputs = {
        "token_ids": np.arange(3, 12),
        "positions": np.array([0, 1, 2, 3, 0, 1, 2, -1, -1]),
        "span_start": np.array([0] * 4 + [4] * 3 + [0, 0]),
        "span_end": np.array([4] * 4 + [7] * 3 + [0, 0]),
        "seq_start": np.array([0]),
        "seq_end": np.array([4]),
    }
    module, wanted, steps = load_model(ModelSource(str(path), path)), None, []
    recipe = recipe_from({"model": str(path), "quantize": {"scheme": "int8"}})
    for step in (*pipeline(recipe, ()), *CpuBackend().passes()):
        before, module = module.graph, step.run(module)
        if wanted is not None and module.graph != before:
            steps.append(step.name)
            assert np.array_equal(Interpreter(module).run("embed", **inputs), wanted)
        if step.name == "specialize_prefill":
            wanted = Interpreter(module).run("embed", **inputs)
    assert steps == ["fuse_quantize"]
