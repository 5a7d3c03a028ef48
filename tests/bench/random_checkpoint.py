"""Checkpoints of random bfloat16 weights in the shapes of published models: speed does not depend on what weights say.

The tokenizer is the demo model's, whose 4096 tokens leave the rest of the vocabulary unused.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TOKENIZER = Path(__file__).resolve().parents[2] / "models" / "demo" / "checkpoint"
SHARD_BYTES = 500_000_000
ROWS_AT_A_TIME = 4096
DEVIATION = 0.02
ONE = 0x3F80  # 1.0 in bfloat16


@dataclass(frozen=True)
class Shape:
    """A decoder of the Qwen3 family with tied embeddings; the defaults are Qwen3-0.6B's."""

    vocabulary: int = 151936
    hidden: int = 1024
    inner: int = 3072
    layers: int = 28
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of every tensor; vectors are norms."""
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.input_layernorm.weight", (self.hidden,)
            yield f"{prefix}.self_attn.q_proj.weight", (self.heads * self.head_dim, self.hidden)
            yield f"{prefix}.self_attn.k_proj.weight", (self.kv_heads * self.head_dim, self.hidden)
            yield f"{prefix}.self_attn.v_proj.weight", (self.kv_heads * self.head_dim, self.hidden)
            yield f"{prefix}.self_attn.o_proj.weight", (self.hidden, self.heads * self.head_dim)
            yield f"{prefix}.self_attn.q_norm.weight", (self.head_dim,)
            yield f"{prefix}.self_attn.k_norm.weight", (self.head_dim,)
            yield f"{prefix}.post_attention_layernorm.weight", (self.hidden,)
            yield f"{prefix}.mlp.gate_proj.weight", (self.inner, self.hidden)
            yield f"{prefix}.mlp.up_proj.weight", (self.inner, self.hidden)
            yield f"{prefix}.mlp.down_proj.weight", (self.hidden, self.inner)
        yield "model.norm.weight", (self.hidden,)

    def config(self) -> dict[str, object]:
        """config.json, with rope_theta in the old place as well: mistral.rs looks there."""
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 0,
            "dtype": "bfloat16",
            "eos_token_id": 0,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": DEVIATION,
            "intermediate_size": self.inner,
            "layer_types": ["full_attention"] * self.layers,
            "max_position_embeddings": 40960,
            "max_window_layers": self.layers,
            "model_type": "qwen3",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-06,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
            "rope_scaling": None,
            "rope_theta": 1e6,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": self.vocabulary,
        }


SHAPES = {
    "Qwen3-0.6B": Shape(),
    "Qwen3-1.7B": Shape(hidden=2048, inner=6144),
    "Qwen3-4B": Shape(hidden=2560, inner=9728, layers=36, heads=32),
}
"""Those that are measured, by the model's name."""


def is_checkpoint(folder: Path, shape: Shape) -> bool:
    """Whether `folder` has a checkpoint of this shape, complete: config.json is written last."""
    path = folder / "config.json"
    return path.exists() and json.loads(path.read_text("utf-8")) == shape.config()


def write_checkpoint(folder: Path, shape: Shape) -> None:
    """Write the checkpoint in safetensors shards of at most 500 MB where tensors allow; config.json comes last."""
    folder.mkdir(parents=True)
    random = np.random.Generator(np.random.SFC64(0))
    shards = _shards(shape)
    names = [f"model-{index + 1:05}-of-{len(shards):05}.safetensors" for index in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard, random)
    owners = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor, _ in shard}
    total = sum(2 * int(np.prod(dimensions)) for _, dimensions in shape.tensors())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": owners})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, folder / name)
    _write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 0})
    _write_json(folder / "config.json", shape.config())


Tensors = list[tuple[str, tuple[int, ...]]]


def _shards(shape: Shape) -> list[Tensors]:
    shards: list[Tensors] = [[]]
    size = 0
    for name, dimensions in shape.tensors():
        bytes_ = 2 * int(np.prod(dimensions))
        if shards[-1] and size + bytes_ > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append((name, dimensions))
        size += bytes_
    return shards


def _write_shard(path: Path, tensors: Tensors, random: np.random.Generator) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dimensions in tensors:
        start, end = end, end + 2 * int(np.prod(dimensions))
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, dimensions in tensors:
            for part in _values(dimensions, random):
                file.write(part.tobytes())


def _values(dimensions: tuple[int, ...], random: np.random.Generator) -> Iterator[np.ndarray]:
    """The bits of a tensor, a few rows at a time: ones for a norm, else normally distributed and cut to bfloat16."""
    if len(dimensions) == 1:
        yield np.full(dimensions, ONE, dtype=np.uint16)
        return
    rows, columns = dimensions
    for first in range(0, rows, ROWS_AT_A_TIME):
        values = random.standard_normal((min(ROWS_AT_A_TIME, rows - first), columns), dtype=np.float32)
        values *= DEVIATION
        yield (values.view(np.uint32) >> 16).astype(np.uint16)


def _write_json(path: Path, document: dict[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
