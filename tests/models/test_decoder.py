"""models/decoder.py: the graph of every decoder, interpreted naively, against transformers.

Both compute in float64 except for the inverse frequencies and transformers' norms and softmax, which are
float32 (6e-8 relative): logits of a few units agree to 2e-4.
"""

import numpy as np
import pytest
from graph_interpreter import Interpreter

from pyc.models.catalog import load_model
from pyc.models.model_source import ModelShapes, ModelSource

TOLERANCE = 2e-4
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
VARIANTS = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-one-layer-odd": (
        "llama",
        {"num_hidden_layers": 1, "vocab_size": 97, "hidden_size": 36, "head_dim": 10},
    ),
    "llama-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 1}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "bitnet": ("bitnet", {}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-bias": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
}


def reference_logits(path, ids):
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float64, attn_implementation="eager"
    )
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits[0].numpy()


def logits(module, ids, chunks):
    interpreter, rows, start = Interpreter(module), [], 0
    for count in chunks:
        hidden = interpreter.run(
            "forward",
            token_ids=np.array(ids[start : start + count]),
            positions=np.arange(start, start + count),
            sequences=np.zeros(count, np.int64),
        )
        rows.append(interpreter.run("logits", hidden=hidden))
        start += count
    return np.concatenate(rows)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_graph_computes_what_transformers_computes(tiny_checkpoint, variant):
    model_type, config = VARIANTS[variant]
    path = tiny_checkpoint(model_type, **config)
    module = load_model(ModelSource(str(path), path))
    ids = np.random.default_rng(0).integers(0, module.info.vocab_size, 24).tolist()
    expected = reference_logits(path, ids)
    assert expected.std() > 0.5
    got = logits(module, ids, [24])
    assert np.abs(got - expected).max() < TOLERANCE
    assert np.abs(logits(module, ids, [9, *[1] * 15]) - got).max() < 1e-12


@pytest.mark.slow
def test_dynamic_ntk_equals_single_steps_of_transformers(tiny_checkpoint):
    import torch
    import transformers

    parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    path = tiny_checkpoint("llama", max_position_embeddings=16, rope_parameters=parameters)
    module = load_model(ModelSource(str(path), path), ModelShapes(context=40))
    ids = np.random.default_rng(1).integers(0, module.info.vocab_size, 30).tolist()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float64, attn_implementation="eager"
    )
    cache, expected = transformers.DynamicCache(), []
    with torch.no_grad():
        for token in ids:
            step = model.eval()(torch.tensor([[token]]), past_key_values=cache)
            expected.append(step.logits[0, 0].numpy())
    assert np.abs(logits(module, ids, [30]) - np.stack(expected)).max() < TOLERANCE
