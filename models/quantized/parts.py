"""The tensors of a quantized checkpoint: each is taken once, checked, and missed by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from pyc.compiler.codes import Codes
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.source_values import read_rows
from pyc.compiler.sources import Source
from pyc.models.messages import quoted
from pyc.models.safetensors_header import FLOAT_DTYPES
from pyc.runtime.errors import IngestError

OF_ACTIVATIONS = (
    *(f"{what}_{kind}" for what in ("input", "output", "q", "k", "v") for kind in ("scale", "zero_point")),
    *("kv_scale", "activation_scale", "input_scale_ub", "input_global_scale"),
)
"""What names of scales of activations and of the key-value cache end in: these are rounded at run time."""

LARGEST_BLOCK = (1 << 31) - 1
"""What is more than that is no size of a block or a group."""


T = TypeVar("T", bound=Struct)


@dataclass(slots=True)
class Parts:
    """What is left of a checkpoint's tensors by name, `made` of those that were taken, and what messages call it.

    `place` is what messages put before the name of a setting.
    """

    label: str
    files: SourceFiles
    left: dict[str, Source]
    place: str = "config.json: quantization_config."
    made: dict[str, Codes] = field(default_factory=dict)

    def settings(self, raw: object, kind: type[T]) -> T:
        """Return the settings of the quantization as `kind`; IngestError names the field that does not fit."""
        try:
            return msgspec.convert(raw, kind)
        except msgspec.ValidationError as error:
            raise IngestError(f"{self.label}: {self.place.rstrip('.: ')}: {error}") from error

    def require(self, given: object, allowed: Iterable[object], name: str) -> None:
        """Raise IngestError unless a setting is one of those that are known."""
        if given not in (known := tuple(allowed)):
            raise IngestError(
                f"{self.label}: {self.place}{name} is {quoted(str(given))}, expected {' or '.join(map(str, known))}; "
                "give another checkpoint of the model"
            )

    def modules(self, suffix: str) -> tuple[str, ...]:
        """Return the names of modules that have a tensor called `suffix`."""
        return tuple(name.removesuffix(f".{suffix}") for name in self.left if name.endswith(f".{suffix}"))

    def take(self, name: str, dtypes: Iterable[str], shape: tuple[int, ...] | None = None) -> Source:
        """Return a tensor of one of `dtypes` and of `shape`; raises IngestError when it is missing or another."""
        source = self.take_if_there(name, dtypes, shape)
        if source is None:
            raise self.missing(name)
        return source

    def take_if_there(self, name: str, dtypes: Iterable[str], shape: tuple[int, ...] | None = None) -> Source | None:
        """Return a tensor, or None where there is none."""
        source = self.left.pop(name, None)
        if source is None:
            return None
        if source.dtype not in (allowed := tuple(dtypes)):
            raise self.wrong(source, f"is stored as {source.dtype}, expected {' or '.join(allowed)}")
        if shape is not None and source.shape != shape:
            raise self.wrong(source, f"has shape {list(source.shape)}, expected {list(shape)}")
        return source

    def drop(self, *names: str) -> None:
        """Leave tensors out that results do not depend on here, such as scales of activations."""
        for name in names:
            self.left.pop(name, None)

    def drop_activations(self) -> None:
        """Leave scales of activations and of the key-value cache out."""
        for suffix in OF_ACTIVATIONS:
            self.drop(*(f"{module}.{suffix}" for module in self.modules(suffix)))

    def add(self, name: str, codes: Codes) -> None:
        """Put a weight in the place of its parts; raises IngestError when it is stored as well."""
        if name in self.left:
            raise IngestError(f"{self.label}: {name!r} is stored both as codes and as numbers; expected one of them")
        self.made[name] = codes

    def missing(self, name: str) -> IngestError:
        """Return the error for a tensor that is not there."""
        return IngestError(
            f"{self.label}: tensor {name!r} is missing, which the quantization in {self.place.partition(':')[0]} "
            "needs; the checkpoint is incomplete: download it again"
        )

    def require_beside(self, suffix: str, *others: str) -> None:
        """Raise IngestError, naming the tensor `suffix`, for a module that has one of `others` left, and not that."""
        for module in (module for other in others for module in self.modules(other)):
            if f"{module}.{suffix}" not in self.left:
                raise self.missing(f"{module}.{suffix}")

    def require_scales(self, suffix: str, dtypes: Iterable[str]) -> None:
        """Raise IngestError, naming the tensor `suffix`, for a module whose weight is left as codes of `dtypes`."""
        allowed = tuple(dtypes)
        for module in self.modules("weight"):
            if self.left[f"{module}.weight"].dtype in allowed:
                raise self.missing(f"{module}.{suffix}")

    def wrong(self, source: Source, what: str) -> IngestError:
        """Return the error for a tensor."""
        return IngestError(f"{self.label}: tensor {source.tensor!r} {what}")

    def values(self, source: Source) -> NDArray[np.generic]:
        """Return the numbers of a small tensor in a row, whatever its shape."""
        count = math.prod(source.shape)
        return read_rows(replace(source, shape=(count,)), 0, count, self.files)

    def order(self, name: str, columns: int, group: int, groups: int, needed: bool) -> Source | None:
        """Return the groups of inputs where they are not simply in order.

        Raises IngestError for one out of range, and for a missing tensor where config.json says that it is `needed`.
        """
        take = self.take if needed and groups > 1 else self.take_if_there
        source = take(name, ("i32",), (columns,))
        if source is None:
            return None
        found = self.values(source).astype(np.int64)
        if found.size and not 0 <= found.min() <= found.max() < groups:
            raise self.wrong(source, f"has group {found.min() if found.min() < 0 else found.max()} of {groups}")
        return None if np.array_equal(found, np.arange(columns) // group) else source


Size = Annotated[int, Meta(le=LARGEST_BLOCK)]
"""Rows or columns of a block in config.json."""


def divided(parts: Parts, source: Source, count: int, by: int) -> int:
    """Return count / by; IngestError where that is no whole number."""
    if by < 1 or count % by:
        raise parts.wrong(source, f"has shape {list(source.shape)}: {count} is not divisible by {by}")
    return count // by


SCALES = FLOAT_DTYPES[1:]
"""Types of scales: f32, f16, bf16."""
