"""Adapters of PEFT, of each kind that is fused, and the model that PEFT makes of one."""

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


def with_adapter(base, adapter):
    """PEFT's model of an adapter over `base`, not merged."""
    import peft

    return peft.PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False).eval()
