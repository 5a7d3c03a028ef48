"""config.json, parsed once: the raw fields as Hugging Face writes them, and what pyc makes of them.

Both forms are read: the old one (`rope_theta`, `rope_scaling`, `torch_dtype`) and that of transformers 5
(`rope_parameters`, `dtype`, `layer_types`). A key that may be absent gets the default of transformers 5.
What would change the mathematics and is not supported is an IngestError; unknown keys are otherwise ignored,
as there are many that only training or caching reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from pyc.models.messages import quoted
from pyc.models.rope import MAX_HEAD_DIM, RopeConfig
from pyc.runtime.errors import IngestError

MAX_FEATURES = 1 << 20
"""Columns of a matrix, at most, since a build holds 16 rows of it at a time; models have up to 53,000."""

_Size = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
_Features = Annotated[int, Meta(ge=1, le=MAX_FEATURES)]
_HeadDim = Annotated[int, Meta(ge=1, le=MAX_HEAD_DIM)]

ACTIVATION_NAMES: dict[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
"""`hidden_act` of transformers to the activation functions of the IR."""


class HuggingFaceConfig(Struct, frozen=True):
    """The fields of config.json that pyc reads; None and UNSET mean null and absent."""

    model_type: str | None = None
    architectures: tuple[str, ...] | None = None
    vocab_size: _Size | None = None
    hidden_size: _Features | None = None
    intermediate_size: _Features | None = None
    num_hidden_layers: Annotated[int, Meta(ge=1, le=4096)] | None = None
    num_attention_heads: _Features | None = None
    num_key_value_heads: _Features | UnsetType | None = UNSET
    head_dim: _HeadDim | UnsetType | None = UNSET
    max_position_embeddings: _Size | None = None
    original_max_position_embeddings: _Size | None = None
    hidden_act: str | None = None
    rms_norm_eps: float | None = None
    layer_norm_eps: float | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    sliding_window: Annotated[int, Meta(le=(1 << 31) - 1)] | UnsetType | None = UNSET
    use_sliding_window: bool | None = None
    max_window_layers: int | None = None
    layer_types: tuple[str, ...] | None = None
    rope_theta: float | None = None
    rope_scaling: object = None
    rope_parameters: object = None
    partial_rotary_factor: float | None = None
    type_vocab_size: _Size | None = None
    position_embedding_type: str | None = None
    is_decoder: bool | None = None
    add_cross_attention: bool | None = None
    is_causal: bool | None = None
    use_mrope: bool | None = None
    quantization_config: object = None
    per_layer_config: object = None
    torch_dtype: str | None = None
    dtype: str | None = None
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A pre-norm decoder; sizes in features. `context` is in tokens, `max_context` what RoPE reaches; `windows` has
    for each layer the positions that it sees (0: all)."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    activation: str
    epsilon: float
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norm: bool
    context: int
    max_context: int
    rope: RopeConfig
    windows: tuple[int, ...]
    sub_norms: bool = False


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """A post-norm encoder with learned positions (BERT)."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    layers: int
    positions: int
    token_types: int
    activation: str
    epsilon: float


@dataclass(frozen=True, slots=True)
class DecoderTraits:
    """What an architecture fixes or defaults where config.json is silent; sizes as in DecoderConfig.

    A bias is always, never, or as `attention_bias` or `mlp_bias` say ("config"). `windows` says which layers
    `sliding_window` binds: none, all of them, or those that `layer_types` and `max_window_layers` name. `sub_norms`:
    what attention and gates give is normalised (RMS) before o and down multiply it.
    """

    architecture: str
    qkv_bias: bool | Literal["config"]
    output_bias: bool | Literal["config"]
    mlp_bias: bool | Literal["config"]
    head_norm: bool
    windows: Literal["none", "all", "by_layer"]
    default_kv_heads: int | None
    default_head_dim: int | None
    default_context: int
    default_activation: str = "silu"
    default_epsilon: float = 1e-6
    default_rope_base: float | None = None
    sub_norms: bool = False


def required(value: int | None, name: str, where: str) -> int:
    """Return `value`; IngestError when config.json lacks the field."""
    if value is None:
        raise IngestError(f"{where}: config.json has no {name}")
    return value


def activation(raw: HuggingFaceConfig, default: str, where: str) -> str:
    """Return the IR's name of `hidden_act`; IngestError when there is no such function."""
    name = raw.hidden_act or default
    if name not in ACTIVATION_NAMES:
        raise IngestError(
            f"{where}: hidden_act {quoted(name)} is not supported (known: {', '.join(ACTIVATION_NAMES)})"
        )
    return ACTIVATION_NAMES[name]


def norm_epsilon(value: float | None, default: float, name: str, where: str) -> float:
    """Return the norm's epsilon; IngestError when it is not within 0 to 1."""
    epsilon = default if value is None else value
    if not 0 <= epsilon <= 1:
        raise IngestError(f"{where}: {name} is {epsilon:g}, expected a number from 0 to 1")
    return epsilon


def refuse_unsupported(raw: HuggingFaceConfig, where: str) -> None:
    """Raise IngestError for fields that change the mathematics in ways that pyc does not have."""
    refused = {
        "per_layer_config": (raw.per_layer_config is not None, "layers of different sizes are not supported"),
        "add_cross_attention": (bool(raw.add_cross_attention), "cross attention is not supported"),
        "is_causal": (raw.is_causal is False, "a decoder without a causal mask is not supported"),
        "use_mrope": (bool(raw.use_mrope), "multimodal rotary embedding is not supported"),
        "position_embedding_type": (
            raw.position_embedding_type not in (None, "absolute"),
            f"{quoted(raw.position_embedding_type)} is not supported, only 'absolute'",
        ),
        "partial_rotary_factor": (
            raw.partial_rotary_factor not in (None, 1.0),
            "transformers ignores it for this model type and other engines do not: its meaning is not known",
        ),
    }
    for name, (is_wrong, remedy) in refused.items():
        if is_wrong:
            raise IngestError(f"{where}: config.json sets {name}: {remedy}")
