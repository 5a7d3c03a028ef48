"""Llama (arXiv:2302.13971, arXiv:2407.21783): grouped queries, no window; biases as configured."""

from __future__ import annotations

from pyc.models.config import DecoderTraits

TRAITS = DecoderTraits(
    architecture="llama",
    qkv_bias="config",
    output_bias="config",
    mlp_bias="config",
    head_norm=False,
    windows="none",
    default_kv_heads=None,
    default_head_dim=None,
    default_context=2048,
)
"""`attention_bias` gives q, k, v and o a bias, `mlp_bias` gate, up and down."""

CLASSES = ("LlamaForCausalLM", "LlamaModel")
