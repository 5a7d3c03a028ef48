"""How long pyc takes until something happens: a build, a load, and one token from a cold process.

    python tests/bench/startup.py --work DIR --rounds 5 --out startup.json

Builds the artifact of a checkpoint (a random one in the shape of Qwen3-0.6B, if none is given) with an empty cache and
again with a full one, loads it, and runs `pyc run -n 1`, all in turn and each in a process of its own; files are read
once before, so the page cache is warm. Memory is the most that one process of a build had at once.
"""

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from peer_files import PeerError, Place
from peers import commit, prepare_place, say

from pyc.runtime.host.machine import describe_machine

Document = dict[str, Any]

RECIPE = {"quantize": {"scheme": "int4-g32", "embeddings": "int4-g32"}, "shapes": {"context": 4096}}
DISTRIBUTIONS = ("pyc-compiler", "apache-tvm", "apache-tvm-ffi", "ziglang", "numpy", "tokenizers", "blake3")
GOALS = {
    "build, empty cache": 10.0,
    "build, full cache": 2.0,
    "load": 0.1,
    "first token": 0.5,
}
"""Seconds that the project has set itself, for the shape of Qwen3-0.6B."""

LOAD = """
import json, sys, time
start = time.perf_counter()
import pyc, pyc.runtime.model, tokenizers
imported = time.perf_counter()
model = pyc.load(sys.argv[1])
loaded = time.perf_counter()
print(json.dumps({"imports": imported - start, "load": loaded - imported}))
"""


def main() -> None:
    """Measure and write the results."""
    options = parse_options()
    machine, source = describe_machine(), commit()
    bench = Startup(prepare_place(options), options.isa)
    say("warming up")
    bench.build(is_cold=False)
    bench.load()
    bench.start()
    for number in range(1, options.rounds + 1):
        if number <= options.builds:
            bench.build(is_cold=True)
            bench.build(is_cold=False)
        bench.load()
        bench.start()
        timed = (name for name in bench.seconds if number <= options.builds or not name.startswith("build"))
        say(f"round {number}: " + ", ".join(f"{name} {bench.seconds[name][-1]:.3f}" for name in timed))
    document = {
        **source,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": asdict(machine),
        "versions": {name: metadata.version(name) for name in DISTRIBUTIONS},
        "job": {"rounds": options.rounds, "builds": options.builds, "isa": options.isa, "recipe": RECIPE},
        "artifact_bytes": bench.artifact.stat().st_size,
        "goals_s": GOALS,
        "seconds": {name: spread(values) for name, values in bench.seconds.items()},
        "peak_rss_bytes": {name: spread(values) for name, values in bench.peaks.items()},
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    print(table(document))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="folder of a checkpoint (default: a random Qwen3-0.6B)")
    parser.add_argument("--work", type=Path, required=True, help="folder for everything made on the way")
    parser.add_argument("--rounds", type=int, default=9, help="times that a load and a start are measured")
    parser.add_argument("--builds", type=int, default=3, help="rounds that measure the builds as well")
    parser.add_argument("--isa", help="instruction sets to build for, as in x86-64,x86-64-v3 (default: the recipe's)")
    parser.add_argument("--out", type=Path, required=True, help="where the numbers go")
    options = parser.parse_args()
    if min(options.rounds, options.builds) < 1:
        parser.error("counts are at least 1")
    options.isa = options.isa.split(",") if options.isa else None
    return options


class Startup:
    """The measurements: lists of seconds and of bytes by name, filled by calls."""

    def __init__(self, place: Place, isas: Sequence[str] | None) -> None:
        self.artifact = place.work / "startup.pyca"
        self.seconds: dict[str, list[float]] = {}
        self.peaks: dict[str, list[float]] = {}
        self._place = place
        self._recipe = place.work / "startup.yaml"
        targets = {"targets": [{"arch": describe_machine().arch, "isa": list(isas)}]} if isas else {}
        recipe = {"model": str(place.checkpoint), **RECIPE, **targets, "artifact": {"path": str(self.artifact)}}
        self._recipe.write_text(json.dumps(recipe), "utf-8")  # JSON is YAML
        self._is_warm = False

    def build(self, *, is_cold: bool) -> None:
        """A build with an empty cache, or with what an earlier one left."""
        if is_cold:
            shutil.rmtree(self._place.work / "cache" / "entries", ignore_errors=True)
        name = "build, empty cache" if is_cold else "build, full cache"
        _, ended_s, peak = self._timed("-m", "pyc", "build", str(self._recipe))
        self._note(name, ended_s, peak)

    def load(self) -> None:
        """`pyc.load` alone, in a process that has imported what it needs."""
        output = self._place.run((sys.executable, "-c", LOAD, str(self.artifact)))
        for name, seconds in json.loads(output.splitlines()[-1]).items():
            self._note(name, seconds)

    def start(self) -> None:
        """`pyc run -n 1` from the start of the process to its first byte, and to its end."""
        arguments = ("-m", "pyc", "run", str(self.artifact), "-p", "x", "-n", "1", "--json")
        first_s, ended_s, peak = self._timed(*arguments)
        self._note("first token", first_s, peak)
        self._note("one token, to the end of the process", ended_s)
        self._is_warm = True

    def _note(self, name: str, seconds: float, peak: int | None = None) -> None:
        if not self._is_warm:
            return
        self.seconds.setdefault(name, []).append(seconds)
        if peak is not None:
            self.peaks.setdefault(name, []).append(peak)

    def _timed(self, *arguments: str) -> tuple[float, float, int]:
        """Seconds to the first byte of standard output and to the end of python, and its peak memory in bytes.

        Raises PeerError when it fails.
        """
        start = time.perf_counter()
        process = subprocess.Popen(
            (sys.executable, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._place.environment,
            cwd=self._place.work,
            bufsize=0,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        first_s = time.perf_counter() - start
        said = process.stdout.read() + process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)  # of this process and those that it waited for
        ended_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        process.stderr.close()
        if process.returncode != 0:
            tail = said.decode(errors="replace")[-2000:]
            raise PeerError(self._place.anonymous(f"exit status {process.returncode}\n{tail}", Path(sys.executable)))
        return first_s, ended_s, usage.ru_maxrss * 1024


def spread(values: Sequence[float]) -> Document:
    """Median, least and most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "values": list(values)}


def table(document: Document) -> str:
    """The numbers in markdown."""
    lines = ["| what | seconds | goal | peak memory, MB |", "| --- | --- | --- | --- |"]
    for name, seconds in document["seconds"].items():
        goal = document["goals_s"].get(name)
        peak = document["peak_rss_bytes"].get(name)
        memory = f"{peak['median'] / 1e6:.0f}" if peak else "-"
        shown = f"{seconds['median']:.3f} ({seconds['least']:.3f}-{seconds['most']:.3f})"
        lines.append(f"| {name} | {shown} | {'-' if goal is None else f'{goal:g}'} | {memory} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
