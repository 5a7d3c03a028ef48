"""What graphs of an artifact have as inputs and outputs: the contract with `runtime.executors.onnx`.

| graph | inputs | outputs |
|---|---|---|
| forward | token_ids, positions i32 [batch, tokens], totals i32 [batch], longest i32 [], past.L.key, past.L.value |
hidden f32 [batch, tokens, H], present.L.key, present.L.value |
| logits | hidden f32 [tokens, H] | logits f32 [tokens, V] |
| embed | token_ids, positions, span_start, span_end i32 [tokens], seq_start, seq_end i32 [sequences] |
vectors f32 [sequences, H] |

Keys and values of layer L are f32 [batch, kv_heads, capacity, features of a head], and may be one memory before and
after: a step writes its rows behind those that are there. `totals` are the positions of a sequence with the rows of
this step, less one; `longest` is the largest number of positions.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyc.backends.onnx.emitter import Emitter, Interface
from pyc.backends.onnx.writer import GraphWriter, Reference, Shape, TensorLike
from pyc.compiler.ir import Function, Module

EmitterType = type[Emitter]


def write_function(
    function: Function, module: Module, weights: Mapping[str, TensorLike], flavour: EmitterType
) -> tuple[bytes, tuple[Reference, ...]]:
    """Return a function as a serialized model, and the weights that it reads."""
    writer = GraphWriter(weights)
    match function.name:
        case "forward":
            _forward(function, module, writer, flavour)
        case "logits":
            values = {"hidden": writer.input("hidden", "f32", ["tokens", module.info.hidden_size])}
            result = flavour(writer, Interface(values), ("tokens",)).emit(function)
            _finish(writer, result, "logits", ("tokens", module.info.vocab_size))
        case _:
            dimensions = {"seq_start": "sequences", "seq_end": "sequences"}
            values = {
                parameter.name: writer.input(parameter.name, "i32", [dimensions.get(parameter.name, "tokens")])
                for parameter in function.parameters
            }
            result = flavour(writer, Interface(values), ("tokens",)).emit(function)
            _finish(writer, result, "vectors", ("sequences", module.info.hidden_size))
    return writer.model(function.name).SerializeToString(deterministic=True), writer.references()


def _forward(function: Function, module: Module, writer: GraphWriter, flavour: EmitterType) -> None:
    cache = module.info.kv_cache
    assert cache is not None
    leading = ("batch", "tokens")
    values = {name: writer.input(name, "i32", leading) for name in ("token_ids", "positions")}
    totals, longest = writer.input("totals", "i32", ["batch"]), writer.input("longest", "i32", [])
    shape: Shape = ["batch", cache.heads, "capacity", flavour.head_features(cache.head_dim)]
    past = {}
    for layer in range(cache.layers):
        key, value = (writer.input(f"past.{layer}.{kind}", "f32", shape) for kind in ("key", "value"))
        past[layer] = key, value
    interface = Interface(values, past, totals, longest)
    _finish(writer, flavour(writer, interface, leading).emit(function), "hidden", (*leading, module.info.hidden_size))
    for layer in range(cache.layers):
        for name in interface.present[layer]:
            writer.output(name, "f32", shape)


def _finish(writer: GraphWriter, value: str, name: str, shape: tuple[int | str, ...]) -> None:
    writer.output(writer.node("Identity", [value], name=name), "f32", shape)
