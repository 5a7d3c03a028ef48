"""A Ray cluster of this machine for tests: its own token, its own folder, ended by the ids of its processes."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parent
OBJECT_STORE_BYTES = 80 << 20  # the least that Ray takes; nothing of a build lies there

START = """
import sys, warnings
warnings.simplefilter("ignore")
from ray.cluster_utils import Cluster
port, head, others, size = map(int, sys.argv[1:])
given = dict(num_cpus=head, ray_client_server_port=port, include_dashboard=False, object_store_memory=size)
cluster = Cluster(initialize_head=True, head_node_args=given)
for _ in range(others):
    cluster.add_node(num_cpus=1, object_store_memory=size)
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass
class RayCluster:
    """A cluster that runs."""

    address: str
    folder: Path

    def workers(self, *, at_work: bool = False) -> list[int]:
        """The processes that do jobs, or, unless `at_work`, have done one."""
        titles = ("ray::do_job", "ray::hash_file", "ray::IDLE")[: 1 if at_work else 3]
        return [process for process, title in self._processes() if title.startswith(titles)]

    def end(self) -> None:
        """Kill every process of it."""
        for process, _ in self._processes():
            kill(process)

    def _processes(self) -> list[tuple[int, str]]:
        mark = f"RAY_TMPDIR={self.folder}".encode()
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (place / "environ").read_bytes().split(b"\0") and int(place.name) != os.getpid():
                    found.append((int(place.name), (place / "cmdline").read_bytes().decode(errors="replace")))
            except OSError:
                continue
        return found


def kill(process: int) -> None:
    """As a machine loses a process: without a word."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def wait_for(port: int) -> None:
    """Wait until the cluster listens for clients."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
            return
        except OSError:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)


def started(processors: int, nodes: int = 0) -> Iterator[RayCluster]:
    """Yield a cluster whose head has `processors`, and `nodes` more of one each."""
    pytest.importorskip("ray")
    pytest.importorskip("grpc")
    folder = Path(tempfile.mkdtemp(prefix="pyc-ray-", dir="/tmp"))  # names of sockets have 107 bytes at most
    (folder / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    own = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.environ.setdefault("PYC_TEST_RAY_TOKEN", secrets.token_hex(32)),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    search = os.pathsep.join([str(PLUGINS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, **own, "RAY_TMPDIR": str(folder), "PYTHONPATH": search}
    command = [sys.executable, "-c", START, *map(str, (port, processors, nodes, OBJECT_STORE_BYTES))]
    cluster = RayCluster(f"ray://127.0.0.1:{port}", folder)
    with pytest.MonkeyPatch.context() as patch, (folder / "log").open("w") as log:
        for name, value in own.items():
            patch.setenv(name, value)
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.read(6), (folder / "log").read_text()
            wait_for(port)
            yield cluster
        finally:
            cluster.end()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A cluster with two processors; skips where Ray is not installed."""
    yield from started(2)
