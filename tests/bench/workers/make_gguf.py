"""GGUF files of a checkpoint of the Qwen3 family: f16, and what llama.cpp quantizes from that.

usage: make_gguf.py CHECKPOINT OUT_PREFIX TYPE...    -> OUT_PREFIX-TYPE.gguf, and OUT_PREFIX-TYPE.json with the
bytes of weights that a decode step reads; the f16 file goes again unless it is asked for.
Needs gguf, numpy and llama-cpp-python.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from llama_cpp import llama_cpp

FILE_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 7, "q4_k_m": 15, "bf16": 32}  # llama_ftype
OUTSIDE_LAYERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Name and f32 values of every tensor of the checkpoint, which is bfloat16."""
    for path in sorted(folder.glob("*.safetensors")):
        data = np.memmap(path, dtype=np.uint8, mode="r")
        size = int.from_bytes(data[:8].tobytes(), "little")
        header = json.loads(data[8 : 8 + size].tobytes())
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "BF16":
                raise SystemExit(f"{name}: {entry['dtype']} in the checkpoint, expected BF16")
            first, last = (8 + size + offset for offset in entry["data_offsets"])
            bits = data[first:last].view(np.uint16).astype(np.uint32) << 16
            yield name, bits.view(np.float32).reshape(entry["shape"])


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    if name in OUTSIDE_LAYERS:
        return OUTSIDE_LAYERS[name]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    if match is None or match[2] not in IN_LAYER:
        raise SystemExit(f"{name}: not a tensor of a Qwen3 checkpoint")
    return f"blk.{match[1]}.{IN_LAYER[match[2]]}.weight"


def add_configuration(writer: gguf.GGUFWriter, config: dict) -> None:
    """The numbers of config.json."""
    if config["model_type"] != "qwen3":
        raise SystemExit(f"model_type {config['model_type']}: only qwen3 is converted to GGUF here")
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(theta)
    writer.add_file_type(1)


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: dict) -> None:
    """The vocabulary of tokenizer.json, filled up to the model's."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokens = [f"[PAD{index}]" for index in range(config["vocab_size"])]
    kinds = [gguf.TokenType.NORMAL] * len(tokens)  # as UNUSED, mistral.rs would take a minute to load the rest
    for token, index in tokenizer["model"]["vocab"].items():
        tokens[index] = token
    for token in tokenizer["added_tokens"]:
        tokens[token["id"]], kinds[token["id"]] = token["content"], gguf.TokenType.CONTROL
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])


def write_f16(folder: Path, output: Path) -> None:
    """The checkpoint as one file of f16 matrices and f32 vectors."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    writer = gguf.GGUFWriter(output, "qwen3")
    add_configuration(writer, config)
    add_tokenizer(writer, folder, config)
    for name, values in tensors(folder):
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        writer.add_tensor(gguf_name(name), values if values.ndim == 1 else values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bytes_a_token(path: Path) -> int:
    """Bytes of weights that a decode step reads: all but an embedding that is not the output matrix as well."""
    sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    untied = sizes["token_embd.weight"] if "output.weight" in sizes else 0
    return sum(sizes.values()) - untied


def main(folder: Path, prefix: str, kinds: list[str]) -> None:
    """Convert, then quantize."""
    source = Path(f"{prefix}-f16.gguf")
    write_f16(folder, source)
    for kind in kinds:
        output = Path(f"{prefix}-{kind}.gguf")
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = FILE_TYPES[kind]
        if kind != "f16" and llama_cpp.llama_model_quantize(bytes(source), bytes(output), parameters) != 0:
            raise SystemExit(f"llama.cpp could not quantize to {kind}")
        output.with_suffix(".json").write_text(json.dumps({"weights_bytes": bytes_a_token(output)}))
    if "f16" not in kinds:
        source.unlink()


main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
