"""A file that another process cuts or overwrites: an error in words, and never a signal, at any moment."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from built_models import SMALL_SHAPES, artifacts
from tiny_checkpoints import tiny_checkpoint

from pyc.compiler.files.artifact import ArtifactWriter
from pyc.passes.driver.build import BuildResult
from pyc.runtime.artifact.format import Generation, ModelInfo, Pooling, Provenance

__all__ = ["artifacts", "tiny_checkpoint"]

MODEL = ModelInfo("bert", "encoder", 32, 8, 64, 2, None, Pooling("mean", True))

CUT_WHILE_HASHING = """
import itertools, os, shutil, sys
from pyc.runtime.artifact import reader
from pyc.runtime.errors import ArtifactError

original, real = sys.argv[1], reader.blake3

def cut(*arguments, **options):
    os.truncate(path, size)
    return real(*arguments, **options)

cut.AUTO = real.AUTO
for action, mode, size in itertools.product(("verify", "tensors", "ahead"), ("mmap", "pread"), (0, 4096, 2_000_000)):
    path = shutil.copy(original, f"{original}.{action}.{mode}.{size}")
    print(path, flush=True)
    reader.blake3 = real
    with reader.open_artifact(path, mode=mode) as artifact:
        reader.blake3 = cut
        try:
            if action == "ahead":
                artifact.verify_ahead()
            artifact.verify_all() if action == "verify" else artifact.tensors()
        except ArtifactError as error:
            assert str(error).startswith(f"{path}: ends at {size}, expected "), error
        else:
            raise AssertionError("nothing was said")
"""


def small_artifact(path: Path) -> Path:
    """Three tensors of several chunks, which map."""
    with ArtifactWriter(path, chunk_bytes=1 << 20) as writer:
        for index in range(3):
            writer.add_tensor(f"t{index}", "u8", (3_000_000,), [np.random.default_rng(index).bytes(3_000_000)])
        writer.finish(model=MODEL, generation=Generation(), provenance=Provenance("{}", (), (), ()))
    return path


@pytest.mark.slow
def test_a_file_that_is_cut_while_it_is_hashed(tmp_path: Path) -> None:
    path = small_artifact(tmp_path / "m.pyca")
    command = [sys.executable, "-c", CUT_WHILE_HASHING, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert len(done.stdout.splitlines()) == 18


CUT_WHILE_RUNNING = """
import os, shutil, sys, time
from pyc.runtime.errors import ArtifactError
from pyc.runtime.model import load

original, kind = sys.argv[1:]
whole, path, copies = os.path.getsize(original), "", 0

def fresh():
    global path, copies
    path, copies = f"{original}.{copies}", copies + 1
    shutil.copy(original, path)

def refused(work, words):
    try:
        work()
    except ArtifactError as error:
        assert str(error).startswith(f"{path}: {words} while it was in use: load it again; replace artifacts"), error
    else:
        raise AssertionError("nothing was said")

def ids(count=9):
    return [5 + index % 7 for index in range(count)]

for threads in (1, 2):
    for size in (0, 4096, whole // 3):
        fresh()
        with load(path, threads=threads) as model:
            if kind == "decoder":
                before = model.logits(ids())
                written = os.stat(path)
                running = model.generate(ids(), max_tokens=20, temperature=0, ignore_eos=True)
                next(running)
                os.truncate(path, size)
                refused(lambda: list(running), "cut, or not readable any more")
                work = lambda: list(model.generate(ids(), max_tokens=3))
            else:
                work = lambda: model._embedder.embed([ids()] * 3)
                work()
                written = os.stat(path)
                os.truncate(path, size)
                model.executor.check_file, check = (lambda: None), model.executor.check_file
                refused(work, "cut, or not readable any more")
                model.executor.check_file = check
            refused(work, "cut or overwritten")
            # As if nothing had happened: what was lost stays lost.
            os.truncate(path, whole)
            os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
            model.executor.check_file()
            refused(work, "cut, or not readable any more")
        os.unlink(path)

# Overwritten in place.
fresh()
with load(path, threads=1) as model:
    work = (lambda: model.logits(ids())) if kind == "decoder" else (lambda: model._embedder.embed([ids()]))
    before = work().copy()
    shutil.copy(original, f"{path}.new")
    os.chmod(path, 0o600)
    os.rename(f"{path}.new", path)  # the way to do it
    assert (work() == before).all()
fresh()
with load(path, threads=1) as model:
    time.sleep(0.02)  # the resolution of file times
    with open(path, "r+b") as file:
        file.write(b"x")
    refused(work, "cut or overwritten")

# In the middle of work: nothing is handed out that other weights may have made.
fresh()
with load(path, threads=1) as model:
    def write():
        with open(path, "r+b") as file:
            file.write(b"x")
    time.sleep(0.02)
    if kind == "decoder":
        running = model.generate(ids(), max_tokens=3, temperature=0, ignore_eos=True)
        next(running)
        write()
        refused(lambda: next(running), "cut or overwritten")
    else:
        run = model.executor.run
        model.executor.run = lambda *given: (run(*given), write())[0]
        refused(work, "cut or overwritten")

# Read, not mapped.
fresh()
with load(path, threads=1, mode="pread") as model:
    os.truncate(path, 0)
    assert (work() == before).all()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "model_type"), [("decoder", "qwen2"), ("encoder", "bert")])
def test_a_file_that_is_cut_while_it_runs(
    kind: str, model_type: str, artifacts: Callable[..., BuildResult], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("transformers")
    checkpoint = request.getfixturevalue("tiny_checkpoint")(model_type)
    path = shutil.copy(artifacts(checkpoint, shapes={**SMALL_SHAPES, "context": 16}).path, tmp_path / "m.pyca")
    command = [sys.executable, "-c", CUT_WHILE_RUNNING, str(path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
