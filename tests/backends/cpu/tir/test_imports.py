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
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


BESIDE = """
import os, sys, threading
from pyc.backends.cpu.tir.imports import import_tvm
from pyc.runtime.host.cache_folder import cache_directory
before = dict(os.environ), cache_directory()
seen = []

def look():
    import torch
    seen.append((torch.__file__, dict(os.environ), cache_directory()))

def beside(event, arguments):  # before any lock of imports is taken
    if event == "import" and arguments[0] == "tvm.base" and not threads:
        threads.append(threading.Thread(target=look))
        threads[0].start()
        threads[0].join()

threads = []
sys.addaudithook(beside)
import_tvm()
assert len(seen) == 1 and seen[0][1:] == before
assert seen[0][0].startswith(sys.argv[1])
import tvm_ffi._convert
assert tvm_ffi._convert.torch is None
"""


def test_other_threads_see_nothing_of_it(tmp_path):
    """They have torch, the user's variables and the user's cache."""
    (tmp_path / "torch.py").write_text("")
    home = {"HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYC_"))} | home
    command = [sys.executable, "-P", "-c", BESIDE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
