"""Write a model as a Hugging Face checkpoint: configuration, tokenizer and bfloat16 weights.

The JSON files are those that transformers 5 writes for the same model, less the keys that say nothing here.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from pyc.models.demo.corpus import END_OF_TEXT, END_OF_TEXT_ID
from pyc.models.demo.network import Shape

WEIGHTS_FILE = "model.safetensors"
_QWEN3: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "model_type": "qwen3",
    "use_sliding_window": False,
}
_MISTRAL: dict[str, object] = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
SPECIAL_IDS = {"bos_token_id": END_OF_TEXT_ID, "eos_token_id": END_OF_TEXT_ID, "pad_token_id": END_OF_TEXT_ID}


def model_config(shape: Shape) -> dict[str, object]:
    """Return config.json as transformers' `Qwen3Config` names things, or without norms of heads `MistralConfig`."""
    own = _QWEN3 | {"layer_types": ["full_attention"] * shape.layers} if shape.head_norm else _MISTRAL
    return SPECIAL_IDS | own | {
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn_size,
        "max_position_embeddings": shape.context,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": shape.tied,
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def generation_config() -> dict[str, object]:
    """Return generation_config.json: sampling a little colder than the model's own distribution."""
    return SPECIAL_IDS | {"do_sample": True, "temperature": 0.7, "top_p": 0.95}


def tokenizer_config(shape: Shape) -> dict[str, object]:
    """Return tokenizer_config.json; everything else about the tokenizer stands in tokenizer.json."""
    return {
        "backend": "tokenizers",
        "bos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TEXT,
        "model_max_length": shape.context,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "TokenizersBackend",
    }


def write_checkpoint(weights: Mapping[str, Tensor], shape: Shape, tokenizer: Tokenizer, folder: Path) -> None:
    """Write all files of the checkpoint to `folder`, each one atomically and the weights last.

    `weights` are the model's `state_dict()`, of any floating dtype; they are rounded to bfloat16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".checkpoint-", dir=folder.parent))
    contents = {
        "config.json": model_config(shape),
        "generation_config.json": generation_config(),
        "tokenizer_config.json": tokenizer_config(shape),
    }
    try:
        for name, content in contents.items():
            text = json.dumps(content, indent=2, sort_keys=True) + "\n"
            (staging / name).write_text(text, encoding="utf-8")
        tokenizer.save(str(staging / "tokenizer.json"))
        rounded = {name: value.detach().to("cpu", torch.bfloat16) for name, value in weights.items()}
        save_file(rounded, staging / WEIGHTS_FILE, metadata={"format": "pt"})
        for name in (*contents, "tokenizer.json", WEIGHTS_FILE):
            (staging / name).chmod(0o644)
            (staging / name).replace(folder / name)
    finally:
        shutil.rmtree(staging)
