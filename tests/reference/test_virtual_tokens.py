"""Prompt tuning, P-tuning and prefix tuning in an artifact, against PEFT's own forward in float32.

Keys and values of virtual tokens are computed in f32 by numpy, everything behind them by compiled code: the bounds are
those of `test_decoders`, KL at most 1e-10 with an f32 cache and 1e-5 with an f16 one, over hidden states that the tokens
change by a KL of 1e-2 and more.
"""

import numpy as np
import pytest
from adapter_cases import with_adapter
from built_models import difference, margins, random_ids, single_steps

KL_BOUND = {"f32": 1e-10, "f16": 1e-5}
INT8_CACHE_KL = 1.6e-3
MARGIN = 1e-4
CONTEXT = {"tokenizer": False, "max_position_embeddings": 128}
CAUSAL = {"task_type": "CAUSAL_LM"}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}

CASES = {
    "prompt-llama": ("llama", {}, "prompt_tuning", {"num_virtual_tokens": 5}),
    "prompt-qwen3-tied-yarn": (
        "qwen3",
        {"tie_word_embeddings": True, "rope_parameters": YARN},
        "prompt_tuning",
        {"num_virtual_tokens": 3},
    ),
    "p-tuning-qwen2-mlp": ("qwen2", {}, "p_tuning", {"num_virtual_tokens": 4, "encoder_hidden_size": 32}),
    "p-tuning-llama-lstm": (
        "llama",
        {},
        "p_tuning",
        {"num_virtual_tokens": 4, "encoder_hidden_size": 16, "encoder_reparameterization_type": "LSTM"},
    ),
    "prefix-llama": ("llama", {}, "prefix_tuning", {"num_virtual_tokens": 6}),
    "prefix-qwen3-projection": (
        "qwen3",
        {},
        "prefix_tuning",
        {"num_virtual_tokens": 70, "prefix_projection": True, "encoder_hidden_size": 24},
    ),
    "prefix-mistral-window": ("mistral", {"sliding_window": 7}, "prefix_tuning", {"num_virtual_tokens": 4}),
    "prompt-mistral-window": ("mistral", {"sliding_window": 7}, "prompt_tuning", {"num_virtual_tokens": 4}),
}


def logits_of_peft(model, ids):
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()[-len(ids) :]


@pytest.mark.parametrize("case", CASES)
def test_virtual_tokens_are_pefts(case, tiny_checkpoint, tiny_adapter, built, reference):
    model_type, config, kind, options = CASES[case]
    path = tiny_checkpoint(model_type, **CONTEXT, **config)
    adapter = tiny_adapter(path, kind, **CAUSAL, **options)
    model = built(path, adapters=[{"path": str(adapter)}], quantize={"kv_cache": "f32"})
    ids = random_ids(model, 40)
    wanted = logits_of_peft(with_adapter(reference(path), adapter), ids)
    found = difference(wanted, model.logits(ids))
    print(found)
    assert difference(logits_of_peft(reference(path), ids), wanted).mean_kl > 1e-2
    assert found.mean_kl <= KL_BOUND["f32"], found
    assert np.array_equal(single_steps(model, ids), model.logits(ids)), "a prefill is not the sum of its steps"
