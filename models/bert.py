"""BERT (arXiv:1810.04805) as an encoder of texts: post-norm, learned positions, token type 0.

    x = layer_norm(word[token] + type[0] + position[p])
    each layer: x = layer_norm(x + dense(attention(q(x), k(x), v(x))))
                x = layer_norm(x + dense(act(dense(x))))
    result = pool(x)

Canonical names are those of BertModel, without the prefix "bert."; old checkpoints call a norm's weight and
bias gamma and beta. Pooler and pre-training heads are not needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyc.compiler.builder import FunctionBuilder
from pyc.compiler.ir import Graph
from pyc.compiler.weights import Shape
from pyc.models.config import (
    EncoderConfig,
    HuggingFaceConfig,
    activation,
    norm_epsilon,
    refuse_unsupported,
    required,
)
from pyc.models.matching import NameRules
from pyc.runtime.artifact.format import Pooling
from pyc.runtime.errors import IngestError

CLASSES = ("BertModel", "BertForMaskedLM", "BertForPreTraining")
LAYERS = "encoder.layer."
"""How the names of what is in a layer begin."""
NAME_RULES = NameRules(
    harmless=re.compile(r"(embeddings\.)?(position_ids|token_type_ids)|pooler\.dense\.(weight|bias)|cls\..*"),
    strip="bert.",
    suffixes=((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")),
)


def read_config(raw: HuggingFaceConfig, where: str) -> EncoderConfig:
    """Return the parsed configuration; IngestError names the field that does not fit."""
    refuse_unsupported(raw, where)
    if raw.is_decoder:
        raise IngestError(f"{where}: config.json sets is_decoder: a BERT decoder is not supported")
    hidden = required(raw.hidden_size, "hidden_size", where)
    heads = required(raw.num_attention_heads, "num_attention_heads", where)
    if hidden % heads:
        raise IngestError(f"{where}: hidden_size {hidden} is not a multiple of {heads} attention heads")
    return EncoderConfig(
        architecture="bert",
        vocab_size=required(raw.vocab_size, "vocab_size", where),
        hidden_size=hidden,
        intermediate_size=required(raw.intermediate_size, "intermediate_size", where),
        heads=heads,
        layers=required(raw.num_hidden_layers, "num_hidden_layers", where),
        positions=raw.max_position_embeddings or 512,
        token_types=raw.type_vocab_size or 2,
        activation=activation(raw, "gelu", where),
        epsilon=norm_epsilon(raw.layer_norm_eps, 1e-12, "layer_norm_eps", where),
    )


def weight_shapes(config: EncoderConfig) -> dict[str, Shape]:
    """Return the tensors that a checkpoint must have, with their shapes ([out, in] for products)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, Shape] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.positions, hidden),
        "embeddings.token_type_embeddings.weight": (config.token_types, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    products = {
        "attention.self.query": (hidden, hidden),
        "attention.self.key": (hidden, hidden),
        "attention.self.value": (hidden, hidden),
        "attention.output.dense": (hidden, hidden),
        "intermediate.dense": (inner, hidden),
        "output.dense": (hidden, inner),
    }
    for index in range(config.layers):
        prefix = f"{LAYERS}{index}."
        for name, shape in products.items():
            shapes[f"{prefix}{name}.weight"] = shape
            shapes[f"{prefix}{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{prefix}{name}.weight"] = shapes[f"{prefix}{name}.bias"] = (hidden,)
    return shapes


def build_encoder(config: EncoderConfig, shapes: Mapping[str, Shape], pooling: Pooling) -> Graph:
    """Return the function "embed": a flattened batch of texts to [sequences, hidden] f32.

    Row t attends to the rows [span_start[t], span_end[t]); sequence s is pooled over the rows
    [seq_start[s], seq_end[s]).
    """
    build = FunctionBuilder("embed", shapes)
    token_ids, positions, start, end = (
        build.parameter(name, "i32", "tokens")
        for name in ("token_ids", "positions", "span_start", "span_end")
    )
    seq_start, seq_end = (build.parameter(name, "i32", "sequences") for name in ("seq_start", "seq_end"))
    x = build.emit("embedding", token_ids, weights=("embeddings.word_embeddings.weight",))
    x = build.emit("add_row", x, weights=("embeddings.token_type_embeddings.weight",), index=0)
    position = build.emit("embedding", positions, weights=("embeddings.position_embeddings.weight",))
    x = _norm(build, config, build.emit("add", x, position), "embeddings.LayerNorm")
    head_dim = config.hidden_size // config.heads
    for index in range(config.layers):
        prefix = f"{LAYERS}{index}."
        q, k, v = (_linear(build, x, f"{prefix}attention.self.{name}") for name in ("query", "key", "value"))
        attended = build.emit(
            "span_attention", q, k, v, start, end, heads=config.heads, head_dim=head_dim, scale=head_dim**-0.5
        )
        projected = _linear(build, attended, f"{prefix}attention.output.dense")
        x = _norm(build, config, build.emit("add", projected, x), f"{prefix}attention.output.LayerNorm")
        inner = _linear(build, x, f"{prefix}intermediate.dense")
        inner = build.emit("activation", inner, function=config.activation)
        outer = _linear(build, inner, f"{prefix}output.dense")
        x = _norm(build, config, build.emit("add", outer, x), f"{prefix}output.LayerNorm")
    pooled = build.emit("pool", x, seq_start, seq_end, mode=pooling.mode, normalize=pooling.normalize)
    return Graph((build.finish(pooled),))


def _linear(build: FunctionBuilder, value: str, module: str) -> str:
    return build.emit("linear", value, weights=(f"{module}.weight", f"{module}.bias"))


def _norm(build: FunctionBuilder, config: EncoderConfig, value: str, module: str) -> str:
    return build.emit(
        "layer_norm", value, weights=(f"{module}.weight", f"{module}.bias"), epsilon=config.epsilon
    )
