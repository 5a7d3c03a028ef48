"""What a prompt computes for one row, and what for all."""

from types import SimpleNamespace

import pytest

from pyc.backends.cpu.backend import CpuBackend
from pyc.backends.cpu.operators import ALL_OPERATORS
from pyc.backends.lowering.specialize_prefill import SpecializePrefill
from pyc.compiler.ir import Function, Graph, Module, Operation, TensorType, Value
from pyc.compiler.recipe.api import recipe_from
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.passes.pipeline import pipeline

pytest.importorskip("torch")


def lowered(path, quantize):
    module = load_model(ModelSource(str(path), path))
    for step in (*pipeline(recipe_from({"model": str(path), "quantize": quantize}), ()), *CpuBackend().passes()):
        module = step.run(module)
        if step.name == "specialize_prefill":
            return module
    raise AssertionError("the backend has no such pass")


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("scheme", ["none", "int8"])
def test_only_the_wanted_row_passes_the_last_cache(model_type, scheme, tiny_checkpoint):
    module = lowered(tiny_checkpoint(model_type, tokenizer=False), {"scheme": scheme})
    forward, prompt = module.graph.function("forward"), module.graph.function("prompt")
    kinds = [operation.kind for operation in prompt.operations]
    last = len(kinds) - 1 - kinds[::-1].index("qkv_append")
    assert kinds.count("qkv_append") == module.info.kv_cache.layers
    assert kinds.count("select_row") == 4  # positions, sequences, the residual, the queries
    assert all(operation.result.type.shape[0] == 1 for operation in prompt.operations[last + 1 :])
    wide = [o for o in prompt.operations[: last + 1] if o.kind != "select_row"]
    assert all(operation.result.type.shape[0] == "tokens" for operation in wide)
    assert [kind for kind in kinds if kind != "select_row"] == [operation.kind for operation in forward.operations]
    assert [p.name for p in prompt.parameters] == [*(p.name for p in forward.parameters), "row"]


def test_records_that_all_rows_and_one_row_read_are_made_twice():
    """As where attention and feed-forward read the same norm: rows cannot be taken out of interleaved ones."""
    rows, quantized = TensorType("f32", ("tokens", 64)), TensorType("u8", ("tokens", 192))
    numbers = TensorType("i32", ("tokens",))
    kind = ("row_format", "interleaved")
    wide = Operation("quantize_rows", Value("q", quantized), ("x",), (), (kind,))
    matmul = Operation("linear_quantized", Value("qkv", rows), ("q",), ("w", None), (("features", 64), kind))
    append = Operation("qkv_append", Value("queries", rows), ("qkv", "angles", "positions", "sequences", "block_table"))
    feed = Operation("linear_quantized", Value("y", rows), ("q",), ("v", None), (("features", 64), kind))
    parameters = (Value("x", rows), Value("positions", numbers))
    both = Operation("add", Value("sum", rows), ("queries", "y"))
    forward = Function("forward", parameters, (wide, matmul, append, feed, both), "sum")
    module = Module(Graph((forward,)), dict.fromkeys("wv", SimpleNamespace(shape=(64, 64))), info=None)
    prompt = SpecializePrefill(ALL_OPERATORS).run(module).graph.function("prompt")
    made = {operation.result.name: (operation.kind, operation.operands) for operation in prompt.operations}
    assert made["q"] == ("quantize_rows", ("x",))
    assert made["x.row"] == ("select_row", ("x", "row"))
    assert made["q.row"] == ("quantize_rows", ("x.row",))
    assert made["y"] == ("linear_quantized", ("q.row",))


def test_an_encoder_has_no_prompt(tiny_checkpoint):
    module = lowered(tiny_checkpoint("bert", pooling="mean"), {"scheme": "none"})
    assert [function.name for function in module.graph.functions] == ["embed"]
