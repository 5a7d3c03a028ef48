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
    aligned = _Alignment(writer, values["token_ids"], mask) if flavour is FusedEmitter else None
    if aligned is None:
        interface = Interface(values, past, mask=mask)
    else:
        turned = {name: writer.node("GatherElements", [value, aligned.forth], axis=1) for name, value in values.items()}
        interface = Interface(turned, past, aligned.totals, aligned.longest)
    hidden = flavour(writer, interface, _ROWS).emit(graph.function("forward"))
    if aligned is not None:
        back = writer.node("Unsqueeze", [aligned.back, writer.constant([2])])
        hidden = writer.node("GatherND", [hidden, back], batch_dims=1)
    logits = flavour(writer, Interface({"hidden": hidden}), _ROWS).emit(graph.function("logits"))
    _output(writer, logits, "logits", (*_ROWS, info.vocab_size))
    for layer in range(cache.layers):
        for name in interface.present[layer]:
            writer.output(name, "f32", ["batch_size", cache.heads, "total_sequence_length", features])


class _Alignment:
    """How the tokens of a step are put for GroupQueryAttention, which knows no mask.

    It takes a row's cache to be its first places, and writes the step behind them. So each row of the cache holds the
    tokens that the mask has, without gaps, whatever padding was read between them: the tokens of a step come first,
    then its padding, and the next step writes over that.
    """

    def __init__(self, writer: GraphWriter, ids: str, mask: str) -> None:
        zero, one = (writer.constant([number]) for number in (0, 1))
        tokens = writer.node("Shape", [ids], start=1, end=2)
        width = writer.node("Shape", [mask], start=1, end=2)
        behind = writer.node("Sub", [width, tokens])
        step = writer.node("Slice", [mask, behind, width, one])
        up_to = writer.node("CumSum", [step, writer.constant(1)])
        places = writer.node("Range", [writer.constant(0), writer.node("Squeeze", [tokens]), writer.constant(1)])
        text = writer.node("ReduceSum", [step, one], keepdims=1)
        if_padding = writer.node("Add", [text, writer.node("Sub", [places, up_to])])
        if_text = writer.node("Sub", [up_to, one])
        is_text = writer.node("Cast", [step], to=onnx.TensorProto.BOOL)
        self.back = writer.node("Where", [is_text, if_text, if_padding])
        """Where each token of a step is put, i64 [batch, tokens]."""
        names = [writer.new_name("TopK") for _ in range(2)]
        self.forth = writer.nodes("TopK", [self.back, tokens], names, axis=1, largest=0)[1]
        """Which token comes to each place, i64 [batch, tokens]."""
        cached = writer.node("ReduceSum", [writer.node("Slice", [mask, zero, behind, one]), one], keepdims=0)
        totals = writer.node("Sub", [writer.node("Add", [cached, tokens]), one])
        self.totals = writer.node("Cast", [totals], to=onnx.TensorProto.INT32)
        """The places of each row with this step's, less one: i32 [batch]."""
        self.longest = writer.node("Cast", [writer.node("Squeeze", [width])], to=onnx.TensorProto.INT32)
        """The places of the cache with this step's: i32 []."""


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
