"""What a program for ONNX Runtime is in the artifact: graphs without weights, and where these are."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.recursion import refuse_deep_caller

CONVENTION = ("pyc-onnx", "1")
"""Name and version of what graphs expect of their executor: a program records it among its `abi`."""


class Initializer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An initializer of a graph: the values of the artifact's tensor `tensor`, in another shape or a wider dtype."""

    name: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    row: int | None = None
    """The row of the tensor that it is; None: all of them."""
    scales: str = ""
    """The tensor f32 [rows, 1], or [rows, groups] of `block` columns each, that is to multiply codes of 8-bit floating
    point, whose format, "e4m3" or "e5m2", `format` is; "": it is stored as numbers."""
    format: str = ""
    block: int = 0

    @property
    def tensors(self) -> tuple[str, ...]:
        """What of the artifact it is made of."""
        return (self.tensor, self.scales) if self.scales else (self.tensor,)


class Graph(Struct, frozen=True, forbid_unknown_fields=True):
    """A function as a serialized ModelProto. Inputs and outputs are those of `backends.onnx.interface`."""

    name: str
    model: bytes
    initializers: tuple[Initializer, ...]


class OnnxProgram(Struct, frozen=True, forbid_unknown_fields=True):
    """The graphs, and how a position lies in the cache of each layer: `kv_heads` times `head_features` values.

    `ir` is the module that they were written from, as text, for exports: what runs them does not read it.
    """

    ir: str
    graphs: tuple[Graph, ...]
    layers: int = 0
    kv_heads: int = 0
    head_features: int = 0


def encode_program(program: OnnxProgram) -> bytes:
    """Return a program as it lies in the artifact."""
    return msgspec.msgpack.encode(program)


def decode_program(data: bytes) -> OnnxProgram:
    """Return the program; raises ArtifactError."""
    try:
        return msgspec.msgpack.decode(data, type=OnnxProgram)
    except (ValueError, RecursionError) as error:
        refuse_deep_caller(error)
        raise ArtifactError(f"the program for ONNX Runtime is not valid: {str(error)[:200]}") from error
