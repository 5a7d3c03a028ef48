"""runtime/executors/tensorrt: engines that TensorRT builds, refuses to build, and does not load, by its double."""

import numpy as np
import pytest

from pyc.runtime.artifact.format import Function, Program, Tool
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.tensorrt.builder import build_engine
from pyc.runtime.executors.tensorrt.engine import Engine
from pyc.runtime.executors.tensorrt.executor import buckets_of, choose_program
from pyc.runtime.executors.tensorrt.program import CONVENTION, Extent, Graph, Profile, TensorRtProgram
from pyc.runtime.executors.tensorrt.toolkit import open_toolkit

onnx = pytest.importorskip("onnx")
tensorrt_double = pytest.importorskip("tensorrt_double")  # it needs onnxruntime
gpu = tensorrt_double.gpu
TensorProto, helper = onnx.TensorProto, onnx.helper

PROFILE = Profile("rows", (Extent("x", (1, 4), (2, 4), (8, 4)),))
WEIGHTS = {"w": np.arange(12, dtype=np.float32).reshape(4, 3)}


def graph_of(kind="MatMul", weights=WEIGHTS, profiles=(PROFILE,), opset=23, **attributes):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])
    node = helper.make_node(kind, ["x", "w"], ["y"], name="layer 7/product", **attributes)
    given = [TensorProto(name=name, data_type=1, dims=array.shape) for name, array in weights.items()]
    made = helper.make_graph([node], "g", [value], [result], given)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    return Graph("g", model.SerializeToString(), (), profiles)


def contents(weights=WEIGHTS):
    return lambda: [(name, array.reshape(-1).view(np.uint8)) for name, array in weights.items()]


@pytest.fixture
def toolkit(gpu):
    return open_toolkit()


def built(toolkit, graph, given=WEIGHTS, is_exact=True, timings=b""):
    return build_engine(toolkit, graph, contents(given), is_exact=is_exact, timings=timings)


def run(toolkit, context, rows):
    device = toolkit.device
    made = np.empty((len(rows), 3), np.float32)
    source, target = device.allocate(rows.nbytes, "x"), device.allocate(made.nbytes, "y")
    device.upload(rows, source)
    context.bind({"x": (rows.shape, source)}, {"y": target})
    context.run()
    device.download(target, made)
    device.wait()
    return made


def test_an_engine_computes_its_graph_with_the_weights_that_were_handed_over(toolkit):
    engine, _ = built(toolkit, graph_of())
    rows = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    found = run(toolkit, Engine(toolkit, "g", engine, 1).context(0), rows)
    assert np.abs(found - rows @ WEIGHTS["w"]).max() < 1e-5


@pytest.mark.parametrize("is_exact", [True, False])
def test_products_are_of_f32_where_a_recipe_asks_for_that(toolkit, is_exact):
    engine, _ = built(toolkit, graph_of(), is_exact=is_exact)
    assert (b'"tf32": false' in engine) == is_exact


def test_timings_are_handed_on_and_those_of_elsewhere_begun_anew(toolkit):
    _, first = built(toolkit, graph_of())
    _, second = built(toolkit, graph_of(), timings=first)
    assert len(second) > len(first) > len(tensorrt_double.TIMINGS)
    assert built(toolkit, graph_of(), timings=b"of another version")[1] == first


def test_an_operator_that_tensorrt_has_not_is_named_with_its_layer(toolkit):
    wanted = (
        r"^TensorRT 11\.1\.0\.106 cannot express the graph 'g': Bernoulli at layer 7/product: No importer registered "
        r"for op: Bernoulli; install a newer TensorRT, or run another program of the artifact \(--backend\)$"
    )
    with pytest.raises(RunError, match=wanted):
        built(toolkit, graph_of("Bernoulli"))


def test_a_type_that_an_operator_does_not_take(toolkit):
    """`And` of floats: the type is told, too."""
    with pytest.raises(RunError, match=r"And at layer 7/product: And does not support FLOAT"):
        built(toolkit, graph_of("And"))


def test_an_opset_of_the_future(toolkit):
    with pytest.raises(RunError, match=r"cannot express the graph 'g': .*opset 99 is not supported"):
        built(toolkit, graph_of(opset=99))


def test_a_model_that_is_none(toolkit):
    with pytest.raises(RunError, match=r"cannot express the graph 'g': .*Failed to parse the ONNX model"):
        built(toolkit, Graph("g", b"\xff\xff", (), ()))


def test_a_weight_of_another_size(toolkit):
    with pytest.raises(RunError, match=r"the weight 'w' of 8 bytes is not taken; .*w has 48 bytes"):
        built(toolkit, graph_of(), {"w": np.zeros(2, np.float32)})


def test_a_weight_that_is_missing(toolkit):
    with pytest.raises(RunError, match="w: the initializer has no data"):
        built(toolkit, graph_of(), {})


@pytest.mark.parametrize(
    "extents", [(), (Extent("x", (1, 5), (2, 5), (8, 5)),), (Extent("z", (1, 4), (2, 4), (8, 4)),)]
)
def test_a_profile_that_contradicts_the_graph(toolkit, extents):
    with pytest.raises(RunError, match=r"TensorRT 11\.1\.0\.106 builds no engine of the graph 'g' for Double GPU: "):
        built(toolkit, graph_of(profiles=(Profile("rows", extents),)))


def test_an_engine_of_another_version(toolkit, monkeypatch, gpu):
    engine, _ = built(toolkit, graph_of())
    tensorrt_double.install(monkeypatch, gpu, "11.4.0.106")
    wanted = r"11\.4\.0\.106 on Double GPU does not load the engine of 'g': .*version 11\.1\.0\.106.*pyc install"
    with pytest.raises(RunError, match=wanted):
        Engine(open_toolkit(), "g", engine, 1)


@pytest.mark.parametrize("data", [b"", b"no engine"])
def test_an_engine_that_is_none(toolkit, data):
    with pytest.raises(RunError, match=r"does not load the engine of 'g': .*build it again: pyc install --again"):
        Engine(toolkit, "g", data, 1)


def test_an_engine_with_other_profiles(toolkit):
    engine, _ = built(toolkit, graph_of())
    with pytest.raises(RunError, match="does not load the engine of 'g'"):
        Engine(toolkit, "g", engine, 2)


def test_what_lies_outside_the_profile(toolkit):
    engine, _ = built(toolkit, graph_of())
    context = Engine(toolkit, "g", engine, 1).context(0)
    with pytest.raises(RunError, match=r"x of 'g' is \[9, 4\], outside its profile"):
        context.bind({"x": ((9, 4), 0)}, {})
    with pytest.raises(RunError, match="the engine of 'g' takes no z"):
        context.bind({}, {"z": 0})
    with pytest.raises(RunError, match="profile 3 of 'g': Error in set optimization profile"):
        Engine(toolkit, "g", engine, 1).context(3)


def program(**changes):
    fields = {
        "backend": "tensorrt",
        "device": "cuda",
        "arch": "any",
        "system": "linux",
        "isa": "tensorrt",
        "features": (),
        "library": "tensorrt/tensorrt.tensorrt",
        "abi": (Tool(*CONVENTION),),
        "functions": (),
    }
    return Program(**{**fields, **changes})


def test_a_program_of_another_version():
    with pytest.raises(RunError, match="version 99 of pyc-tensorrt, this pyc runs 1; build the artifact again"):
        choose_program((program(abi=(Tool(CONVENTION[0], "99"),)),), None)


def test_an_artifact_without_a_program_says_which_it_has():
    others = program(backend="cpu"), program(backend="onnx")
    wanted = r"has no program for TensorRT, only for cpu, onnx; add `- backend: tensorrt` to the recipe's targets"
    with pytest.raises(RunError, match=wanted):
        choose_program(others, None)
    with pytest.raises(RunError, match="no program for TensorRT called 'avx2', only for tensorrt"):
        choose_program((program(),), "avx2")


def test_a_function_without_a_graph():
    only = program(functions=(Function("forward", 4, "forward_4", (), ()),))
    assert buckets_of(only, TensorRtProgram((Graph("forward", b"", (), ()),), True)) == {"forward": (4,)}
    with pytest.raises(ArtifactError, match="has no graph 'forward', which its header names"):
        buckets_of(only, TensorRtProgram((), True))
