"""Commands with little memory: what is larger than the memory that they may have passes through, and where there is too
little they end with one line and leave what was there.

The limit is that of the address space (RLIMIT_AS), which every kernel enforces; where memory is only counted, the peak
of the process is compared. PYC_LIMITS is how many limits are tried (default 3; `make test-long` 40).
"""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from range_server import serving
from remote_artifacts import write_artifact

LIMITS = int(os.environ.get("PYC_LIMITS", "3"))
CODES = {0, 74}
"""Done, or the system refused."""
FOREIGN = "OpenBLAS error: Memory allocation still failed"
"""numpy's library ends the process with 1 where it finds no memory when it is loaded."""
RUST = re.compile(r"memory allocation of \d+ bytes failed")
"""Libraries in Rust end the process by SIGABRT, once in a hundred limits of less than RUST_BYTES."""
RUST_BYTES = 100 << 20
PYC = """
import atexit, sys
from pyc.runtime.host.machine import peak_rss_bytes
atexit.register(lambda: print("peak", peak_rss_bytes()))
from pyc.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run(arguments, folder, *, limit_bytes=0, **environment):
    """Exit code, what was said, and the peak of resident memory in bytes."""

    def confine():
        if limit_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))

    done = subprocess.run(
        [sys.executable, "-P", "-c", PYC, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYC_CHUNK_CACHE": "off", "OPENBLAS_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=confine,
        check=False,
    )
    said, _, peak = done.stdout.partition("peak ")
    return done.returncode, said, int(peak or 0)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server with an artifact of 12 MB and one of 92 MB."""
    folder = tmp_path_factory.mktemp("served")
    with serving() as server:
        for name, tensors in (("small", 12), ("large", 90)):
            path = folder / name
            server.files[f"/{name}.pyca"] = write_artifact(path, tensors=2 * tensors, size=1_000_000, codec="none")
        yield server


@pytest.mark.slow
def test_a_pull_has_a_few_chunks_in_memory(served, tmp_path):
    """Whatever the artifact's size: the header's, 4 chunks and 64 MiB."""
    peaks = []
    for name in ("small", "large"):
        code, said, peak = run(["pull", f"{served.url}/{name}.pyca", "--allow-unsigned"], tmp_path)
        assert code == 0, said
        peaks.append(peak)
    assert peaks[1] - peaks[0] < (64 << 20) + 4 * (128 << 10)


def limits(least: int, most: int) -> list[int]:
    step = (most - least) // max(LIMITS - 1, 1)
    return [least + number * step for number in range(LIMITS)]


@pytest.mark.slow
def test_pull_within_little_memory(served, tmp_path: Path):
    """It does it, or says that it cannot, and goes on from there."""
    done = 0
    for limit in limits(60 << 20, 700 << 20):
        (tmp_path / "large.pyca").write_bytes(b"\x93PYCA\r\n\x1a of before")
        code, said, _ = run(["pull", f"{served.url}/large.pyca", "--allow-unsigned"], tmp_path, limit_bytes=limit)
        assert code in CODES or (limit < RUST_BYTES and RUST.match(said)), (limit, code, said)
        assert "Traceback" not in said and "internal error" not in said, (limit, said)
        is_new = (tmp_path / "large.pyca").read_bytes() == served.files["/large.pyca"]
        assert is_new == (code == 0)
        assert {path.name for path in tmp_path.iterdir()} <= {"large.pyca", ".large.pyca.part"}
        done += is_new
    assert done, "no limit was enough"


@pytest.mark.slow
def test_run_within_little_memory(decoder_artifact, tmp_path: Path):
    """The same tokens, or one line."""
    command = ["run", decoder_artifact, "-p", "a", "-n", "4", "--temperature", "0", "--threads", "1", "--json"]
    whole, expected, _ = run(command, tmp_path)
    assert whole == 0
    tokens = expected.splitlines()[-1].partition('"tokens"')[2].partition("]")[0]
    done = 0
    for limit in limits(60 << 20, 900 << 20):
        code, said, _ = run(command, tmp_path, limit_bytes=limit)
        assert code in CODES or FOREIGN in said, (limit, code, said)
        assert "Traceback" not in said and "internal error" not in said, (limit, said)
        if code == 0:
            done += 1
            assert said.splitlines()[-1].partition('"tokens"')[2].partition("]")[0] == tokens
    assert done, "no limit was enough"
