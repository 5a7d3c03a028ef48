"""Decoders of every family and rotary embedding, and how their greedy tokens are compared with transformers'."""

import numpy as np
from built_models import margins

STEPS = 64

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
ODD = {
    "num_hidden_layers": 1,
    "vocab_size": 251,
    "hidden_size": 60,
    "intermediate_size": 100,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 20,
}
ODD_INPUTS = {
    "hidden_size": 45,
    "intermediate_size": 77,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "vocab_size": 97,
}
GROUPS_OF_3 = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12}
MIXED_LAYERS = {
    "use_sliding_window": True,
    "sliding_window": 5,
    "max_window_layers": 1,
    "num_hidden_layers": 3,
}

VARIANTS = {
    "llama": ("llama", {}),
    "llama-tied-bf16-sharded": (
        "llama",
        {"tie_word_embeddings": True, "dtype": "bfloat16", "sharded": True},
    ),
    "llama-biases-f16": ("llama", {"attention_bias": True, "mlp_bias": True, "dtype": "float16"}),
    "llama-odd-f64-sharded": ("llama", {**ODD, "dtype": "float64", "sharded": True}),
    "llama-odd-bf16": ("llama", {**ODD, "dtype": "bfloat16"}),
    "llama-odd-inputs": ("llama", ODD_INPUTS),
    "llama-odd-inputs-f16": ("llama", {**ODD_INPUTS, "dtype": "float16"}),
    "llama-groups-of-3": ("llama", GROUPS_OF_3),
    "llama-gelu-one-kv-head": ("llama", {"hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 1}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-dynamic-within": ("llama", {"rope_parameters": DYNAMIC}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "mistral-window-7": ("mistral", {"sliding_window": 7}),
    "mistral-window-20-bf16": ("mistral", {"sliding_window": 20, "head_dim": 24, "dtype": "bfloat16"}),
    "mistral-no-window": ("mistral", {"sliding_window": None, "seed": 3}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-mixed-layers": ("qwen2", MIXED_LAYERS),
    "bitnet": ("bitnet", {}),
    "bitnet-tied-bf16": ("bitnet", {"tie_word_embeddings": True, "dtype": "bfloat16"}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-bias-bf16": (
        "qwen3",
        {"tie_word_embeddings": True, "attention_bias": True, "dtype": "bfloat16"},
    ),
}


def check_greedy(model, expected, prompt, margin):
    """Free-running greedy tokens agree up to a step at which the reference itself is undecided; from there on
    the reference's tokens are fed, so that every one of the steps is compared."""
    tokens, leads = reference_greedy(expected, prompt)
    ours = [token.id for token in model.generate(prompt, max_tokens=STEPS, temperature=0, ignore_eos=True)]
    undecided = np.flatnonzero(leads < margin)
    free = undecided[0] + 1 if undecided.size else STEPS
    assert ours[: free - 1] == tokens[: free - 1]
    rows = model.logits([*prompt, *tokens])[len(prompt) - 1 : -1]
    decided = leads >= margin
    assert decided.sum() >= STEPS - 8
    assert (rows.argmax(-1) == np.array(tokens))[decided].all()


def reference_greedy(expected, prompt):
    """The reference's greedy tokens and, at each, the lead of its best logit."""
    import torch

    with torch.no_grad():
        found = expected.generate(
            torch.tensor([prompt]),
            max_new_tokens=STEPS,
            min_new_tokens=STEPS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    tokens = found.sequences[0, len(prompt) :].tolist()
    assert len(tokens) == STEPS
    return tokens, margins(np.stack([row[0].numpy() for row in found.logits]))
