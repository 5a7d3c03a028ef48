"""What a program for TensorRT is in the artifact: graphs without weights, what these are made of, and profiles."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.recursion import refuse_deep_caller

CONVENTION = ("pyc-tensorrt", "1")
"""Name and version of what graphs expect of their executor: a program records it among its `abi`."""


class Initializer(Struct, frozen=True, forbid_unknown_fields=True):
    """An initializer of a graph: what `form` makes of the artifact's `tensors`; see `tensorrt.initializers`."""

    name: str
    form: str
    tensors: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    row: int | None = None
    """The row of the tensor that it is; None: all of them."""


class Extent(Struct, frozen=True, forbid_unknown_fields=True):
    """The shapes that an input has under a profile, the one that it is tuned for in the middle."""

    input: str
    least: tuple[int, ...]
    likely: tuple[int, ...]
    largest: tuple[int, ...]

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether a shape lies within."""
        ends = zip(self.least, shape, self.largest, strict=True)
        return all(least <= size <= largest for least, size, largest in ends)


class Profile(Struct, frozen=True, forbid_unknown_fields=True):
    """An optimization profile: "decode", "prompt", or the name of its graph; the extent of each dynamic input."""

    name: str
    extents: tuple[Extent, ...]


class Graph(Struct, frozen=True, forbid_unknown_fields=True):
    """A function as a serialized ModelProto; inputs and outputs are those of `backends.tensorrt.interface`."""

    name: str
    model: bytes
    initializers: tuple[Initializer, ...]
    profiles: tuple[Profile, ...]


class TensorRtProgram(Struct, frozen=True, forbid_unknown_fields=True):
    """The graphs, and the cache: `layers` times a key and a value of `kv_heads` times `head_features` a position.

    `capacities` are the positions a sequence that the cache may have room for, ascending. `is_exact`: products are
    those of f32; without it TensorRT may round what it multiplies to 10 bits (TF32).
    """

    graphs: tuple[Graph, ...]
    is_exact: bool
    layers: int = 0
    kv_heads: int = 0
    head_features: int = 0
    capacities: tuple[int, ...] = ()

    def graph(self, name: str) -> Graph | None:
        """Return the graph called so."""
        return next((graph for graph in self.graphs if graph.name == name), None)


def encode_program(program: TensorRtProgram) -> bytes:
    """Return a program as it lies in the artifact."""
    return msgspec.msgpack.encode(program)


def decode_program(data: bytes) -> TensorRtProgram:
    """Return the program; raises ArtifactError."""
    try:
        return msgspec.msgpack.decode(data, type=TensorRtProgram)
    except (ValueError, RecursionError) as error:
        refuse_deep_caller(error)
        raise ArtifactError(f"the program for TensorRT is not valid: {str(error)[:200]}") from error
