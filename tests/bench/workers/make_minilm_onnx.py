"""ONNX files of a BERT encoder: float32 with fused attention, and int8 by dynamic quantization.

usage: make_minilm_onnx.py CHECKPOINT OUT_PREFIX    -> OUT_PREFIX-f32.onnx, OUT_PREFIX-int8.onnx

The int8 file is what optimum's configuration for AVX512_VNNI makes: weights in signed 8 bits an output channel,
activations in unsigned 8 bits as they come, and no reduced range. Needs torch, transformers, onnx, onnxruntime.
"""

import json
import sys
from pathlib import Path

import onnx
import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.optimizer import optimize_model

NAMES = ("input_ids", "attention_mask", "token_type_ids")
OPSET = 17


class Hidden(torch.nn.Module):
    """The encoder with tensors for arguments and the last hidden states for a result."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor):
        """[batch, tokens, features]."""
        found = self.encoder(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return found.last_hidden_state


def main(checkpoint: Path, prefix: str) -> None:
    """Export, fuse, quantize."""
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    model = transformers.AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval()
    plain, fused = Path(f"{prefix}-plain.onnx"), Path(f"{prefix}-f32.onnx")
    example = torch.ones((2, 8), dtype=torch.int64)
    torch.onnx.export(
        Hidden(model),
        (example, example, torch.zeros_like(example)),
        str(plain),
        input_names=list(NAMES),
        output_names=["hidden"],
        dynamic_axes={name: {0: "batch", 1: "tokens"} for name in (*NAMES, "hidden")},
        opset_version=OPSET,
        dynamo=False,
    )
    heads, features = config["num_attention_heads"], config["hidden_size"]
    optimized = optimize_model(str(plain), model_type="bert", num_heads=heads, hidden_size=features)
    print(optimized.get_fused_operator_statistics())
    optimized.save_model_to_file(str(fused))
    quantize_dynamic(
        fused,
        f"{prefix}-int8.onnx",
        per_channel=True,
        reduce_range=False,
        weight_type=QuantType.QInt8,
        # shapes are not inferred through the fused operators
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )
    plain.unlink()


main(Path(sys.argv[1]), sys.argv[2])
