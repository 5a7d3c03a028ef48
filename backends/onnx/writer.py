"""Collects nodes, constants and references to weights, and makes an ONNX model of them, without the weights' bytes."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 23
"""Of the standard operators: the first with RMSNormalization, RotaryEmbedding and Attention."""
IR_VERSION = 11
"""The first that has opset 23."""
CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

ELEMENT_TYPES: Mapping[str, int] = {
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "i32": TensorProto.INT32,
    "i64": TensorProto.INT64,
    "u8": TensorProto.UINT8,
    "i8": TensorProto.INT8,
    "u4": TensorProto.UINT4,
    "i4": TensorProto.INT4,
    "bool": TensorProto.BOOL,
    "e4m3": TensorProto.FLOAT8E4M3FN,
    "e5m2": TensorProto.FLOAT8E5M2,
    "e2m1": TensorProto.FLOAT4E2M1,
}
"""By the names of the IR, and some of ONNX alone."""

Shape = Sequence[int | str]


class TensorLike(Protocol):
    """A tensor of the artifact: what the graph needs to know of it."""

    @property
    def dtype(self) -> str:
        """Its element type, as headers name it."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...


@dataclass(frozen=True, slots=True)
class Reference:
    """An initializer that has the values of the artifact's tensor `tensor`, as `dtype` and in `shape`."""

    name: str
    tensor: str
    dtype: str
    shape: tuple[int, ...]
    row: int | None = None
    """The row that it is, where it is not all of them."""
    scales: str = ""
    """The tensor of the scales that codes of 8-bit floating point are multiplied with, where it is that; `format`
    is theirs, and `block` inputs have one (0: a row)."""
    format: str = ""
    block: int = 0
    factor: float = 1.0
    """What its f32 values are multiplied with."""


class GraphWriter:
    """Writes one graph; values are called by the names that its methods return."""

    def __init__(self, weights: Mapping[str, TensorLike], float4: Collection[str] = ()) -> None:
        """`weights` says how the artifact stores each weight that the graph may read; `float4` are codes of eight bits
        that are to be floating point of 4 bits (`layouts.is_float4`)."""
        self._weights, self._float4 = weights, float4
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._initializers: list[onnx.TensorProto] = []
        self._references: dict[str, Reference] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._known: list[onnx.ValueInfoProto] = []
        self._domains = {""}
        self._count = 0

    def input(self, name: str, dtype: str, shape: Shape) -> str:
        """Declare an input of the graph; a dimension that is a word is dynamic."""
        self._inputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], shape))
        return name

    def output(self, name: str, dtype: str, shape: Shape) -> None:
        """Declare that a value is an output."""
        self._outputs.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], shape))

    def known(self, name: str, dtype: str, shape: Shape) -> None:
        """Say what a value is that only ONNX Runtime can infer."""
        self._known.append(helper.make_tensor_value_info(name, ELEMENT_TYPES[dtype], shape))

    def new_name(self, hint: str) -> str:
        """Return a name that nothing has."""
        self._count += 1
        return f"{hint}.{self._count}"

    def node(self, kind: str, inputs: Iterable[str], *, domain: str = "", name: str = "", **attributes: Any) -> str:
        """Append a node of one result and return the name of that."""
        return self.nodes(kind, inputs, [name or self.new_name(kind)], domain=domain, **attributes)[0]

    def nodes(
        self, kind: str, inputs: Iterable[str], outputs: Sequence[str], *, domain: str = "", **attributes: Any
    ) -> Sequence[str]:
        """Append a node of several results, "" for those that are not wanted, and return them."""
        self._domains.add(domain)
        given = list(inputs)
        while given and not given[-1]:
            del given[-1]
        name = f"{kind}/{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, given, list(outputs), name=name, domain=domain, **attributes))
        return outputs

    def constant(self, value: NDArray[np.generic] | Sequence[int] | float) -> str:
        """Return the name of a small constant, which equal ones share. Integers are i64, other numbers f32."""
        if isinstance(value, np.ndarray):
            array = value
        else:
            array = np.asarray(value, np.float32 if isinstance(value, float) else np.int64)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.new_name("constant")
            self._constants[key] = name
            self._initializers.append(numpy_helper.from_array(array, name))
        return self._constants[key]

    def stored(self, tensor: str) -> TensorLike:
        """Return how the artifact stores a weight."""
        return self._weights[tensor]

    def weight(self, tensor: str, shape: Sequence[int] | None = None, dtype: str = "") -> str:
        """Return the name of an initializer that is a weight, in another shape, or widened to `dtype`, if asked."""
        stored = self._weights[tensor]
        seen = tuple(stored.shape if shape is None else shape), dtype or stored.dtype
        name = tensor if seen == (tuple(stored.shape), stored.dtype) else f"{tensor}: {seen[1]}{list(seen[0])}"
        self._references.setdefault(name, Reference(name, tensor, seen[1], seen[0]))
        return name

    def is_float4(self, codes: str) -> bool:
        """Whether codes are to be floating point of 4 bits."""
        return codes in self._float4

    def doubled(self, scales: str) -> str:
        """Return the name of an initializer that is scales times two: codes of eight bits are twice their numbers."""
        name, stored = f"{scales}: doubled", self._weights[scales]
        self._references.setdefault(name, Reference(name, scales, "f32", tuple(stored.shape), factor=2.0))
        return name

    def widened(self, codes: str, scales: str, float_format: str, block: int) -> str:
        """Return the name of an initializer f32 [N, K] that is what codes of 8-bit floating point stand for."""
        name = f"{codes}: f32"
        shape = tuple(self._weights[codes].shape)
        reference = Reference(name, codes, "f32", shape, scales=scales, format=float_format, block=block)
        self._references.setdefault(name, reference)
        return name

    def weight_row(self, tensor: str, row: int) -> str:
        """Return the name of an initializer that is a row of a weight."""
        stored = self._weights[tensor]
        name = f"{tensor}[{row}]"
        self._references.setdefault(name, Reference(name, tensor, "f32", stored.shape[1:], row))
        return name

    def references(self) -> tuple[Reference, ...]:
        """Return the weights that the graph reads."""
        return tuple(self._references.values())

    def model(self, name: str) -> onnx.ModelProto:
        """Return the model. Its weights are external data of no file: whoever runs it hands them over by name."""
        nodes, read = self._live()
        initializers = [*self._initializers, *map(_placeholder, self._references.values())]
        graph = helper.make_graph(
            nodes,
            name,
            self._inputs,
            self._outputs,
            initializer=[initializer for initializer in initializers if initializer.name in read],
            value_info=self._known,
        )
        opsets = [helper.make_opsetid(domain, 1 if domain else OPSET) for domain in sorted(self._domains)]
        version = importlib.metadata.version("pyc-compiler")
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="pyc", producer_version=version
        )

    def _live(self) -> tuple[list[onnx.NodeProto], set[str]]:
        """Return the nodes on which an output depends, and every value that they or outputs read."""
        read = {output.name for output in self._outputs}
        kept: list[onnx.NodeProto] = []
        for node in reversed(self._nodes):
            if read.intersection(node.output):
                read.update(node.input)
                kept.append(node)
        return kept[::-1], read


def _placeholder(reference: Reference) -> onnx.TensorProto:
    tensor = TensorProto(
        name=reference.name,
        data_type=ELEMENT_TYPES[reference.dtype],
        dims=reference.shape,
        data_location=TensorProto.EXTERNAL,
    )
    tensor.external_data.add(key="location", value="null")
    return tensor
