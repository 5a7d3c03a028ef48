"""Qwen2 and Qwen2.5 (arXiv:2407.10671): a bias on q, k and v; a window in upper layers if switched on."""

from __future__ import annotations

from pyc.models.config import DecoderTraits

TRAITS = DecoderTraits(
    architecture="qwen2",
    qkv_bias=True,
    output_bias=False,
    mlp_bias=False,
    head_norm=False,
    windows="by_layer",
    default_kv_heads=32,
    default_head_dim=None,
    default_context=32768,
)
"""Layers from `max_window_layers` on have the window, unless `layer_types` says otherwise."""

CLASSES = ("Qwen2ForCausalLM", "Qwen2Model")
