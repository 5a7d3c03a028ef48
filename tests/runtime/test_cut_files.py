"""A file that another process cuts or overwrites: an error in words, and never a signal, at any moment."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from pyc.compiler.artifact import ArtifactWriter
from pyc.runtime.format import Generation, ModelInfo, Pooling, Provenance

MODEL = ModelInfo("bert", "encoder", 32, 8, 64, 2, None, Pooling("mean", True))

CUT_WHILE_HASHING = """
import itertools, os, shutil, sys
from pyc.runtime import reader
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


def test_a_file_that_is_cut_while_it_is_hashed(tmp_path: Path) -> None:
    path = small_artifact(tmp_path / "m.pyca")
    command = [sys.executable, "-c", CUT_WHILE_HASHING, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert len(done.stdout.splitlines()) == 18
