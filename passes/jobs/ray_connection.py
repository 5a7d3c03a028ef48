"""The connection to a Ray cluster, by its client protocol: what pyc calls of Ray, and what its errors mean.

Ray's own retries are those of a worker that has ended: the job is given to another, TRIES times in all. Errors of a
job come back as its answer and are not tried again.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from pyc.passes.jobs.assignment import Assignment, Site
from pyc.passes.jobs.ray_worker import do_job, hash_file
from pyc.runtime.errors import ClusterError
from pyc.runtime.host.extras import naming_missing_extras

TRIES = 4
"""Workers that may end at one job before the build does."""
CONNECTIONS = 2
CONNECT_S = 10.0
"""How long the cluster may take to accept a connection."""


class RayConnection:
    """A connection, closed until `open`. Methods raise ClusterError when the cluster is gone."""

    def __init__(self, address: str) -> None:
        """`address` is ray://HOST:PORT. Raises MissingExtraError where Ray, or its client, is not installed."""
        with naming_missing_extras():
            import ray
        with naming_missing_extras():
            import grpc  # noqa: F401  # Ray does without, until it is asked for a connection
        self._ray: Any = ray
        self._address = address
        self._is_open = False
        self._do_job: Any = None
        self._hash_file: Any = None

    def open(self) -> None:
        """Connect. Raises ClusterError."""
        if self._ray.is_initialized():
            raise ClusterError("jobs: this process is connected to a Ray cluster already; call ray.shutdown() before")
        self._require_listener()
        with _own_signals(), self._explained():
            self._connect()
            self._is_open = True
            options = {"num_cpus": 1, "max_retries": TRIES - 1, "scheduling_strategy": "SPREAD"}
            self._do_job = self._ray.remote(**options)(do_job)
            self._hash_file = self._ray.remote(**options)(hash_file)
        if not self.processors():
            self.require_processors(0)

    def _connect(self) -> None:
        """Connect, and once more if the cluster takes too long to start a server for this client: it may be busy."""
        for tries in range(CONNECTIONS):
            try:
                self._ray.init(self._address, log_to_driver=False, logging_level=logging.CRITICAL)
                return
            except (ConnectionError, RuntimeError):
                if tries == CONNECTIONS - 1:
                    raise
                self._ray.shutdown()

    def _require_listener(self) -> None:
        """Raise ClusterError where nothing listens: Ray would try for half a minute."""
        host, _, port = self._address.partition("://")[2].rpartition(":")
        if not host or not port.isdecimal():
            raise ClusterError(f"jobs: got {self._address}, expected ray://HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise ClusterError(
                f"jobs: no Ray cluster at {self._address}: {getattr(error, 'strerror', None) or error}; start one "
                "(`ray start --head` listens for clients on port 10001), or say where it is: --jobs ray://HOST:PORT"
            ) from error

    def close(self) -> None:
        """Disconnect; safe to call again. What is under way is cancelled by that."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._ray.shutdown()

    def processors(self) -> int:
        """Return how many processors the cluster has now."""
        with self._explained():
            return int(self._ray.cluster_resources().get("CPU", 0))

    def require_processors(self, waited_s: float) -> None:
        """Raise ClusterError when the cluster has no processor left."""
        if not self.processors():
            after = f" for {waited_s:.0f} s" if waited_s else ""
            raise ClusterError(
                f"jobs: the cluster at {self._address} has had no worker{after}: all were lost, or none was started; "
                "start some (`ray start --address=...`) and build again: what is done is in the cache"
            )

    def do_job(self, assignment: Assignment, shared: Any) -> Any:
        """Have a job done; returns what stands for its answer."""
        with self._explained():
            return self._do_job.remote(assignment, shared)

    def hash_file(self, site: Site, path: str) -> Any:
        """Have a file hashed; returns what stands for the answer."""
        with self._explained():
            return self._hash_file.remote(site, path)

    def share(self, value: object) -> Any:
        """Send a value to the cluster; returns what stands for it among a job's arguments."""
        with self._explained():
            return self._ray.put(value)

    def finished(self, references: Sequence[Any], timeout_s: float) -> list[Any]:
        """Return those of `references` that have an answer; when none has, wait for one."""
        with self._explained():
            found, _ = self._ray.wait(list(references), num_returns=len(references), timeout=0)
            if not found and timeout_s:
                found, _ = self._ray.wait(list(references), num_returns=1, timeout=timeout_s)
        return list(found)

    def answer(self, reference: Any, name: str) -> bytes:
        """Wait for an answer and return it; `name` is the weight or file that it is about."""
        with self._explained(name):
            answer = self._ray.get(reference)
        assert isinstance(answer, bytes)
        return answer

    @contextlib.contextmanager
    def _explained(self, name: str = "jobs") -> Iterator[None]:
        """Raise ClusterError in the place of Ray's errors."""
        exceptions = self._ray.exceptions
        try:
            yield
        except (exceptions.WorkerCrashedError, exceptions.OutOfMemoryError) as error:
            raise ClusterError(
                f"{name}: {TRIES} workers ended at this job, one after another: killed, or out of memory? "
                "The cluster's logs know; what is done is in the cache"
            ) from error
        except exceptions.RayTaskError as error:
            raise ClusterError(f"{name}: a worker failed: {_last_line(error)}") from error
        except (exceptions.RayError, ConnectionError, RuntimeError, ValueError, AssertionError) as error:
            raise ClusterError(
                f"jobs: no Ray cluster at {self._address}, or it was lost: {_last_line(error)}; "
                "what is done is in the cache"
            ) from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of this process, which Ray replaces when it connects."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
