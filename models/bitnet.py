"""BitNet b1.58 (arXiv:2402.17764, arXiv:2504.12285): norms before o and down, and relu^2 gates.

Its matrices are -1, 0 and 1 times a scale: `models.quantized.bitnet`.
"""

from __future__ import annotations

from pyc.models.config import DecoderTraits

TRAITS = DecoderTraits(
    architecture="bitnet",
    qkv_bias="config",
    output_bias="config",
    mlp_bias=False,
    head_norm=False,
    windows="none",
    default_kv_heads=5,
    default_head_dim=None,
    default_context=2048,
    default_activation="relu2",
    default_epsilon=1e-5,
    default_rope_base=500000.0,
    sub_norms=True,
)
"""`attention_bias` gives q, k, v and o a bias."""

CLASSES = ("BitNetForCausalLM", "BitNetModel")
