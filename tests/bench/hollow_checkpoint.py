"""Checkpoints without values: configuration, tokenizer, and a file of safetensors whose tensors are a hole in it.

What compiles programs reads headers alone, so a shape of 16 GB takes kilobytes.
"""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TOKENIZER = Path(__file__).resolve().parents[2] / "models" / "demo" / "checkpoint"


@dataclass(frozen=True)
class LlamaShape:
    """A decoder of the Llama family."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    is_tied: bool
    vocabulary: int = 128256
    positions: int = 8192

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.input_layernorm.weight", (self.hidden,)
            yield f"{prefix}.self_attn.q_proj.weight", (wide, self.hidden)
            yield f"{prefix}.self_attn.k_proj.weight", (narrow, self.hidden)
            yield f"{prefix}.self_attn.v_proj.weight", (narrow, self.hidden)
            yield f"{prefix}.self_attn.o_proj.weight", (self.hidden, wide)
            yield f"{prefix}.post_attention_layernorm.weight", (self.hidden,)
            yield f"{prefix}.mlp.gate_proj.weight", (self.inner, self.hidden)
            yield f"{prefix}.mlp.up_proj.weight", (self.inner, self.hidden)
            yield f"{prefix}.mlp.down_proj.weight", (self.hidden, self.inner)
        yield "model.norm.weight", (self.hidden,)
        if not self.is_tied:
            yield "lm_head.weight", (self.vocabulary, self.hidden)

    def config(self) -> dict[str, object]:
        """config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "bos_token_id": 0,
            "dtype": "bfloat16",
            "eos_token_id": 0,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "max_position_embeddings": self.positions,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
            "tie_word_embeddings": self.is_tied,
            "vocab_size": self.vocabulary,
        }


LLAMA_8B = LlamaShape(hidden=4096, inner=14336, layers=32, heads=32, kv_heads=8, head_dim=128, is_tied=False)
LLAMA_1B = LlamaShape(hidden=2048, inner=8192, layers=16, heads=32, kv_heads=8, head_dim=64, is_tied=True)
"""Llama-3-8B and Llama-3.2-1B."""


def write_hollow_checkpoint(folder: Path, shape: LlamaShape) -> Path:
    """Write a checkpoint in bf16 into `folder`, which is returned."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dimensions in shape.tensors():
        start, end = end, end + 2 * math.prod(dimensions)
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(TOKENIZER / name, folder / name)
    (folder / "config.json").write_text(json.dumps(shape.config()), "utf-8")
    return folder
