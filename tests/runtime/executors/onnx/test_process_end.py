"""runtime/executors/onnx/process_end.py: processes that fork or end while ONNX Runtime is in use."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pyc.runtime.errors import RunError
from pyc.runtime.executors.onnx import process_end

pytest.importorskip("onnxruntime")

BEGIN = """
import gc, os, sys, threading, time
from pathlib import Path
import numpy as np
from pyc.runtime.executors.onnx.engine import Engine
from pyc.runtime.executors.onnx.program import Graph
graph = Graph("g", Path(sys.argv[1]).read_bytes(), ())
session = Engine(4, []).session(graph, {})
rows = {"x": np.ones((300, 300), np.float32)}
session.run(rows)
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Products of matrices, some milliseconds of them."""
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [300, 300]) for name in ("x", "y8"))
    nodes = [onnx.helper.make_node("MatMul", ["x", "x"], ["y0"])]
    nodes += [onnx.helper.make_node("MatMul", [f"y{index}", "x"], [f"y{index + 1}"]) for index in range(8)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", [x], [y]), opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10
    )
    path = tmp_path_factory.mktemp("graph") / "graph.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def ended(code: str, graph: Path) -> tuple[int, str, str]:
    """The exit code and the output of a process, whose children end with it."""
    command = [sys.executable, "-c", BEGIN + code, str(graph)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, out, err


@pytest.mark.parametrize("ends", ["sys.exit(7)", "del session; gc.collect(); sys.exit(7)"])
def test_a_forked_child_ends(ends: str, graph: Path) -> None:
    """What ONNX Runtime destroys waits for threads that a child does not have: it waited for ever."""
    code = f"if not (child := os.fork()):\n    {ends}\nprint(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    assert ended(code, graph) == (0, "7\n", "")


def test_a_process_ends_while_threads_run(graph: Path) -> None:
    """A thread that came back from C++ while the interpreter ended aborted the process, most of the time."""
    code = """
def work():
    while True:
        session.run(rows)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
sys.exit(7)
"""
    for _ in range(5):
        assert ended(code, graph) == (7, "", "")


def test_at_the_end_only_the_main_thread_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = threading.Event()
    ending.set()
    monkeypatch.setattr(process_end, "_is_ending", ending)
    monkeypatch.setattr(process_end, "PATIENCE_S", 0.0)
    said: list[str] = []

    def begin() -> None:
        try:
            with process_end.running():
                said.append("ran")
        except RunError as error:
            said.append(str(error))

    begin()
    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert said == ["ran", "onnxruntime: the process is ending"]
    assert not process_end._running
