"""What graphs have as inputs and outputs: the contract with `runtime.executors.tensorrt`. Names are those of exports.

| graph | inputs | outputs |
|---|---|---|
| forward | input_ids, position_ids i64 [batch, tokens], past_key_values.L.key and .value |
hidden f32 [batch, tokens, H], new_key_values f32 [2 * layers, batch, kv_heads, tokens, features] |
| logits | hidden f32 [tokens, H] | logits f32 [tokens, V] |
| embed | input_ids, attention_mask i64 [batch, tokens] | sentence_embedding f32 [batch, H] |

Keys and values of layer L are f32 [batch, kv_heads, capacity, features]: position p lies at p, and what lies from the
step's first position on is not seen. `new_key_values` are the rows of the step: for each layer its keys, then its
values. `attention_mask` has ones for tokens and zeros for the padding behind them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyc.backends.onnx.emitter import Interface
from pyc.backends.onnx.writer import Shape
from pyc.backends.tensorrt.emitter import DerivedWriter, TensorRtEmitter
from pyc.compiler.ir import Function, Module
from pyc.compiler.storage import StoredTensor
from pyc.runtime.executors.tensorrt.program import Initializer

_ROWS = ("batch", "tokens")


def write_function(
    function: Function, module: Module, weights: Mapping[str, StoredTensor]
) -> tuple[bytes, tuple[Initializer, ...]]:
    """Return a function as a serialized model without weights, and what these are made of. Raises LowerError."""
    writer = DerivedWriter(weights)
    match function.name:
        case "forward":
            _forward(function, module, writer)
        case "logits":
            values = {"hidden": writer.input("hidden", "f32", ["tokens", module.info.hidden_size])}
            result = TensorRtEmitter(writer, Interface(values), ("tokens",)).emit(function)
            _output(writer, result, "logits", ("tokens", module.info.vocab_size))
        case _:
            _embed(function, module, writer)
    return writer.serialized(function.name), writer.initializers()


def _forward(function: Function, module: Module, writer: DerivedWriter) -> None:
    cache = module.info.kv_cache
    assert cache is not None
    names = {"token_ids": "input_ids", "positions": "position_ids"}
    values = {parameter: writer.input(name, "i64", _ROWS) for parameter, name in names.items()}
    shape: Shape = ["batch", cache.heads, "capacity", cache.head_dim]
    past = {}
    for layer in range(cache.layers):
        key, value = (writer.input(f"past_key_values.{layer}.{kind}", "f32", shape) for kind in ("key", "value"))
        past[layer] = key, value
    interface = Interface(values, past)
    hidden = TensorRtEmitter(writer, interface, _ROWS).emit(function)
    _output(writer, hidden, "hidden", (*_ROWS, module.info.hidden_size))
    first = writer.constant([0])
    rows = [
        writer.node("Unsqueeze", [name, first]) for layer in range(cache.layers) for name in interface.present[layer]
    ]
    together = writer.node("Concat", rows, axis=0)
    _output(
        writer, together, "new_key_values", (2 * cache.layers, "batch", cache.heads, "tokens", cache.head_dim)
    )


def _embed(function: Function, module: Module, writer: DerivedWriter) -> None:
    ids = writer.input("input_ids", "i64", _ROWS)
    mask = writer.input("attention_mask", "i64", _ROWS)
    length = writer.node("Squeeze", [writer.node("Shape", [ids], start=1, end=2)])
    positions = writer.node("Range", [writer.constant(0), length, writer.constant(1)])
    values = {"token_ids": ids, "positions": positions}
    vectors = TensorRtEmitter(writer, Interface(values, mask=mask), _ROWS).emit(function)
    _output(writer, vectors, "sentence_embedding", ("batch", module.info.hidden_size))


def _output(writer: DerivedWriter, value: str, name: str, shape: tuple[int | str, ...]) -> None:
    writer.output(writer.node("Identity", [value], name=name), "f32", shape)
