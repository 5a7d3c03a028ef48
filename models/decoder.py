"""The graph that Llama, Mistral, Qwen2, Qwen3 and BitNet share: pre-norm attention and a gated feed-forward.

    x = embedding(token_ids)
    each layer: x = x + o(attention(rope(norm?(q(n))), rope(norm?(k(n))), v(n))) where n = rms_norm(x)
                x = x + down(act(gate(m)) * up(m))                               where m = rms_norm(x)
    BitNet: what o and down multiply is normalised (rms_norm) before
    hidden = rms_norm(x); logits = lm_head(hidden)

Weights carry the names that Hugging Face gives their tensors. An architecture's file says only what differs.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyc.compiler.builder import FunctionBuilder
from pyc.compiler.ir import Function, Graph
from pyc.compiler.weights import Constant, Shape
from pyc.models.config import DecoderConfig
from pyc.models.rope import angle_attributes, inverse_frequencies
from pyc.runtime.host.rounding import ceil_div

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT = "lm_head.weight"
ROTARY = "rope.0.inverse_frequencies"
BLOCK_TOKENS = 64
"""Positions in a block of the key-value cache where no backend asks for another number."""


def weight_shapes(config: DecoderConfig) -> dict[str, Shape]:
    """Return the tensors that a checkpoint must have, with their shapes ([out, in] for products)."""
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, hidden)}
    for index in range(len(config.windows)):
        shapes |= _layer_shapes(config, f"model.layers.{index}.")
    shapes[FINAL_NORM] = (hidden,)
    if not config.tied:
        shapes[OUTPUT] = (config.vocab_size, hidden)
    return shapes


def _layer_shapes(config: DecoderConfig, prefix: str) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    products = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, Shape] = {f"{prefix}input_layernorm.weight": (hidden,)}
    for name, (out, width, has_bias) in products.items():
        shapes[f"{prefix}{name}.weight"] = (out, width)
        if has_bias:
            shapes[f"{prefix}{name}.bias"] = (out,)
    if config.head_norm:
        shapes[f"{prefix}self_attn.q_norm.weight"] = (config.head_dim,)
        shapes[f"{prefix}self_attn.k_norm.weight"] = (config.head_dim,)
    if config.sub_norms:
        shapes[f"{prefix}self_attn.attn_sub_norm.weight"] = (queries,)
        shapes[f"{prefix}mlp.ffn_sub_norm.weight"] = (inner,)
    shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    return shapes


def rotary_weights(config: DecoderConfig) -> dict[str, Constant]:
    """Return the inverse frequencies of the rotary embedding by their name."""
    return {ROTARY: Constant(inverse_frequencies(config.rope))}


def build_decoder(
    config: DecoderConfig, shapes: Mapping[str, Shape], context: int, max_sequences: int, block_tokens: int
) -> Graph:
    """Return the functions "forward" and "logits".

    `shapes` has every tensor of `weight_shapes` and every constant of `rotary_weights`; `context` is the
    longest sequence in tokens, `max_sequences` the rows of the block table, whose blocks have `block_tokens` positions.
    """
    return Graph((_forward(config, shapes, max_sequences, ceil_div(context, block_tokens)), _logits(config, shapes)))


def _forward(
    config: DecoderConfig, shapes: Mapping[str, Shape], max_sequences: int, blocks: int
) -> Function:
    build = FunctionBuilder("forward", shapes)
    token_ids = build.parameter("token_ids", "i32", "tokens")
    positions = build.parameter("positions", "i32", "tokens")
    sequences = build.parameter("sequences", "i32", "tokens")
    block_table = build.parameter("block_table", "i32", max_sequences, blocks)
    angles = build.emit("rope_angles", positions, weights=(ROTARY,), **angle_attributes(config.rope))
    x = build.emit("embedding", token_ids, weights=(EMBEDDING,))
    for index, window in enumerate(config.windows):
        prefix = f"model.layers.{index}."
        normed = build.emit(
            "rms_norm", x, weights=(f"{prefix}input_layernorm.weight",), epsilon=config.epsilon
        )
        rows = (positions, sequences, block_table)
        attended = _attention(build, config, window, index, normed, angles, rows)
        x = build.emit("add", x, attended)
        gain = f"{prefix}post_attention_layernorm.weight"
        normed = build.emit("rms_norm", x, weights=(gain,), epsilon=config.epsilon)
        x = build.emit("add", x, _feed_forward(build, config, prefix, normed))
    return build.finish(build.emit("rms_norm", x, weights=(FINAL_NORM,), epsilon=config.epsilon))


def _attention(
    build: FunctionBuilder,
    config: DecoderConfig,
    window: int,
    index: int,
    normed: str,
    angles: str,
    rows: tuple[str, str, str],
) -> str:
    prefix = f"model.layers.{index}.self_attn."
    rotated = []
    for name in ("q", "k"):
        value = _linear(build, normed, f"{prefix}{name}_proj", config.qkv_bias)
        if config.head_norm:
            gain = f"{prefix}{name}_norm.weight"
            value = build.emit(
                "head_norm", value, weights=(gain,), epsilon=config.epsilon, head_dim=config.head_dim
            )
        rotated.append(build.emit("rope", value, angles, head_dim=config.head_dim))
    values = _linear(build, normed, f"{prefix}v_proj", config.qkv_bias)
    attended = build.emit(
        "attention",
        *rotated,
        values,
        *rows,
        layer=index,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        window=window,
    )
    attended = _sub_norm(build, config, attended, f"{prefix}attn_sub_norm.weight")
    return _linear(build, attended, f"{prefix}o_proj", config.output_bias)


def _feed_forward(build: FunctionBuilder, config: DecoderConfig, prefix: str, normed: str) -> str:
    gate = _linear(build, normed, f"{prefix}mlp.gate_proj", config.mlp_bias)
    up = _linear(build, normed, f"{prefix}mlp.up_proj", config.mlp_bias)
    gated = build.emit("gated", gate, up, function=config.activation)
    gated = _sub_norm(build, config, gated, f"{prefix}mlp.ffn_sub_norm.weight")
    return _linear(build, gated, f"{prefix}mlp.down_proj", config.mlp_bias)


def _sub_norm(build: FunctionBuilder, config: DecoderConfig, value: str, gain: str) -> str:
    if not config.sub_norms:
        return value
    return build.emit("rms_norm", value, weights=(gain,), epsilon=config.epsilon)


def _linear(build: FunctionBuilder, value: str, module: str, has_bias: bool) -> str:
    return build.emit("linear", value, weights=(f"{module}.weight", f"{module}.bias" if has_bias else ""))


def _logits(config: DecoderConfig, shapes: Mapping[str, Shape]) -> Function:
    build = FunctionBuilder("logits", shapes)
    hidden = build.parameter("hidden", "f32", "tokens", config.hidden_size)
    return build.finish(build.emit("linear", hidden, weights=(EMBEDDING if config.tied else OUTPUT, "")))
