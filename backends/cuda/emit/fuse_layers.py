"""Fuse what stands around linear layers into their kernels: residuals, norms, and gates as of SwiGLU (ADR 59).

A step of one sequence is a chain of short launches, each of which takes a microsecond or two beside its work. The
operator fused_linear is in the place of

    gated_pair of a linear layer       it writes what the gate leaves
    add_rms_norm of a linear layer     of few rows: it writes the total, sums of its squares, and what the norm's gain
                                       makes of it
    linear layers that read that norm  they read these, and divide by the norm

| operator | operands; weights | results |
|---|---|---|
| fused_linear | x, squares?, addend?; those of the layer, gain? {its own, partials, epsilon, gate, adds, has_gain} | [T, N], or [T, N / 2] behind a gate; total_squares?, scaled? |
"""  # noqa: E501 - a table

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pyc.backends.cuda.emit.calls import Context, is_linear, linear_spec
from pyc.backends.cuda.kernels.gemv import squares_of
from pyc.backends.cuda.kernels.linear import takes_gate
from pyc.backends.cuda.kernels.linear_spec import Epilogue, LinearSpec
from pyc.compiler.ir import Function, Operation, Scalar, TensorType, Value
from pyc.compiler.rewrite import only_readers


@dataclass
class _Fused:
    """What becomes of a linear layer, and what its kernel reads and writes beside."""

    layer: Operation
    epilogue: Epilogue = field(default_factory=Epilogue)
    x: str = ""
    squares: str = ""
    addend: str = ""
    gain: str = ""
    result: Value | None = None
    also: tuple[Value, ...] = ()

    def operation(self) -> Operation:
        """Return the operation."""
        epilogue: dict[str, Scalar] = {
            "partials": self.epilogue.partials,
            "epsilon": self.epilogue.epsilon,
            "gate": self.epilogue.gate,
            "adds": self.epilogue.adds,
            "has_gain": self.epilogue.has_gain,
        }
        return Operation(
            "fused_linear",
            self.result or self.layer.result,
            (self.x or self.layer.operands[0], *(name for name in (self.squares, self.addend) if name)),
            (*self.layer.weights, *((self.gain,) if self.gain else ())),
            tuple(sorted({**dict(self.layer.attributes), **epilogue}.items())),
            self.also,
        )


def fuse_layers(function: Function, context: Context) -> Function:
    """Return the function at one number of rows with fused layers, where their kernels take that."""
    layers = _Layers(function, context)
    for operation in function.operations:
        if operation.kind == "gated_pair":
            layers.fuse_gate(operation)
        elif operation.kind == "add_rms_norm":
            layers.fuse_norm(operation)
    return layers.function()


class _Layers:
    """A function of which layers are being fused."""

    def __init__(self, function: Function, context: Context) -> None:
        self._function, self._context = function, context
        self._makers, self._users = function.definitions(), function.users()
        self._only_readers = only_readers(function)
        self._fused: dict[str, _Fused] = {}
        self._places: dict[str, str] = {}
        """Which layer is in the place of an operation, by names of results; "": nothing."""

    def function(self) -> Function:
        """Return it as it is by now."""
        operations: list[Operation] = []
        for operation in self._function.operations:
            place = self._places.get(operation.result.name)
            if place is None:
                operations.append(operation)
            elif place:
                operations.append(self._fused[place].operation())
        return replace(self._function, operations=tuple(operations))

    def fuse_gate(self, gate: Operation) -> None:
        """Have the layer of which a gated_pair is made do it, where nobody else reads that."""
        layer = self._layer_before(gate.operands[0])
        if layer is None or not takes_gate(self._spec(layer), has_warpgroups=self._context.has_warpgroups):
            return
        fused = self._fuse(layer)
        fused.epilogue, fused.result = replace(fused.epilogue, gate=gate.text("function")), gate.result
        self._places[gate.result.name] = ""

    def fuse_norm(self, norm: Operation) -> None:
        """Have the layer before an add_rms_norm add, and those that read the norm divide by it, where nobody else
        does."""
        readers = self._users.get(norm.result.name, ())
        if norm.result.name == self._function.result or not readers or not all(map(self._takes_norm, readers)):
            return
        layers = [self._layer_before(name) for name in norm.operands]
        layer = layers[1] or layers[0]
        if layer is None or not self._takes_norm(layer) or norm.operands[0] == norm.operands[1]:
            return
        total, gain = norm.also[0], norm.weights[0]
        addend = norm.operands[0] if layer is layers[1] else norm.operands[1]
        fused = self._fuse(layer)
        partials = squares_of(self._spec(layer), has_warpgroups=self._context.has_warpgroups)
        squares = Value(f"{total.name}.squares", TensorType("f32", (total.type.shape[0], partials)))
        scaled = (Value(f"{total.name}.scaled", total.type),) if gain else ()
        fused.epilogue = replace(fused.epilogue, adds=True, has_gain=bool(gain))
        fused.addend, fused.gain, fused.result, fused.also = addend, gain, total, (squares, *scaled)
        self._places |= {layer.result.name: "", norm.result.name: layer.result.name}
        for reader in readers:
            reading = self._fuse(reader)
            reading.epilogue = replace(reading.epilogue, partials=partials, epsilon=norm.number("epsilon"))
            reading.x, reading.squares = (*scaled, total)[0].name, squares.name

    def _fuse(self, layer: Operation) -> _Fused:
        name = layer.result.name
        self._places.setdefault(name, name)
        return self._fused.setdefault(name, _Fused(layer))

    def _layer_before(self, name: str) -> Operation | None:
        """Return the layer that makes a value which one operation alone reads."""
        maker = self._makers.get(name)
        return maker if maker and is_linear(maker) and name in self._only_readers else None

    def _takes_norm(self, operation: Operation) -> bool:
        return is_linear(operation) and self._spec(operation).takes_norm

    def _spec(self, layer: Operation) -> LinearSpec:
        return linear_spec(layer, self._context)
