"""Runs compilers and pip, which end when pyc does: when it fails, is interrupted, or is killed.

Each runs in a process group of its own, so that Ctrl-C reaches pyc alone and one signal ends a program with all that
it started. The leader of the group is a shell that waits for the end of a pipe which only pyc holds open: where pyc
dies by SIGKILL, the shell kills the group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

from pyc.runtime.host import unfinished

GUARD = ("/bin/sh", "-c", "read -r line; kill -9 0")
"""Kills its process group, itself among it, at the end of its standard input."""


class Processes:
    """Programs of one build or bundle, for use by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: dict[int, _Group] = {}
        self.stopped = False

    def run(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` in `folder` to its end; returns its exit status and what it wrote.

        Raises KeyboardInterrupt after `stop`, OSError when it cannot be started.
        """
        group = _Group()
        with contextlib.ExitStack() as stack:
            stack.callback(group.close)
            with unfinished.making(), self._lock:
                unfinished.require_going_on()
                self.require_going_on()
                stack.enter_context(unfinished.running(group.kill))
                self._running[id(group)] = group
                stack.callback(self._running.pop, id(group), None)
                process = group.start(command, folder, environment)
            out, err = process.communicate()
        self.require_going_on()
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def require_going_on(self) -> None:
        """Raise KeyboardInterrupt after `stop`."""
        if self.stopped:
            raise KeyboardInterrupt

    def stop(self) -> None:
        """Kill what runs; nothing is started any more."""
        with self._lock:
            self.stopped = True
            for group in list(self._running.values()):
                group.kill()


class _Group:
    """A process group: the guard, where there is a shell, and a program."""

    def __init__(self) -> None:
        self._guard: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[str] | None = None

    def start(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        with contextlib.suppress(OSError):  # no shell: all but SIGKILL is still taken care of
            self._guard = subprocess.Popen(
                GUARD,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                process_group=0,
            )
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            process_group=self._guard.pid if self._guard else 0,
        )
        return self._process

    def kill(self) -> None:
        """Kill all of the group, and wait until its programs are gone."""
        leader = self._guard or self._process
        if leader is None or leader.returncode is not None:
            return
        with contextlib.suppress(OSError):
            os.killpg(leader.pid, signal.SIGKILL)
        for process in (self._process, self._guard):
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=1)

    def close(self) -> None:
        """End what is left of the group, and its guard."""
        if self._process is not None and self._process.returncode is None:
            self.kill()
            self._process.communicate()
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
