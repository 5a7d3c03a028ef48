"""Models that are loaded over each other, by several threads, before a fork, and while their file is replaced."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from built_models import SMALL_SHAPES, artifacts
from tiny_checkpoints import tiny_checkpoint

from pyc.passes.driver.build import BuildResult

__all__ = ["artifacts", "tiny_checkpoint"]

SCRIPT = """
import os, shutil, signal, sys, threading, time
from pyc.runtime.errors import ArtifactError, RunError
from pyc.runtime.model import load

path = sys.argv[1]
ids = [5, 6, 7, 8]
signal.alarm(100)
own_threads = len(os.listdir("/proc/self/task"))
with load(path, threads=2) as model:
    expected = model.logits(ids)

def right(model):
    return bool((model.logits(ids) == expected).all())

def held():
    for _ in range(1000):  # a thread that was joined is listed for a moment longer
        if len(os.listdir("/proc/self/task")) == own_threads + model.executor.threads - 1:
            break
        time.sleep(0.01)
    with open("/proc/self/maps") as maps:
        mapped = sum("pyc-" in line or ".pyca" in line for line in maps)
    return len(os.listdir("/proc/self/fd")), mapped, len(os.listdir("/proc/self/task"))

# The next is loaded before the one before it is closed.
model = load(path, threads=2)
before = held()
for _ in range(20):
    following = load(path, threads=2)
    model.close()
    model = following
assert held() == before, (held(), before)
assert right(model)

wrong = []
def work():
    for _ in range(4):
        with load(path, threads=2) as own:
            if not right(own):
                wrong.append(own)
workers = [threading.Thread(target=work) for _ in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert not wrong

child = os.fork()
if not child:
    with load(path, threads=2) as own:
        os._exit(0 if right(model) and right(own) else 1)
assert os.waitpid(child, 0)[1] == 0
assert right(model)

# A child meets the loss, and its parent on its own.
cut = shutil.copy(path, f"{path}.cut")
running = load(cut, threads=2).generate(ids, max_tokens=9, ignore_eos=True)
next(running)
child = os.fork()
if not child:
    os.truncate(cut, 4096)
    try:
        list(running)
    except ArtifactError:
        os._exit(8)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
try:
    list(running)
    raise AssertionError("nothing was said")
except ArtifactError:
    pass

# What another thread does at the moment of a fork is never finished in the child.
used, taken, give = load(path, threads=1), threading.Event(), threading.Event()
def use():
    with used.session.lock:
        taken.set()
        give.wait()
using = threading.Thread(target=use)
using.start()
taken.wait()
child = os.fork()
if not child:
    try:
        used.logits(ids)
    except RunError:
        with load(path, threads=1) as own:
            os._exit(0 if right(own) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
give.set()
using.join()
assert right(used)

live, stop = f"{path}.live", threading.Event()
shutil.copy(path, live)
def replace():
    while not stop.is_set():
        shutil.copy(path, f"{path}.new")
        os.rename(f"{path}.new", live)
replacing = threading.Thread(target=replace)
replacing.start()
try:
    for _ in range(10):
        with load(live, threads=1) as own:
            assert right(own)
finally:
    stop.set()
    replacing.join()
"""


CLOSED_AT_THE_END = """
import sys, threading
from pyc.runtime.executors.cpu import executor
from pyc.runtime.model import load

stopping, closed = threading.Event(), threading.Event()
load_library = executor.load_library

def load_slow(data, isa):
    library = load_library(data, isa)
    real = library.pyc_stop

    def stop():
        stopping.set()  # the end of the process is in the middle of it now
        closed.wait(0.3)
        assert not closed.is_set(), "the model went while its threads were being stopped"
        real()

    library.pyc_stop = stop
    return library

executor.load_library = load_slow
models = [load(sys.argv[1], threads=2)]

def close():
    stopping.wait()
    models.pop()
    closed.set()

threading.Thread(target=close, daemon=True).start()
"""


@pytest.mark.slow
def test_a_thread_closes_a_model_while_the_process_ends(
    artifacts: Callable[..., BuildResult], tmp_path: Path, request: Any
) -> None:
    """Its threads are stopped by the one and its code is unloaded by the other, which was a SIGSEGV."""
    pytest.importorskip("transformers")
    checkpoint = request.getfixturevalue("tiny_checkpoint")("llama")
    path = artifacts(checkpoint, shapes=SMALL_SHAPES).path
    command = [sys.executable, "-c", CLOSED_AT_THE_END, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_models_do_not_meet(artifacts: Callable[..., BuildResult], tmp_path: Path, request: Any) -> None:
    pytest.importorskip("transformers")
    checkpoint = request.getfixturevalue("tiny_checkpoint")("llama")
    path = shutil.copy(artifacts(checkpoint, shapes=SMALL_SHAPES).path, tmp_path / "m.pyca")
    command = [sys.executable, "-c", SCRIPT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
