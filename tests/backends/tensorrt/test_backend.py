"""backends/tensorrt: what an artifact has for TensorRT, and that it has no matrix twice."""

import numpy as np
import onnx
import pytest
from long_runs import sample
from onnx import TensorProto

from pyc.backends.tensorrt.expressible import DOCUMENTED
from pyc.compiler.schemes import SCHEMES, Float8, Int8Group, LookupGroup
from pyc.runtime.errors import LowerError
from pyc.runtime.executors.tensorrt.initializers import contents
from pyc.runtime.executors.tensorrt.program import decode_program

EXPRESSIBLE = [name for name, scheme in SCHEMES.items() if not isinstance(scheme, Int8Group | LookupGroup | Float8)]


def program_of(artifact):
    found = next(program for program in artifact.header.programs if program.backend == "tensorrt")
    return found, decode_program(artifact.blob(found.library))


def read_by(artifact, backend):
    programs = [program for program in artifact.header.programs if program.backend == backend]
    return {name for program in programs for function in program.functions for name in function.weights}


@pytest.mark.parametrize(
    ("scheme", "others"),
    [
        *[(scheme, ("onnx",)) for scheme in ("bf16", "int8", "int4-g32", "int4-g32-asym")],
        *[pytest.param(name, ("cpu", "onnx"), marks=pytest.mark.slow) for name in sample(("int4-g32-asym", "int8"))],
    ],
)
def test_an_artifact_with_onnx_has_no_tensor_more(scheme, others, built):
    """Both read the same tensors, also where the CPU's program has others of the same names."""
    quantize = {"scheme": scheme}
    alone, both = (built("llama", *targets, quantize=quantize) for targets in (others, (*others, "tensorrt")))
    assert [tensor.name for tensor in both.header.tensors] == [tensor.name for tensor in alone.header.tensors]
    assert read_by(both, "tensorrt") == read_by(both, "onnx")


def test_the_program_says_what_it_is_for(built):
    header = built("llama", "tensorrt").header
    (program,) = header.programs
    assert (program.device, program.arch, program.isa, program.features) == ("cuda", "any", "tensorrt", ())
    assert {function.name: function.tokens for function in program.functions} == {"forward": 16, "logits": 16}
    assert [tool.name for tool in program.abi] == ["onnx", "pyc-tensorrt", "pyc-module"]


def test_the_same_recipe_gives_the_same_program(built):
    first, second = (program_of(built("qwen3", "tensorrt"))[1] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("activations", "scheme", "is_exact"),
    [("f32", "int8", True), ("int8", "int8", False), ("int8", "none", True), ("f32", "int4-g32", True)],
)
def test_products_are_exact_where_the_recipe_rounds_no_rows(activations, scheme, is_exact, built):
    artifact = built("llama", "tensorrt", quantize={"scheme": scheme, "activations": activations})
    assert program_of(artifact)[1].is_exact == is_exact


@pytest.mark.parametrize("scheme", EXPRESSIBLE)
@pytest.mark.parametrize("architecture", ["mistral", "bert"])
def test_graphs_have_operators_and_types_that_are_documented(architecture, scheme, built):
    artifact = built(architecture, "tensorrt", quantize={"scheme": scheme, "embeddings": scheme})
    _, program = program_of(artifact)
    codes = {"int8": TensorProto.INT8}.get(scheme, TensorProto.INT4 if scheme.startswith("int4") else None)
    for graph in program.graphs:
        model = onnx.ModelProto.FromString(graph.model)
        onnx.checker.check_model(filled(model, graph, artifact), full_check=True)
        assert {node.op_type for node in model.graph.node} <= set(DOCUMENTED)
        assert not any(node.domain for node in model.graph.node)
        given = {initializer.name: initializer for initializer in model.graph.initializer}
        assert not {initializer.data_type for initializer in given.values()} & {TensorProto.UINT8, TensorProto.UINT4}
        quantizers = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
        assert bool(quantizers) == (codes is not None)
        for node in quantizers:
            assert given[node.input[0]].data_type == codes
            assert len(node.input) == 2, "TensorRT takes no zero points"
            assert len(given[node.input[1]].dims) == (1 if scheme == "int8" else 2)


def filled(model, graph, artifact):
    """The model with its weights."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    made = {initializer.name: initializer for initializer in graph.initializers}
    for initializer in whole.graph.initializer:
        if initializer.name in made:
            tensors = {name: artifact.tensor(name) for name in made[initializer.name].tensors}
            initializer.raw_data = contents(made[initializer.name], tensors).tobytes()
    return whole


def test_every_weight_is_handed_over_and_the_graph_has_no_bytes_of_it(built):
    artifact = built("llama", "tensorrt", quantize={"scheme": "int4-g32"})
    for graph in program_of(artifact)[1].graphs:
        model = onnx.ModelProto.FromString(graph.model)
        empty = {i.name for i in model.graph.initializer if not (i.raw_data or i.float_data or i.int64_data)}
        assert empty == {initializer.name for initializer in graph.initializers}
        assert not any(i.external_data for i in model.graph.initializer)
        assert len(graph.model) < 100_000


def test_nodes_are_named_after_the_layer_that_they_are_of(built):
    model = onnx.ModelProto.FromString(program_of(built("llama", "tensorrt"))[1].graph("forward").model)
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == len(names)
    products = [name.partition("/")[0] for name in names if "/MatMul/" in name]
    assert len(products) == len(set(products)) > 4
    assert any(name.startswith("layer 1/Attention/") for name in names)


@pytest.mark.parametrize("scheme", ["int8-g32", "fp8-e5m2", "fp8-b128", "lut4-g32", "nvfp4", "ternary"])
def test_a_scheme_that_tensorrt_cannot_express_is_told_with_its_matrix(scheme, built):
    wanted = (
        rf"^target tensorrt: \w+_linear of .*layers\.0\..*: {scheme} cannot be expressed: TensorRT dequantizes "
        r"int4 in blocks, int8 and e4m3 by rows alone; set its scheme to int8, fp8 or int4-g32"
    )
    with pytest.raises(LowerError, match=wanted):
        built("llama", "tensorrt", quantize={"scheme": scheme, "embeddings": "int8"})


def test_an_embedding_of_e5m2_is_refused(built):
    with pytest.raises(LowerError, match=r"^target tensorrt: float8_embedding of .*: fp8-e5m2 cannot be expressed"):
        built("llama", "tensorrt", quantize={"scheme": "int8", "embeddings": "fp8-e5m2"})


@pytest.fixture
def no_cache(monkeypatch, tmp_path):
    """Programs are written anew."""
    monkeypatch.setenv("PYC_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.usefixtures("no_cache")
def test_an_operator_that_tensorrt_cannot_express_is_told_with_its_layer(built, monkeypatch):
    others = {name: version for name, version in DOCUMENTED.items() if name != "Attention"}
    monkeypatch.setattr("pyc.backends.tensorrt.emitter.DOCUMENTED", others)
    wanted = r"^target tensorrt: attention of layer 0: TensorRT's parser documents no operator ONNX Attention$"
    with pytest.raises(LowerError, match=wanted):
        built("llama", "tensorrt")


@pytest.mark.usefixtures("no_cache")
def test_an_operation_without_a_form_is_told(built, monkeypatch):
    from pyc.backends.onnx.emitter import Emitter

    monkeypatch.delattr(Emitter, "op_gated")
    with pytest.raises(LowerError, match=r"^target tensorrt: gated of %\d+: no operator of TensorRT stands for gated$"):
        built("llama", "tensorrt")


def test_codes_in_the_artifact_are_those_of_the_onnx_program(built):
    """Signs and offsets are made when an engine is built: the bytes in the file are the other program's."""
    quantize = {"scheme": "int4-g32"}
    one, other = (built("llama", backend, quantize=quantize) for backend in ("onnx", "tensorrt"))
    for tensor in one.header.tensors:
        assert np.array_equal(one.tensor(tensor.name), other.tensor(tensor.name))
