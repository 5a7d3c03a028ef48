"""What a build's jobs take on one and two workers of a Ray cluster of this machine, beside threads.

    python tests/bench/cluster_builds.py --work DIR --out cluster.json

The checkpoint is a random one in the shape of Qwen3-0.6B with fewer layers. Programs come from the cache, results of
jobs never: each run has a cache of its own for them. `weights_s` are the seconds from the first digest to the last
weight in the artifact, which workers of a cluster begin by starting and importing; `steady_s` those from the first to
the last result of a job, or piece of a weight. Workers and the process that builds share the same cores. Memory is the
most that a process has had (VmHWM).
"""

import argparse
import contextlib
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins"))
from peers import commit, say
from random_checkpoint import Shape, write_checkpoint
from ray_clusters import started

from pyc.runtime.host.machine import describe_machine

SHAPE = Shape(vocabulary=65536, layers=12)
RECIPE = """
model: {checkpoint}
quantize: {{scheme: {scheme}}}
shapes: {{context: 512, tokens: [1]}}
targets: [{{backend: cpu, isa: [x86-64-v3]}}]
"""
SCHEMES = ("nvfp4",)  # of which weights take longest: a worker takes as long to start as this machine to round int4

RUN = """
import json, sys, time
from pyc.commands.opening import keep_blas_small
keep_blas_small()
from pyc.passes.driver.build import build
from pyc.passes.jobs import ray_cluster
marks, most, results = {}, {}, []
def progress(event):
    marks.setdefault(event.stage, time.perf_counter())
    marks["last " + event.stage] = time.perf_counter()
    if event.stage == "emit" and not sys.argv[3]:
        results.append(time.perf_counter())
outcome = ray_cluster.RayJobs.outcome
def counted(self, reference, name):
    found = outcome(self, reference, name)
    if not found.digest:
        results.append(time.perf_counter())
    return found
ray_cluster.RayJobs.outcome = counted
close = ray_cluster.RayJobs.__exit__
def closing(self, *given):
    most.update({f"{name} {process}": size for (name, process), size in self._workers.items()})
    close(self, *given)
ray_cluster.RayJobs.__exit__ = closing
recipe, output, jobs, workers = sys.argv[1:]
begun = time.perf_counter()
made = build(recipe, output=output, progress=progress, jobs=jobs or None, workers=int(workers) or None)
print(json.dumps({
    "sha256": made.sha256,
    "until_sources_s": marks["lower"] - begun,
    "steady_s": results[-1] - results[0],
    "weights_s": marks["last emit"] - marks["lower"],
    "rest_s": marks["last done"] - marks["last emit"],
    "builder_bytes": made.peak_rss_bytes,
    "worker_bytes": sorted(most.values()),
}))
"""


MOST_PROGRAM_BYTES = 2 << 20
"""Entries of the build cache that are larger are weights."""


def run(recipe: Path, folder: Path, jobs: str, workers: int) -> dict[str, Any]:
    """Build once, with a cache that has programs and no weights."""
    for name in ("shared", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if (folder / "programs").exists():
        shutil.copytree(folder / "programs", folder / "cache")
    environment = {**os.environ, "PYC_CACHE_DIR": str(folder / "cache"), "PYC_SHARED_CACHE": str(folder / "shared")}
    command = [sys.executable, "-c", RUN, str(recipe), str(folder / "model.pyca"), jobs, str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def keep_programs(folder: Path) -> None:
    """Make the cache of later runs out of that of the first."""
    shutil.rmtree(folder / "programs", ignore_errors=True)
    (folder / "cache").rename(folder / "programs")
    for entry in (folder / "programs" / "entries").glob("*/*"):
        if entry.stat().st_size > MOST_PROGRAM_BYTES:
            entry.unlink()


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    machine, source = describe_machine(), commit()
    checkpoint = options.work / "checkpoint"
    if not (checkpoint / "config.json").exists():
        write_checkpoint(checkpoint, SHAPE)
    size = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    taken: dict[str, dict[str, list[dict[str, Any]]]] = {}
    loads = []
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(contextlib.contextmanager(started)(1))
        two = stack.enter_context(contextlib.contextmanager(started)(1, 1))
        ways = {
            "1 thread": ("", 1), "2 threads": ("", 2), "1 worker": (one.address, 0), "2 workers": (two.address, 0),
        }  # fmt: skip
        for scheme in SCHEMES:
            recipe = options.work / f"{scheme}.yaml"
            recipe.write_text(RECIPE.format(checkpoint=checkpoint, scheme=scheme))
            shutil.rmtree(options.work / "programs", ignore_errors=True)
            first = run(recipe, options.work, "", 2)  # compilers, packers, the page cache
            keep_programs(options.work)
            taken[scheme] = {way: [] for way in ways}
            for index in range(options.rounds):
                for way, (jobs, workers) in ways.items():
                    found = run(recipe, options.work, jobs, workers)
                    assert found["sha256"] == first["sha256"], f"{way}: other bytes"
                    taken[scheme][way].append(found)
                    loads.append(os.getloadavg()[0])
                    say(f"{scheme} {index} {way}: {found['weights_s']:.2f} s, steady {found['steady_s']:.2f} s")
    result = {
        **source,
        "date": datetime.date.today().isoformat(),
        "machine": asdict(machine),
        "load_average": {"least": min(loads), "median": statistics.median(loads), "most": max(loads)},
        "versions": {name: metadata.version(name) for name in ("pyc-compiler", "numpy", "blake3", "ray")},
        "checkpoint_bytes": size,
        "same_bytes": True,
        "rounds": options.rounds,
        "builds": {scheme: {way: summary(runs) for way, runs in found.items()} for scheme, found in taken.items()},
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and every run's seconds."""
    return {
        "weights_s": statistics.median(found["weights_s"] for found in runs),
        "steady_s": statistics.median(found["steady_s"] for found in runs),
        "each_steady_s": [round(found["steady_s"], 3) for found in runs],
        "each_weights_s": [round(found["weights_s"], 3) for found in runs],
        "until_sources_s": statistics.median(found["until_sources_s"] for found in runs),
        "rest_s": statistics.median(found["rest_s"] for found in runs),
        "builder_bytes": max(found["builder_bytes"] for found in runs),
        "worker_bytes": max((max(found["worker_bytes"], default=0) for found in runs), default=0),
    }


if __name__ == "__main__":
    started_s = time.perf_counter()
    main()
    say(f"{time.perf_counter() - started_s:.0f} s")
