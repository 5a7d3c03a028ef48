"""The rotary parameters of config.json, in both forms, as `RopeConfig`.

Old: `rope_theta` beside `rope_scaling: {type or rope_type, factor, ...}`. New: `rope_parameters` with
rope_theta in it, or one such table for each layer type. Each kind takes its own keys; others are refused
unless null.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from pyc.models.config import HuggingFaceConfig
from pyc.models.rope import KINDS, RopeConfig, RopeKind
from pyc.runtime.errors import IngestError

DEFAULT_BASE = 10000.0
LAYER_TYPES = ("full_attention", "sliding_attention")

_COMMON = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_KEYS: dict[RopeKind, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor", "original_max_position_embeddings"}),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
            "finetuned",
        }
    ),
}


class _RopeTable(Struct, frozen=True):
    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None


def rope_by_layer_type(
    raw: HuggingFaceConfig, head_dim: int, context: int, where: str
) -> dict[str, RopeConfig]:
    """Return the rotary parameters of "full_attention" and "sliding_attention" layers.

    `context` is max_position_embeddings in tokens. Raises IngestError on an unknown kind or key, or a value
    out of range.
    """
    scaling = raw.rope_scaling or None
    if scaling is not None and raw.rope_parameters and scaling != raw.rope_parameters:
        raise IngestError(f"{where}: config.json has both rope_scaling and rope_parameters, and they differ")
    table = scaling or raw.rope_parameters or {}
    if not isinstance(table, dict):
        raise IngestError(f"{where}: rope_parameters is {table!r}, expected an object")
    nested = [key for key in table if key in LAYER_TYPES]
    if not nested:
        rope = _parse(table, raw, head_dim, context, f"{where}: rope_parameters")
        return dict.fromkeys(LAYER_TYPES, rope)
    if len(nested) != len(table):
        extra = next(key for key in table if key not in LAYER_TYPES)
        raise IngestError(f"{where}: rope_parameters has {extra!r} beside {', '.join(nested)}")
    missing = [
        key for key in LAYER_TYPES if key not in nested and key in (raw.layer_types or ("full_attention",))
    ]
    if missing:
        raise IngestError(f"{where}: rope_parameters has no entry for the layer type {missing[0]}")
    found = {
        key: _parse(table[key], raw, head_dim, context, f"{where}: rope_parameters.{key}") for key in nested
    }
    return {key: found.get(key, found[nested[0]]) for key in LAYER_TYPES}


def _parse(value: object, raw: HuggingFaceConfig, head_dim: int, context: int, where: str) -> RopeConfig:
    try:
        table = msgspec.convert(value, _RopeTable)
        given = msgspec.convert(value, dict[str, object])
    except msgspec.ValidationError as problem:
        raise IngestError(f"{where}: {problem}") from problem
    kind = _kind(table, where)
    unread = sorted(
        key for key, item in given.items() if item is not None and key not in _COMMON | _KEYS[kind]
    )
    if unread:
        raise IngestError(
            f"{where}: {unread[0]!r} is not a parameter of rope type {kind!r}; remove it from config.json"
        )
    if table.partial_rotary_factor not in (None, 1.0):
        raise IngestError(
            f"{where}: partial_rotary_factor is {table.partial_rotary_factor}; transformers ignores it for "
            "this model type and other engines do not: its meaning is not known"
        )
    base = table.rope_theta or raw.rope_theta or DEFAULT_BASE
    original = table.original_max_position_embeddings or context
    if kind in ("llama3", "yarn") and raw.original_max_position_embeddings:
        original = raw.original_max_position_embeddings
    if kind == "dynamic" and original != context:
        raise IngestError(
            f"{where}: dynamic scaling with original_max_position_embeddings {original} and "
            f"max_position_embeddings {context}; transformers reads only the latter: make them equal"
        )
    rope = RopeConfig(
        rotary_dim=head_dim,
        kind=kind,
        base=base,
        factor=_factor(table, kind, context / original, where),
        original_context=original,
        low_frequency_factor=_given(table.low_freq_factor, kind == "llama3", "low_freq_factor", where, 1.0),
        high_frequency_factor=_given(
            table.high_freq_factor, kind == "llama3", "high_freq_factor", where, 4.0
        ),
        beta_fast=table.beta_fast or 32.0,
        beta_slow=table.beta_slow or 1.0,
        mscale=table.mscale,
        mscale_all_dim=table.mscale_all_dim,
        attention_factor=table.attention_factor,
        truncate=table.truncate is not False,
    )
    _check(rope, where)
    return rope


def _kind(table: _RopeTable, where: str) -> RopeKind:
    if table.type is not None and table.rope_type is not None and table.type != table.rope_type:
        raise IngestError(f"{where}: type {table.type!r} and rope_type {table.rope_type!r} differ")
    name = table.rope_type or table.type or "default"
    for kind in KINDS:
        if kind == name:
            return kind
    raise IngestError(f"{where}: rope type {name!r} is not supported (known: {', '.join(KINDS)})")


def _factor(table: _RopeTable, kind: RopeKind, ratio: float, where: str) -> float:
    if kind == "default":
        return 1.0
    if table.factor is None and kind == "yarn":
        return ratio
    return _given(table.factor, True, "factor", where, 1.0)


def _given(value: float | None, is_required: bool, name: str, where: str, default: float) -> float:
    if value is None and is_required:
        raise IngestError(f"{where}: {name} is missing")
    return default if value is None else value


def _check(rope: RopeConfig, where: str) -> None:
    """Raise IngestError when a value is outside the range in which the formulas mean something."""
    if rope.rotary_dim % 2:
        raise IngestError(
            f"{where}: head_dim {rope.rotary_dim} is odd; rotary embedding turns pairs of features"
        )
    bounds = {
        "rope_theta": rope.base > 1,
        "factor": rope.factor >= 1,
        "original_max_position_embeddings": rope.original_context >= 1,
        "low_freq_factor": rope.low_frequency_factor > 0,
        "high_freq_factor": rope.high_frequency_factor > rope.low_frequency_factor,
        "beta_slow": rope.beta_slow > 0,
        "beta_fast": rope.beta_fast >= rope.beta_slow,
        "attention_factor": rope.attention_factor is None or rope.attention_factor > 0,
        "head_dim": rope.kind != "dynamic" or rope.rotary_dim > 2,
    }
    for name, holds in bounds.items():
        if not holds:
            raise IngestError(f"{where}: {name} is out of range for rope type {rope.kind!r}: {rope}")
