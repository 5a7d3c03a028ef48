"""runtime/executors/onnx/engine.py: ONNX Runtime reports nothing to its maker, and leaves no file of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyc.commands
import pyc.runtime

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


def test_a_benchmark_leaves_none(tmp_path: Path) -> None:
    """Its process imports what a load takes before the load."""
    pytest.importorskip("onnxruntime")
    known = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    code = "from pyc.commands.bench_worker import _import_for; _import_for('onnx')"
    subprocess.run([sys.executable, "-c", code], env={**known, "TMPDIR": str(tmp_path)}, check=True, timeout=120)
    assert os.listdir(tmp_path) == []


def test_nothing_else_imports_it() -> None:
    """Which would report: `import_onnxruntime` says first that nothing is to be."""
    folders = [Path(each) for room in (pyc.runtime, pyc.commands) for each in room.__path__]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    found = [path for path in sources if IMPORTS.search(path.read_text("utf-8"))]
    assert len(sources) > 100
    assert [path.parts[-2:] for path in found] == [("onnx", "engine.py")]


IMPORTS = re.compile(r"(?m)^\s*(import onnxruntime|from onnxruntime)|import_module\(\"onnxruntime")


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
