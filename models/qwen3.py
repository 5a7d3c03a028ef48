"""Qwen3 (arXiv:2505.09388): q and k are RMS-normalised head by head before the rotary embedding."""

from __future__ import annotations

from pyc.models.config import DecoderTraits

TRAITS = DecoderTraits(
    architecture="qwen3",
    qkv_bias="config",
    output_bias="config",
    mlp_bias=False,
    head_norm=True,
    windows="by_layer",
    default_kv_heads=32,
    default_head_dim=128,
    default_context=32768,
)
"""`attention_bias` gives q, k, v and o a bias; `head_dim` is independent of hidden_size."""

CLASSES = ("Qwen3ForCausalLM", "Qwen3Model")
