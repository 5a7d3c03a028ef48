"""TVM's import: its wheel's libraries, whatever the user's variables say, which stay as they are."""

import os
import subprocess
import sys

PROGRAM = """
import os
before = dict(os.environ)
from pyc.backends.cpu.tir.imports import import_tvm
import_tvm()
import tvm.base
assert not tvm.base._RUNTIME_ONLY
assert dict(os.environ) == before
tvm.target.Target("llvm")
"""


def test_libraries_are_those_of_the_wheel(tmp_path):
    (tmp_path / "libtvm_runtime.so").write_text("another")
    variables = {"TVM_LIBRARY_PATH": str(tmp_path), "TVM_USE_RUNTIME_LIB": "1", "TVM_DEVICE_BACKEND_AUTOLOAD": "0"}
    environment = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"} | variables
    command = [sys.executable, "-P", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
