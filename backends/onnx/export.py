"""Models for others to load: one graph, whose inputs and outputs are called as optimum and onnxruntime-genai do.

A decoder: input_ids and position_ids i64 [batch, tokens], attention_mask i64 [batch, positions], past_key_values.L.key
and .value f32 [batch, kv_heads, past, features]; it gives logits f32 [batch, tokens, V], present.L.key and .value.
`position_ids` count from 0 at a text's first token; `attention_mask` has a one for each token of cache and step.

An encoder: input_ids and attention_mask i64 [batch, tokens]; it gives last_hidden_state f32 [batch, tokens, H] and
sentence_embedding f32 [batch, H].
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx

from pyc.backends.onnx.emitter import Emitter, Interface
from pyc.backends.onnx.fused import FusedEmitter
from pyc.backends.onnx.standard import StandardEmitter
from pyc.backends.onnx.writer import GraphWriter, Reference, Shape, TensorLike
from pyc.compiler.ir import Graph
from pyc.runtime.artifact.format import ModelInfo

FLAVOURS: Mapping[str, type[Emitter]] = {
    "fused": FusedEmitter,
    "standard": StandardEmitter,
    "float4": StandardEmitter,
}
"""By the names that users give them: ONNX Runtime's own operators, or those of ONNX alone, `float4` with matrices of
e2m1 as that."""

_ROWS = ("batch_size", "sequence_length")


def write_model(
    graph: Graph, weights: Mapping[str, TensorLike], info: ModelInfo, flavour: str, float4: Collection[str] = ()
) -> tuple[onnx.ModelProto, tuple[Reference, ...]]:
    """Return the model of a module that passes of ONNX have lowered, and the weights that it reads; `float4` are codes
    that are to be floating point of 4 bits."""
    writer = GraphWriter(weights, float4)
    if info.kind == "decoder":
        _decoder(graph, writer, info, FLAVOURS[flavour])
    else:
        _encoder(graph, writer, info, FLAVOURS[flavour])
    return writer.model(info.architecture), writer.references()


def _decoder(graph: Graph, writer: GraphWriter, info: ModelInfo, flavour: type[Emitter]) -> None:
    cache = info.kv_cache
    assert cache is not None
    values = {"token_ids": writer.input("input_ids", "i64", _ROWS)}
    mask = writer.input("attention_mask", "i64", ["batch_size", "total_sequence_length"])
    values["positions"] = writer.input("position_ids", "i64", _ROWS)
    features = flavour.head_features(cache.head_dim)
    past = {}
    for layer in range(cache.layers):
        shape: Shape = ["batch_size", cache.heads, "past_sequence_length", features]
        key, value = (writer.input(f"past_key_values.{layer}.{kind}", "f32", shape) for kind in ("key", "value"))
        past[layer] = key, value
    aligns = flavour is FusedEmitter
    forth, back = _alignment(writer, values["token_ids"], mask) if aligns else ("", "")
    if aligns:
        values = {name: writer.node("GatherElements", [value, forth], axis=1) for name, value in values.items()}
    interface = Interface(values, past, *_lengths(writer, mask), mask=mask)
    hidden = flavour(writer, interface, _ROWS).emit(graph.function("forward"))
    if aligns:
        hidden = writer.node("GatherND", [hidden, writer.node("Unsqueeze", [back, writer.constant([2])])], batch_dims=1)
    logits = flavour(writer, Interface({"hidden": hidden}), _ROWS).emit(graph.function("logits"))
    _output(writer, logits, "logits", (*_ROWS, info.vocab_size))
    for layer in range(cache.layers):
        for name in interface.present[layer]:
            writer.output(name, "f32", ["batch_size", cache.heads, "total_sequence_length", features])


def _alignment(writer: GraphWriter, ids: str, mask: str) -> tuple[str, str]:
    """Which token of a step each row of a batch begins with, i64 [batch, tokens], and the way back.

    GroupQueryAttention takes a row's tokens to be the first ones, whatever the mask has in front of them: a row that is
    padded before its text is turned until the text is in front, and its results are turned back.
    """
    tokens = writer.node("Shape", [ids], start=1, end=2)
    width = writer.node("Shape", [mask], start=1, end=2)
    step = writer.node("Slice", [mask, writer.node("Sub", [width, tokens]), width, writer.constant([1])])
    there = writer.node("ReduceSum", [step, writer.constant([1])], keepdims=1)
    first = writer.node("Slice", [step, writer.constant([0]), writer.constant([1]), writer.constant([1])])
    begins_with_padding = writer.node("Sub", [writer.constant([1]), first])
    shift = writer.node("Mul", [begins_with_padding, writer.node("Sub", [tokens, there])])
    places = writer.node("Range", [writer.constant(0), writer.node("Squeeze", [tokens]), writer.constant(1)])
    forth = writer.node("Mod", [writer.node("Add", [places, shift]), tokens])
    turned_back = writer.node("Add", [writer.node("Sub", [places, shift]), tokens])
    return forth, writer.node("Mod", [turned_back, tokens])


def _lengths(writer: GraphWriter, mask: str) -> tuple[str, str]:
    """The positions of each sequence less one, and the number of the longest's, as the fused flavour wants them."""
    sums = writer.node("ReduceSum", [mask, writer.constant([1])], keepdims=0)
    totals = writer.node("Cast", [writer.node("Sub", [sums, writer.constant(1)])], to=onnx.TensorProto.INT32)
    longest = writer.node("Squeeze", [writer.node("Shape", [mask], start=1, end=2)])
    return totals, writer.node("Cast", [longest], to=onnx.TensorProto.INT32)


def _encoder(graph: Graph, writer: GraphWriter, info: ModelInfo, flavour: type[Emitter]) -> None:
    ids = writer.input("input_ids", "i64", _ROWS)
    mask = writer.input("attention_mask", "i64", _ROWS)
    length = writer.node("Squeeze", [writer.node("Shape", [ids], start=1, end=2)])
    positions = writer.node("Range", [writer.constant(0), length, writer.constant(1)])
    emitter = flavour(writer, Interface({"token_ids": ids, "positions": positions}, mask=mask), _ROWS)
    function = graph.function("embed")
    vectors = emitter.emit(function)
    rows = emitter.values[function.definitions()[function.result].operands[0]]
    _output(writer, rows, "last_hidden_state", (*_ROWS, info.hidden_size))
    _output(writer, vectors, "sentence_embedding", ("batch_size", info.hidden_size))


def _output(writer: GraphWriter, value: str, name: str, shape: tuple[int | str, ...]) -> None:
    writer.output(writer.node("Identity", [value], name=name), "f32", shape)
