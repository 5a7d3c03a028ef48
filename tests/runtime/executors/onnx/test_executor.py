"""runtime/executors/onnx: steps of several sequences, what is refused, and errors of ONNX Runtime in one line."""

import subprocess
import sys
import warnings

import numpy as np
import pytest

from pyc.runtime.artifact.format import Function, KvCache, Program, Tool
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.executors.onnx.engine import Engine
from pyc.runtime.executors.onnx.executor import _buckets, checked_rows, choose_program
from pyc.runtime.executors.onnx.kv_cache import check_cache, make_caches
from pyc.runtime.executors.onnx.program import (
    CONVENTION,
    Graph,
    Initializer,
    OnnxProgram,
    decode_program,
    encode_program,
)


def program(**changes):
    fields = {
        "backend": "onnx",
        "device": "cpu",
        "arch": "any",
        "system": "linux",
        "isa": "onnxruntime",
        "features": (),
        "library": "onnx/onnxruntime.onnx",
        "abi": (Tool(*CONVENTION),),
        "functions": (),
    }
    return Program(**{**fields, **changes})


def test_a_program_of_another_version():
    with pytest.raises(RunError, match="version 99 of pyc-onnx, this pyc runs 1; build the artifact again"):
        choose_program((program(abi=(Tool(CONVENTION[0], "99"),)),), None)


def test_a_variant_that_is_not_there():
    with pytest.raises(RunError, match="no program for ONNX Runtime is called 'avx2'"):
        choose_program((program(),), "avx2")


def test_a_function_without_a_graph():
    only = program(functions=(Function("forward", 4, "forward_4", (), ()),))
    assert _buckets(only, {"forward"}, 64) == {"forward": (4,)}
    assert _buckets(only, {"forward"}, 3) == {"forward": (3,)}, "no step has more rows"
    with pytest.raises(ArtifactError, match="has no graph 'forward', which its header names"):
        _buckets(only, {"logits"}, 64)


@pytest.mark.parametrize("data", [b"", b"\xff", encode_program(OnnxProgram("", ()))[:-1], b"\x81\xa1x\x01"])
def test_a_program_that_is_damaged(data):
    with pytest.raises(ArtifactError, match="the program for ONNX Runtime is not valid"):
        decode_program(data)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({}, True),
        ({"head_features": 16}, True),
        ({"layers": 3}, False),
        ({"layers": 10**6}, False),
        ({"kv_heads": 1}, False),
        ({"head_features": 8}, False),
        ({"layers": 0, "kv_heads": 0, "head_features": 0}, False),
    ],
)
def test_a_cache_that_is_not_the_headers(fields, fits):
    program_ = OnnxProgram("", (), **{"layers": 2, "kv_heads": 4, "head_features": 12, **fields})
    cache = KvCache(2, 4, 12, "f16", 16)
    check_cache(program_, None)
    if fits:
        check_cache(program_, cache)
        return
    with pytest.raises(ArtifactError, match=r"is not valid: its cache has .* the header's 2 of 4 of 12"):
        check_cache(program_, cache)


@pytest.mark.parametrize("shape", [(2, 4), (5,), (1, 2, 5)])
def test_rows_of_another_width(shape):
    assert checked_rows(np.zeros((3, 5), np.float32), "logits", 5).shape == (3, 5)
    with pytest.raises(ArtifactError, match=r"graph 'logits' gives \[.*\], expected rows of 5"):
        checked_rows(np.zeros(shape, np.float32), "logits", 5)


def test_a_cache_that_no_machine_has():
    huge = OnnxProgram("", (), layers=80, kv_heads=64, head_features=128)
    with pytest.raises(RunError, match=r"of a sequence of 1000000 tokens takes 5\.243 TB, and this process may"):
        make_caches(huge, 1, 1_000_000, 16 << 30)


def test_a_provider_that_is_not_there():
    pytest.importorskip("onnxruntime")
    with pytest.raises(RunError, match=r"provider 'NoSuchProvider': onnxruntime .* here has .*CPUExecutionProvider"):
        Engine(1, [("NoSuchProvider", {})])


def test_a_graph_that_the_installed_version_lacks_something_for():
    """An opset of the future: ONNX Runtime's own words, on one line, and what to do."""
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([node], "g", [value], [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 999)], ir_version=10)
    with pytest.raises(RunError, match=r"lacks something .* 'g' needs: .*; install a newer onnxruntime") as caught:
        Engine(1, []).session(Graph("g", model.SerializeToString(), ()), {})
    assert "\n" not in str(caught.value)


def test_a_graph_that_is_none():
    pytest.importorskip("onnxruntime")
    with pytest.raises(RunError, match="does not take the graph 'g'"):
        Engine(1, []).session(Graph("g", b"no graph", ()), {})


def test_a_weight_of_another_size():
    pytest.importorskip("onnxruntime")
    graph = Graph("g", b"", (Initializer("w", "w", "f32", (3,)),))
    with pytest.raises(ArtifactError, match=r"w: it is \[2\], the graph expects \[3\]"):
        Engine(1, []).session(graph, {"w": np.zeros(2, np.float32)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "bf16"}, "weight 'w': it is stored as float32, which does not become bf16"),
        ({"dtype": "x"}, "weight 'w': it is stored as float32, which does not become x"),
        ({"shape": (-1, -2)}, "the program for ONNX Runtime is not valid: graph 'g', weight 'w': "),
        ({"shape": (2**70,)}, "expects"),
        ({"row": 5}, r"w: it is \[2\], the graph wants row 5"),
        ({"row": -1}, r"w: it is \[2\], the graph wants row -1"),
    ],
)
def test_a_weight_that_the_artifact_does_not_have_so(changes, message):
    pytest.importorskip("onnxruntime")
    fields = {"name": "w", "tensor": "w", "dtype": "f32", "shape": (2,), **changes}
    with pytest.raises(ArtifactError, match=message):
        Engine(1, []).session(Graph("g", b"", (Initializer(**fields),)), {"w": np.zeros(2, np.float32)})


def test_a_weight_that_is_named_twice():
    pytest.importorskip("onnxruntime")
    weight = Initializer("w", "w", "f32", (2,))
    with pytest.raises(ArtifactError, match="graph 'g', weight 'w': "):
        Engine(1, []).session(Graph("g", b"", (weight, weight)), {"w": np.zeros(2, np.float32)})


def identity():
    """A graph whose output is its input."""
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    opsets = [onnx.helper.make_opsetid("", 21)]
    return Graph("g", onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), ())


def test_an_input_that_the_graph_lacks():
    pytest.importorskip("onnxruntime")
    session = Engine(1, []).session(identity(), {})
    with pytest.raises(RunError, match=r"onnxruntime: .*nowhere"):
        session.bind({"nowhere": np.zeros(1, np.float32)}, {})


def test_a_provider_that_is_named_twice():
    pytest.importorskip("onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Engine(1, [("CPUExecutionProvider", {})] * 2).session(identity(), {})


def test_a_provider_that_does_not_start(monkeypatch):
    """ONNX Runtime goes on without it, and only logs that."""
    pytest.importorskip("onnxruntime")
    engine = Engine(1, [("CPUExecutionProvider", {})])
    session = engine._ort.InferenceSession
    monkeypatch.setattr(session, "get_providers", lambda self: ["Another"])
    with pytest.raises(RunError, match=r"'CPUExecutionProvider': .* does not start here: .*leave the provider out"):
        engine.session(identity(), {})


def test_a_provider_that_fails(capsys):
    """No other is taken for it, and standard output is the model's text alone."""
    pytest.importorskip("onnxruntime")
    with pytest.raises(RunError, match="does not take the graph 'g'"):
        Engine(1, [("CPUExecutionProvider", {"\ud800": "x"})]).session(identity(), {})
    with pytest.raises(RunError, match="does not take the graph 'g'"):
        Engine(1, []).session(Graph("g", b"no graph", ()), {})
    assert capsys.readouterr().out == ""


def test_a_result_that_is_wider_than_the_header_says():
    """Before a step has memory: that of a width of 2**31 was 16 GB."""
    pytest.importorskip("onnxruntime")
    session = Engine(1, []).session(identity(), {})
    width = session._session.get_outputs()[0].shape[-1]
    session.check_width("g", width)
    with pytest.raises(ArtifactError, match=r"graph 'g' gives \[.*\], expected rows of 2147483647"):
        session.check_width("g", 2**31 - 1)


@pytest.mark.parametrize(
    ("cause", "ends"),
    [("KeyboardInterrupt", "KeyboardInterrupt()"), ("OSError('no memory')", "cannot be loaded: it failed; there is")],
)
def test_an_import_that_fails(cause, ends, tmp_path):
    """What Ctrl-C stops in the middle of a module in C is an ImportError, and not the lack of a package."""
    (tmp_path / "onnxruntime.py").write_text(
        f"try:\n    raise {cause}\nexcept BaseException as error:\n    raise ImportError('it failed') from error\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from pyc.runtime.executors.onnx.engine import Engine\n"
        "try:\n    Engine(1, [])\n"
        "except BaseException as error:\n    print(repr(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ends in done.stdout


def test_without_onnxruntime():
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from pyc.runtime.executors.onnx.engine import Engine\n"
        "from pyc.runtime.errors import RunError\n"
        "try:\n    Engine(1, [])\n"
        "except RunError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == (
        "backend onnx: the package onnxruntime is not installed; to install it, "
        "in a checkout of pyc: pip install -c constraints.txt '.[onnx]'\n"
    )
