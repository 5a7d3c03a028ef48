"""What a program takes, in which sizes: inputs, the ranges of their dimensions out of a recipe's buckets.

Nothing here knows torch. The sizes go into the file of a program as `INTERFACE`, for who compiles it to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.errors import LowerError

INTERFACE = "pyc_interface.json"
"""The file inside of a program's that describes it."""

Dtype = Literal["i64", "f32"]


class Range(Struct, frozen=True, forbid_unknown_fields=True):
    """The sizes that a dimension may have, and the one that matters most; it is dynamic where they differ."""

    min: int
    opt: int
    max: int

    @property
    def is_dynamic(self) -> bool:
        """Whether it has more than one size."""
        return self.min < self.max

    def __add__(self, other: Range) -> Range:
        """Return the range of a sum of sizes."""
        return Range(self.min + other.min, self.opt + other.opt, self.max + other.max)


class Input(Struct, frozen=True, forbid_unknown_fields=True):
    """An input; dimensions are numbers, or names of ranges."""

    name: str
    dtype: Dtype
    dimensions: tuple[int | str, ...]


class Interface(Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs in the order in which a program takes them, names of what it returns, and the ranges by name.

    "total" is "past" and "tokens" together.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    ranges: dict[str, Range]

    def shape(self, given: Input, which: Literal["min", "opt", "max"]) -> tuple[int, ...]:
        """Return the smallest, the most likely or the largest shape of an input."""
        ranges = self.ranges
        return tuple(getattr(ranges[d], which) if isinstance(d, str) else d for d in given.dimensions)


def interface_of(info: ModelInfo, tokens: tuple[int, ...], batch: tuple[int, ...]) -> Interface:
    """Return the interface of a model for a recipe's buckets of `tokens` and `batch`, ascending."""
    many = Range(1, batch[0], batch[-1])
    if info.kind == "encoder":
        ranges = {"batch": many, "tokens": Range(1, (info.context + 1) // 2, info.context)}
        inputs = tuple(Input(name, "i64", ("batch", "tokens")) for name in ("input_ids", "attention_mask"))
        return Interface(inputs, ("last_hidden_state", "sentence_embedding"), ranges)
    cache = info.kv_cache
    assert cache is not None
    if info.context < 2:
        raise LowerError(f"shapes.context: got {info.context}, expected at least 2: a token, and a cache before it")
    step = Range(1, min(tokens[0], info.context), min(tokens[-1], info.context))
    past = Range(0, info.context // 2, info.context - 1)
    layers = [f"{layer}.{kind}" for layer in range(cache.layers) for kind in ("key", "value")]
    shape = ("batch", cache.heads, "past", cache.head_dim)
    return Interface(
        (
            Input("input_ids", "i64", ("batch", "tokens")),
            Input("position_ids", "i64", ("batch", "tokens")),
            Input("attention_mask", "i64", ("batch", "total")),
            *(Input(f"past_key_values.{name}", "f32", shape) for name in layers),
        ),
        ("logits", *(f"present.{name}" for name in layers)),
        {"batch": many, "tokens": step, "past": past, "total": past + step},
    )


def encode_interface(interface: Interface) -> str:
    """Return it as text of JSON."""
    return msgspec.json.encode(interface).decode()


def decode_interface(text: str, where: str) -> Interface:
    """Return what `encode_interface` wrote; LowerError when it did not."""
    try:
        return msgspec.json.decode(text, type=Interface)
    except msgspec.DecodeError as error:
        raise LowerError(
            f"{where}: its {INTERFACE} is not what `pyc export --to torch` writes: {error}; export the model again"
        ) from error


def without_empty(ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Return ranges of sizes from 1: TensorRT has no empty tensors. A sum stays that of its parts."""
    found = {name: Range(max(r.min, 1), max(r.opt, 1), max(r.max, 1)) for name, r in ranges.items()}
    if "total" in found:
        found["total"] = found["past"] + found["tokens"]
    return found
