"""Passes that rewrite without rounding do not change what the graph computes, in float64.

`value_of` takes storage as lossless, so folding, stacking, pairing and lowering attention must agree to float64
rounding (1e-10 on logits of a few units), until activations are rounded. tests/backends/cpu/test_meanings.py has what
follows.
"""

import numpy as np
import pytest
from graph_interpreter import Interpreter

from pyc.backends.cpu.backend import CpuBackend
from pyc.compiler.recipe.api import recipe_from
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.pipeline import pipeline

ODD = {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10}
MODELS = {
    "llama-tied-odd": ("llama", {"tie_word_embeddings": True, **ODD}, {}),
    "llama-biases-int8": ("llama", {"attention_bias": True, "mlp_bias": True}, {"scheme": "int8"}),
    "qwen2-bf16": ("qwen2", {"dtype": "bfloat16"}, {}),
    "qwen3-mixed": (
        "qwen3",
        {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
        {"scheme": "int8", "overrides": [{"match": "re:.*v_proj", "scheme": "bf16"}]},
    ),
}


def outputs(module, ids):
    interpreter, count = Interpreter(module), len(ids)
    hidden = interpreter.run(
        "forward",
        token_ids=np.array(ids),
        positions=np.arange(count),
        sequences=np.zeros(count, np.int64),
    )
    return interpreter.run("logits", hidden=hidden)


@pytest.mark.parametrize("case", MODELS)
def test_rewrites_keep_the_meaning(case, tiny_checkpoint):
    model_type, config, quantize = MODELS[case]
    path = tiny_checkpoint(model_type, tokenizer=False, **config)
    module = load_model(ModelSource(str(path), path))
    ids = np.random.default_rng(0).integers(0, module.info.vocab_size, 12).tolist()
    wanted = outputs(module, ids)
    rewritten = 0
    for step in (*pipeline(recipe_from({"model": str(path), "quantize": quantize}), ()), *CpuBackend().passes()):
        if step.name == "lower_activations":
            break
        before, module = module.graph, step.run(module)
        rewritten += before != module.graph
        assert np.abs(outputs(module, ids) - wanted).max() < 1e-10, step.name
    assert rewritten >= 3


def test_an_encoder_too(tiny_checkpoint):
    path = tiny_checkpoint("bert", pooling="mean", normalize=True)
    module = load_model(ModelSource(str(path), path))
    count = 9
    inputs = {
        "token_ids": np.arange(3, 3 + count),
        "positions": np.array([0, 1, 2, 3, 0, 1, 2, -1, -1]),
        "span_start": np.array([0] * 4 + [4] * 3 + [0, 0]),
        "span_end": np.array([4] * 4 + [7] * 3 + [0, 0]),
        "seq_start": np.array([0]),
        "seq_end": np.array([4]),
    }
    wanted = Interpreter(module).run("embed", **inputs)
    for step in (*pipeline(recipe_from({"model": str(path)}), ()), *CpuBackend().passes()):
        if step.name == "lower_activations":
            break
        module = step.run(module)
        assert np.abs(Interpreter(module).run("embed", **inputs) - wanted).max() < 1e-12, step.name
