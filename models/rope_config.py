"""The rotary parameters of config.json, in both forms, as `RopeConfig`.

Old: `rope_theta` beside `rope_scaling: {type or rope_type, factor, ...}`. New: `rope_parameters` with
rope_theta in it. Each kind takes its own keys; others are refused unless null. Tables by layer type are other model
types'.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from pyc.models.config import HuggingFaceConfig
from pyc.models.messages import quoted
from pyc.models.rope import KINDS, RopeConfig, RopeKind
from pyc.runtime.errors import IngestError

DEFAULT_BASE = 10000.0
MAX_BASE = 1e15
MAX_FACTOR = 1e6
MAX_MAGNITUDE = 1e3
_LEAST = 1e-6
_LAYER_TYPES = ("full_attention", "sliding_attention")

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
    original_max_position_embeddings: Annotated[int, Meta(ge=1, le=(1 << 31) - 1)] | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool | None = None


def rope_of(raw: HuggingFaceConfig, head_dim: int, context: int, where: str) -> RopeConfig:
    """Return the rotary parameters of all layers.

    `context` is max_position_embeddings in tokens. Raises IngestError on an unknown kind or key, a value out of range,
    and tables by layer type.
    """
    tables = [table for table in (raw.rope_scaling, raw.rope_parameters) if table] or [{}]
    first, *others = [_of_table(table, raw, head_dim, context, where) for table in tables]
    if any(other != first for other in others):  # they may say the same in the words of two versions of transformers
        raise IngestError(
            f"{where}: config.json has both rope_scaling and rope_parameters, and they mean different things; remove "
            "the one that is not meant"
        )
    return first


def _of_table(table: object, raw: HuggingFaceConfig, head_dim: int, context: int, where: str) -> RopeConfig:
    if not isinstance(table, dict):
        raise IngestError(f"{where}: rope_parameters is {type(table).__name__}, expected an object")
    by_type = next((key for key in _LAYER_TYPES if key in table), None)
    if by_type is not None:
        raise IngestError(
            f"{where}: rope_parameters has a table for {by_type}; transformers reads none by layer type for this model "
            "type: write one set of parameters in rope_parameters itself"
        )
    return _parse(table, raw, head_dim, context, f"{where}: rope_parameters")


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
            f"{where}: {quoted(unread[0])} is not a parameter of rope type {kind!r}; remove it from config.json"
        )
    if table.partial_rotary_factor not in (None, 1.0):
        raise IngestError(
            f"{where}: partial_rotary_factor is {table.partial_rotary_factor}; transformers ignores it for "
            "this model type and other engines do not: its meaning is not known"
        )
    base = next(given for given in (table.rope_theta, raw.rope_theta, DEFAULT_BASE) if given is not None)
    original = context if table.original_max_position_embeddings is None else table.original_max_position_embeddings
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
        factor=_factor(table, kind, context, original, where),
        original_context=original,
        low_frequency_factor=_given(table.low_freq_factor, kind == "llama3", "low_freq_factor", where, 1.0),
        high_frequency_factor=_given(
            table.high_freq_factor, kind == "llama3", "high_freq_factor", where, 4.0
        ),
        beta_fast=_given(table.beta_fast, False, "beta_fast", where, 32.0),
        beta_slow=_given(table.beta_slow, False, "beta_slow", where, 1.0),
        mscale=table.mscale,
        mscale_all_dim=table.mscale_all_dim,
        attention_factor=table.attention_factor,
        truncate=bool(given.get("truncate", True)),  # null is false, as transformers reads it
    )
    _check(rope, where)
    return rope


def _kind(table: _RopeTable, where: str) -> RopeKind:
    if table.type is not None and table.rope_type is not None and table.type != table.rope_type:
        raise IngestError(f"{where}: type {quoted(table.type)} and rope_type {quoted(table.rope_type)} differ")
    name = table.rope_type or table.type or "default"
    for kind in KINDS:
        if kind == name:
            return kind
    raise IngestError(f"{where}: rope type {quoted(name)} is not supported (known: {', '.join(KINDS)})")


def _factor(table: _RopeTable, kind: RopeKind, context: int, original: int, where: str) -> float:
    if kind == "default":
        return 1.0
    if table.factor is None and kind == "yarn":
        return context / original
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
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    scale = 1.0 if rope.attention_factor is None else rope.attention_factor
    magnitudes = (("mscale", rope.mscale), ("mscale_all_dim", rope.mscale_all_dim))
    expectations = (
        ("rope_theta", rope.base, 1 < rope.base <= MAX_BASE, f"above 1, at most {MAX_BASE:g}"),
        ("factor", rope.factor, 1 <= rope.factor <= MAX_FACTOR, f"1 to {MAX_FACTOR:g}"),
        ("low_freq_factor", low, _LEAST <= low <= MAX_FACTOR, f"{_LEAST:g} to {MAX_FACTOR:g}"),
        ("high_freq_factor", high, low < high <= MAX_FACTOR, f"above low_freq_factor {low:g}, at most {MAX_FACTOR:g}"),
        ("beta_slow", rope.beta_slow, _LEAST <= rope.beta_slow <= MAX_FACTOR, f"{_LEAST:g} to {MAX_FACTOR:g}"),
        (
            "beta_fast",
            rope.beta_fast,
            rope.beta_slow <= rope.beta_fast <= MAX_FACTOR,
            f"at least beta_slow {rope.beta_slow:g}, at most {MAX_FACTOR:g}",
        ),
        ("attention_factor", scale, _LEAST <= scale <= MAX_MAGNITUDE, f"{_LEAST:g} to {MAX_MAGNITUDE:g}"),
        *(
            (name, value, 0 <= value <= MAX_MAGNITUDE, f"0 to {MAX_MAGNITUDE:g}")
            for name, value in magnitudes
            if value is not None
        ),
        ("head_dim", rope.rotary_dim, rope.kind != "dynamic" or rope.rotary_dim > 2, "above 2"),
    )
    for name, value, holds, expected in expectations:
        if not holds:
            raise IngestError(f"{where}: {name} is {value:g}, expected {expected} for rope type {rope.kind!r}")
