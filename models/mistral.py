"""Mistral (arXiv:2310.06825): Llama without biases; `sliding_window` binds every layer."""

from __future__ import annotations

from pyc.models.config import DecoderTraits

TRAITS = DecoderTraits(
    architecture="mistral",
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    head_norm=False,
    windows="all",
    default_kv_heads=8,
    default_head_dim=None,
    default_context=131072,
)
"""Position p sees p - sliding_window + 1 .. p."""

CLASSES = ("MistralForCausalLM", "MistralModel")
