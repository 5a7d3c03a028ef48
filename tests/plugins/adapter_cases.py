"""Adapters of PEFT, of each kind that is fused, and the model that PEFT makes of one."""

import contextlib
from types import SimpleNamespace

CONFIGS = {
    "lora": "LoraConfig",
    "ia3": "IA3Config",
    "loha": "LoHaConfig",
    "lokr": "LoKrConfig",
    "vera": "VeraConfig",
    "oft": "OFTConfig",
    "boft": "BOFTConfig",
    "trainable_tokens": "TrainableTokensConfig",
    "prompt_tuning": "PromptTuningConfig",
    "p_tuning": "PromptEncoderConfig",
    "prefix_tuning": "PrefixTuningConfig",
}
"""PEFT's configuration of every kind; DoRA is LoRA with use_dora."""

FEED_FORWARD = {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
BIASED = {"attention_bias": True, "mlp_bias": True}

ADAPTED = {
    "lora": ("llama", {}, "lora", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}),
    "lora-all-linear-bf16-base": (
        "qwen3",
        {"dtype": "bfloat16"},
        "lora",
        {"r": 2, "lora_alpha": 3, "target_modules": "all-linear"},
    ),
    "lora-patterns": (
        "llama",
        {},
        "lora",
        {
            "r": 4,
            "lora_alpha": 8,
            "target_modules": ["q_proj", "v_proj", "down_proj", "up_proj"],
            "rank_pattern": {"down_proj": 6, r"^model.layers.1.*v_proj": 3},
            "alpha_pattern": {"layers.0.self_attn.q_proj": 20},
        },
    ),
    "rslora": (
        "mistral",
        {"sliding_window": 7},
        "lora",
        {
            "r": 8,
            "lora_alpha": 4,
            "use_rslora": True,
            "target_modules": ["k_proj", "o_proj", "gate_proj"],
            "rank_pattern": {"o_proj": 2},
        },
    ),
    "lora-embeddings": ("llama", {}, "lora", {"r": 4, "target_modules": ["embed_tokens", "lm_head"]}),
    "lora-embedding-of-a-tied-model": (
        "llama",
        {"tie_word_embeddings": True},
        "lora",
        {"r": 4, "target_modules": ["embed_tokens"]},
    ),
    "lora-trained-biases-and-modules": (
        "qwen2",
        {},
        "lora",
        {"r": 4, "bias": "all", "target_modules": ["q_proj"], "modules_to_save": ["input_layernorm"]},
    ),
    "ia3-feed-forward-and-attention": ("llama", {}, "ia3", FEED_FORWARD),
    "ia3-with-biases": ("llama", BIASED, "ia3", FEED_FORWARD),
    "ia3-attention-of-qwen2": (
        "qwen2",
        {},
        "ia3",
        {"target_modules": ["q_proj", "k_proj", "v_proj"], "feedforward_modules": []},
    ),
}


KINDS = {
    "dora": ("lora", {"r": 4, "lora_alpha": 8, "use_dora": True, "target_modules": ["q_proj", "down_proj", "lm_head"]}),
    "dora-rslora-patterns": (
        "lora",
        {
            "r": 4,
            "lora_alpha": 8,
            "use_dora": True,
            "use_rslora": True,
            "target_modules": ["v_proj", "up_proj"],
            "rank_pattern": {"up_proj": 2},
            "alpha_pattern": {"layers.1.self_attn.v_proj": 5},
        },
    ),
    "loha": ("loha", {"r": 4, "alpha": 6, "target_modules": ["q_proj", "down_proj"], "init_weights": False}),
    "loha-patterns": (
        "loha",
        {
            "r": 4,
            "alpha": 6,
            "target_modules": ["k_proj", "up_proj"],
            "rank_pattern": {"up_proj": 2},
            "alpha_pattern": {"layers.0.mlp.up_proj": 3},
            "layers_to_transform": [0],
        },
    ),
    "lokr": ("lokr", {"r": 2, "alpha": 6, "target_modules": ["q_proj", "down_proj"]}),
    "lokr-whole": ("lokr", {"r": 32, "alpha": 20, "target_modules": ["q_proj", "k_proj"]}),
    "lokr-both": (
        "lokr",
        {"r": 1, "alpha": 3, "target_modules": ["q_proj", "gate_proj"], "decompose_both": True, "decompose_factor": 8},
    ),
    "lokr-wide": ("lokr", {"r": 2, "alpha": 3, "target_modules": ["v_proj", "o_proj"], "decompose_factor": 2}),
    "vera": ("vera", {"r": 12, "target_modules": ["q_proj", "down_proj"]}),
    "vera-layers": ("vera", {"r": 5, "target_modules": ["k_proj", "up_proj"], "layers_to_transform": 1}),
    "oft": ("oft", {"oft_block_size": 8, "target_modules": ["q_proj", "down_proj"]}),
    "oft-adjusted-exact": (
        "oft",
        {"oft_block_size": 7, "use_cayley_neumann": False, "target_modules": ["q_proj", "down_proj"]},
    ),
    "oft-count-shared": (
        "oft",
        {"r": 5, "oft_block_size": 0, "block_share": True, "target_modules": ["k_proj", "down_proj"]},
    ),
    "oft-terms": ("oft", {"oft_block_size": 4, "num_cayley_neumann_terms": 3, "target_modules": ["k_proj"]}),
    "oft-terms-two": ("oft", {"oft_block_size": 4, "num_cayley_neumann_terms": 2, "target_modules": ["k_proj"]}),
    "oft-constrained": (
        "oft",
        {"oft_block_size": 8, "coft": True, "eps": 0.4, "target_modules": ["o_proj", "up_proj"]},
    ),
    "boft": ("boft", {"boft_block_size": 4, "target_modules": ["q_proj", "down_proj"]}),
    "boft-butterflies": (
        "boft",
        {"boft_block_size": 4, "boft_n_butterfly_factor": 3, "target_modules": ["q_proj", "down_proj"]},
    ),
    "boft-count": (
        "boft",
        {
            "boft_block_size": 0,
            "boft_block_num": 4,
            "boft_n_butterfly_factor": 2,
            "target_modules": ["q_proj", "up_proj"],
        },
    ),
}
"""Adapters of a llama: kind in CONFIGS and fields."""


@contextlib.contextmanager
def butterflies():
    """Let PEFT's BOFT have more than one factor without its CUDA kernel, in whose place torch.block_diag stands."""
    import torch
    from peft.tuners.boft import layer

    def forward(blocks):
        return [torch.stack([torch.block_diag(*factor) for factor in blocks])]

    before, layer.get_fbd_cuda = layer.get_fbd_cuda, lambda: SimpleNamespace(forward=forward)
    try:
        yield
    finally:
        layer.get_fbd_cuda = before


def with_adapter(base, adapter):
    """PEFT's model of an adapter over `base`, not merged."""
    import peft

    return peft.PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False).eval()
