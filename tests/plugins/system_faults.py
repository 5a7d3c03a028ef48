"""Faults of system calls, and what a command does with each: `FaultRunner` drives `fault_runner.py`."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITING, CHANGING, REMOVING, READING, OPENING = 1, 2, 4, 8, 16
ERROR, SHORT, KILL = 1, 2, 3
SOURCE = Path(__file__).with_name("system_faults.c")


@dataclass(frozen=True)
class Kind:
    """A way to fail: which calls, how, and whether all later ones fail too."""

    name: str
    calls: int
    fault: int
    error: int = 0
    lasts: bool = False


KINDS = (
    Kind("no space", WRITING | CHANGING, ERROR, errno.ENOSPC, lasts=True),
    Kind("write error", WRITING | CHANGING | REMOVING, ERROR, errno.EIO),
    Kind("short write", WRITING, SHORT),
    Kind("kill", WRITING | CHANGING | REMOVING, KILL),
    Kind("read error", READING | OPENING, ERROR, errno.EIO),
    Kind("short read", READING, SHORT),
)


def library() -> Path:
    """The compiled `system_faults.c`, made once."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"pyc-test-faults-{os.geteuid()}-{digest}.so"
    if not path.exists() or path.lstat().st_uid != os.geteuid():  # others may know the name, and it is loaded
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", "-o", made, SOURCE, "-ldl"]
            subprocess.run(command, check=True, capture_output=True)
            made.replace(path)
    return path


class FaultRunner:
    """One process that runs commands in forks."""

    def __init__(self) -> None:
        folders = os.pathsep.join([str(SOURCE.parent)])
        self._process = subprocess.Popen(
            [sys.executable, SOURCE.with_name("fault_runner.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_PRELOAD": str(library()), "PYTHONPATH": folders, "OPENBLAS_NUM_THREADS": "1"},
        )

    def run(
        self,
        before: Path,
        work: Path,
        arguments: Sequence[object],
        environment: dict[str, str],
        faults: list[list[int]],
    ) -> list[dict[str, Any]]:
        """Return the outcome of each fault [calls, fault, errno, lasts, at]."""
        assert self._process.stdin is not None and self._process.stdout is not None
        job = {
            "before": str(before),
            "work": str(work),
            "arguments": [str(argument) for argument in arguments],
            "environment": environment,
            "faults": faults,
        }
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        found = []
        while (line := self._process.stdout.readline()) != "done\n":
            assert line, "the runner has ended"
            found.append(json.loads(line))
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)
