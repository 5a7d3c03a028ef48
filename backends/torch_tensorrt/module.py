"""The reference module: a graph's functions as a torch.nn.Module, with inputs and outputs as ONNX exports have them.

A decoder: input_ids and position_ids i64 [batch, tokens], attention_mask i64 [batch, past + tokens], and for each layer
keys and values f32 [batch, kv_heads, past, head_dim]. It returns logits f32 [batch, tokens, V], then keys and values of
each layer with the step's own behind. `position_ids` count from 0 at a text's first token; `attention_mask` has a one
for each token of cache and step. Padding stands before a text.

An encoder: input_ids and attention_mask i64 [batch, tokens], padding behind a text. It returns the states of all
tokens, f32 [batch, tokens, H], and a vector for each text, f32 [batch, H].
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from pyc.backends.torch_tensorrt.operators import MEANINGS, Step
from pyc.backends.torch_tensorrt.weights import AnyWeight, load_weight
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Graph, Module

Loaded = Mapping[str, AnyWeight]


class ReferenceModule(nn.Module):
    """Evaluates functions of a graph, one operator after another."""

    def __init__(self, graph: Graph, weights: Loaded) -> None:
        """`weights` are those that the graph reads, by name."""
        super().__init__()
        self.graph = graph
        names = graph.weight_names()
        self._keys = {name: f"{index}_{re.sub(r'[^A-Za-z0-9_]', '_', name)}" for index, name in enumerate(names)}
        self.weights = nn.ModuleDict({key: weights[name] for name, key in self._keys.items()})

    def evaluate(self, function: str, inputs: Mapping[str, Tensor], step: Step) -> dict[str, Tensor]:
        """Return every value of a function by its name. Parameters that `inputs` lacks are not read."""
        values = dict(inputs)
        for operation in self.graph.function(function).operations:
            operands = [values[name] for name in operation.operands if name in values]
            weights = [self._weight(name) for name in operation.weights]
            values[operation.result.name] = MEANINGS[operation.kind](operation, operands, weights, step)
        return values

    def _weight(self, name: str) -> AnyWeight | None:
        if not name:
            return None
        weight = self.weights[self._keys[name]]
        assert isinstance(weight, AnyWeight)
        return weight


class DecoderModule(ReferenceModule):
    """The functions "forward" and "logits"; see the head of this file."""

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Return logits, then keys and values of each layer in turn."""
        step = Step(attention_mask, input_ids.shape[1], past)
        inputs = {"token_ids": input_ids, "positions": position_ids}
        hidden = self.evaluate("forward", inputs, step)[self.graph.function("forward").result]
        logits = self.evaluate("logits", {"hidden": hidden}, step)[self.graph.function("logits").result]
        return logits, *(value for layer in sorted(step.present) for value in step.present[layer])


class EncoderModule(ReferenceModule):
    """The function "embed"; see the head of this file."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states of all tokens, and the vectors of texts."""
        step = Step(attention_mask, input_ids.shape[1])
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0)
        function = self.graph.function("embed")
        values = self.evaluate("embed", {"token_ids": input_ids, "positions": positions}, step)
        return values[function.definitions()[function.result].operands[0]], values[function.result]


def reference_module(module: Module, files: SourceFiles) -> DecoderModule | EncoderModule:
    """Return the torch module of a module of logical operators; weights are read through `files`.

    Raises IngestError for damaged weights and QuantizeError for those that their scheme cannot store.
    """
    weights = {name: load_weight(name, module.weights[name], files) for name in module.graph.weight_names()}
    return module_of(module.graph, weights)


def module_of(graph: Graph, weights: Loaded) -> DecoderModule | EncoderModule:
    """Return the torch module of a graph of logical operators whose weights are loaded."""
    is_encoder = any(function.name == "embed" for function in graph.functions)
    return (EncoderModule if is_encoder else DecoderModule)(graph, weights).eval()
