"""Runs a command once for each fault of a system call, each time in a fork and in a fresh copy of a folder.

A program of its own, with `system_faults.c` preloaded. Reads one JSON line a command on standard input:

    {"before": FOLDER, "work": FOLDER, "arguments": [...], "environment": {...},
     "faults": [[kinds, fault, errno, lasts, at], ...]}

and answers one JSON line for each fault: exit code, what was said, how many calls were counted, which one struck, what
each file holds, and the same of the run without a fault after it. A fault with `at` 0 strikes nothing: the run that the
others are compared with. `arguments` are pyc's, or `["call", MODULE, FUNCTION]` of a module in tests/plugins.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

WAIT_S = 60.0
HEAVY = ("tvm", "torch", "transformers", "onnxruntime")
"""Not imported before the forks: they begin threads."""
_faults = ctypes.CDLL(None)


def state(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file by its name; "folder" for one without files."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in files:
            path = Path(place) / name
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
        if not folders and not files and place != str(folder):
            found[str(Path(place).relative_to(folder))] = "folder"
    return found


def run(job: dict[str, object], fault: list[int] | None) -> dict[str, object]:
    """Run the command in a fork."""
    work = Path(str(job["work"]))
    reading, writing = os.pipe()
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = 71
        try:
            os.environ.update(job["environment"])  # type: ignore[arg-type]
            said = os.open(work.parent / "said", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.chdir(work)
            code = execute([str(argument) for argument in job["arguments"]], str(work), fault)  # type: ignore[union-attr]
            sys.stdout.flush()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        finally:
            _faults.faults_disarm()
            names = [name for name in sys.modules if not name.startswith(HEAVY)]
            counted = _faults.faults_counted()
            _faults.faults_struck.restype = ctypes.c_char_p
            with os.fdopen(writing, "w") as file:
                json.dump({"counted": counted, "struck": _faults.faults_struck().decode(), "modules": names}, file)
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() - begin > WAIT_S:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ended = (child, 99 << 8)
            break
        time.sleep(0.001)
    result = json.loads(text) if text else {"counted": 0, "struck": "", "modules": []}
    result["code"] = os.waitstatus_to_exitcode(ended[1])
    result["said"] = (work.parent / "said").read_text("utf-8", "replace")[-2000:]
    result["state"] = state(work)
    return result


def execute(arguments: list[str], work: str, fault: list[int] | None) -> int:
    """The command, with its fault."""
    if arguments[0] == "call":
        function = getattr(importlib.import_module(arguments[1]), arguments[2])
        command = function
    else:
        from pyc import cli

        def command() -> int:
            return cli.main(arguments)

    if fault is not None:
        kinds, what, error, lasts, at = fault
        _faults.faults_arm.argtypes = [ctypes.c_char_p, *[ctypes.c_int] * 3, ctypes.c_long, ctypes.c_int]
        _faults.faults_arm(work.encode(), kinds, what, error, at, lasts)
    return int(command() or 0)


def fresh(job: dict[str, object]) -> None:
    shutil.rmtree(str(job["work"]), ignore_errors=True)
    shutil.copytree(str(job["before"]), str(job["work"]), symlinks=True)


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        for fault in job["faults"]:
            fresh(job)
            result = run(job, fault)
            for name in result.pop("modules"):  # type: ignore[attr-defined]
                if name not in sys.modules and name != "__main__":
                    with contextlib.suppress(ImportError):
                        importlib.import_module(name)
            after = run(job, None)
            after.pop("modules")
            print(json.dumps({**result, "fault": fault, "after": after}), flush=True)
        print("done", flush=True)


if __name__ == "__main__":
    main()
