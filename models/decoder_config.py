"""config.json of a decoder as `DecoderConfig`, given what its architecture fixes (`DecoderTraits`)."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from pyc.models.config import (
    MAX_FEATURES,
    DecoderConfig,
    DecoderTraits,
    HuggingFaceConfig,
    activation,
    norm_epsilon,
    refuse_unsupported,
    required,
)
from pyc.models.messages import quoted
from pyc.models.rope import MAX_HEAD_DIM
from pyc.models.rope_config import rope_of
from pyc.runtime.errors import IngestError

_LEGACY_LAYER_TYPES = {"attention": "full_attention"}
DEFAULT_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28


def read_decoder_config(raw: HuggingFaceConfig, traits: DecoderTraits, where: str) -> DecoderConfig:
    """Return the parsed configuration of a decoder; IngestError names the field that does not fit."""
    refuse_unsupported(raw, where)
    hidden = required(raw.hidden_size, "hidden_size", where)
    heads = required(raw.num_attention_heads, "num_attention_heads", where)
    kv_heads = traits.default_kv_heads if raw.num_key_value_heads is UNSET else raw.num_key_value_heads
    kv_heads = kv_heads or heads
    if heads % kv_heads:
        raise IngestError(f"{where}: {heads} attention heads cannot share {kv_heads} key-value heads evenly")
    head_dim = _head_dim(raw, traits, hidden, heads, where)
    if heads * head_dim > MAX_FEATURES:
        raise IngestError(
            f"{where}: num_attention_heads {heads} of head_dim {head_dim} are {heads * head_dim} features, "
            f"expected at most {MAX_FEATURES}"
        )
    context = raw.max_position_embeddings or traits.default_context
    if raw.rope_theta is None and traits.default_rope_base is not None:
        raw = msgspec.structs.replace(raw, rope_theta=traits.default_rope_base)
    rope = rope_of(raw, head_dim, context, where)
    return DecoderConfig(
        architecture=traits.architecture,
        vocab_size=required(raw.vocab_size, "vocab_size", where),
        hidden_size=hidden,
        intermediate_size=required(raw.intermediate_size, "intermediate_size", where),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        activation=activation(raw, traits.default_activation, where),
        epsilon=norm_epsilon(raw.rms_norm_eps, traits.default_epsilon, "rms_norm_eps", where),
        tied=bool(raw.tie_word_embeddings),
        qkv_bias=bool(raw.attention_bias) if traits.qkv_bias == "config" else traits.qkv_bias,
        output_bias=bool(raw.attention_bias) if traits.output_bias == "config" else traits.output_bias,
        mlp_bias=bool(raw.mlp_bias) if traits.mlp_bias == "config" else traits.mlp_bias,
        head_norm=traits.head_norm,
        context=context,
        max_context=rope.reach(context),
        rope=rope,
        windows=_windows(raw, traits, where),
        sub_norms=traits.sub_norms,
    )


def _head_dim(raw: HuggingFaceConfig, traits: DecoderTraits, hidden: int, heads: int, where: str) -> int:
    head_dim = traits.default_head_dim if raw.head_dim is UNSET else raw.head_dim
    if head_dim is not None:
        return head_dim
    if hidden % heads:
        raise IngestError(
            f"{where}: hidden_size {hidden} is not a multiple of {heads} attention heads; set head_dim"
        )
    if hidden // heads > MAX_HEAD_DIM:
        raise IngestError(
            f"{where}: hidden_size {hidden} and num_attention_heads {heads} give heads of {hidden // heads} features, "
            f"expected at most {MAX_HEAD_DIM}"
        )
    return hidden // heads


def _windows(raw: HuggingFaceConfig, traits: DecoderTraits, where: str) -> tuple[int, ...]:
    """Return the window of each layer in positions, 0 for unbounded."""
    count = required(raw.num_hidden_layers, "num_hidden_layers", where)
    types = _layer_types(raw, count, where)
    if traits.windows == "none":
        if isinstance(raw.sliding_window, int) or "sliding_attention" in (types or ()):
            raise IngestError(
                f"{where}: {traits.architecture} has no sliding window, but config.json sets one"
            )
        return (0,) * count
    if traits.windows == "by_layer" and not raw.use_sliding_window:
        if "sliding_attention" in (types or ()):
            raise IngestError(
                f"{where}: layer_types has sliding_attention, but use_sliding_window is not true"
            )
        return (0,) * count
    window = _window(raw, where)
    if traits.windows == "all":
        used = "sliding_attention" if window else "full_attention"
        if any(kind != used for kind in types or ()):
            raise IngestError(
                f"{where}: layer_types has another kind than {used}, the one that all layers of "
                f"{traits.architecture} have as sliding_window is {window or None}"
            )
        return (window,) * count
    first = DEFAULT_MAX_WINDOW_LAYERS if raw.max_window_layers is None else raw.max_window_layers
    if types is None:
        return tuple(window if index >= first else 0 for index in range(count))
    if not window and "sliding_attention" in types:
        raise IngestError(f"{where}: layer_types has sliding_attention, but sliding_window is null")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def _layer_types(raw: HuggingFaceConfig, count: int, where: str) -> tuple[str, ...] | None:
    if raw.layer_types is None:
        return None
    types = tuple(_LEGACY_LAYER_TYPES.get(kind, kind) for kind in raw.layer_types)
    for kind in types:
        if kind not in ("full_attention", "sliding_attention"):
            raise IngestError(
                f"{where}: layer type {quoted(kind)} is not supported (known: full_attention, sliding_attention)"
            )
    if len(types) != count:
        raise IngestError(f"{where}: layer_types has {len(types)} entries for {count} layers")
    return types


def _window(raw: HuggingFaceConfig, where: str) -> int:
    window = DEFAULT_WINDOW if raw.sliding_window is UNSET else raw.sliding_window
    if window is not None and window < 1:
        raise IngestError(f"{where}: sliding_window is {window}, expected at least 1 or null")
    return window or 0
