"""llama.cpp's names of matrices, and those of checkpoints."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from pyc.models.decoder import EMBEDDING, OUTPUT

_DECODER = "model.layers.{}."
_ENCODER = "encoder.layer.{}."
_IN_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "attn_q": (_DECODER + "self_attn.q_proj", _ENCODER + "attention.self.query"),
    "attn_k": (_DECODER + "self_attn.k_proj", _ENCODER + "attention.self.key"),
    "attn_v": (_DECODER + "self_attn.v_proj", _ENCODER + "attention.self.value"),
    "attn_output": (_DECODER + "self_attn.o_proj", _ENCODER + "attention.output.dense"),
    "ffn_gate": (_DECODER + "mlp.gate_proj",),
    "ffn_up": (_DECODER + "mlp.up_proj", _ENCODER + "intermediate.dense"),
    "ffn_down": (_DECODER + "mlp.down_proj", _ENCODER + "output.dense"),
}
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "output": (OUTPUT, EMBEDDING),
    "token_embd": (EMBEDDING, "embeddings.word_embeddings.weight"),
}
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.weight")


def checkpoint_name(name: str, weights: Collection[str]) -> str | None:
    """Return which of a model's weights llama.cpp calls `name`, such as `blk.0.attn_q.weight`; None: none of them.

    `output` is the matrix of the logits, that of the embedding where the model has no other.
    """
    block = _BLOCK.fullmatch(name)
    if block is not None:
        candidates = tuple(each.format(block[1]) + ".weight" for each in _IN_BLOCKS.get(block[2], ()))
    else:
        candidates = _OTHERS.get(name.removesuffix(".weight"), ()) if name.endswith(".weight") else ()
    return next((each for each in candidates if each in weights), None)
