"""runtime/executors/onnx/engine.py: ONNX Runtime reports nothing to its maker, and leaves no file of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")

RUN = """
import sys, time
import numpy as np
from pyc.runtime.executors.onnx.engine import Engine
from pyc.runtime.executors.onnx.program import Graph
from pathlib import Path
session = Engine(1, []).session(Graph("g", Path(sys.argv[1]).read_bytes(), ()), {})
session.run({"x": np.ones((2, 2), np.float32)})
time.sleep(float(sys.argv[2]))
"""

LOOKUPS = """
#include <stdio.h>
#include <stdlib.h>
int getaddrinfo(const char *name, const char *service, const void *hints, void **found) {
    FILE *file = fopen(getenv("LOOKUPS"), "a");
    fprintf(file, "%s\\n", name ? name : "");
    fclose(file);
    return -2; /* EAI_NONAME */
}
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in "xy")
    made = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "graph.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def left_by_a_run(graph: Path, seconds: float, **environment: str) -> list[str]:
    """Run the graph in a process that then waits, and return what is in its folder of temporary files."""
    folder = graph.parent / "temporary"
    folder.mkdir()
    known = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    command = [sys.executable, "-c", RUN, str(graph), str(seconds)]
    subprocess.run(command, env={**known, "TMPDIR": str(folder), **environment}, check=True, timeout=120)
    return os.listdir(folder)


def test_no_temporary_file_is_left(graph: Path) -> None:
    assert left_by_a_run(graph, 0) == []


@pytest.mark.slow
def test_no_host_is_looked_up(graph: Path) -> None:
    """Its first report would come ten seconds after the import."""
    pytest.importorskip("ziglang")
    source, made, lookups = (graph.parent / name for name in ("lookups.c", "lookups.so", "lookups.txt"))
    source.write_text(LOOKUPS)
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-nostdlib", "-fno-sanitize=undefined"]
    subprocess.run([*command, "-o", made, source], check=True, capture_output=True)  # the C library is there by then
    left_by_a_run(graph, 13, LD_PRELOAD=str(made), LOOKUPS=str(lookups))
    assert not lookups.exists() or lookups.read_text() == ""
