"""Measures programs of model shapes on this machine's GPU, with random weights, and what the GPU can do at most.

    python tests/gpu/bench.py [--work build/gpu] [--out results.json] [--repeat 50] [--without-baselines]

`step_ms` is what a caller of `generate` waits for, of a step or of a prompt until its first token: inputs up, the graph
with the head and the choice of the likeliest token, and tokens down. `graph_ms` is the graph alone, `launches_ms` the
same launches without one. `first_token_s` is from the start of a process of its own until the first token of a prompt
is on the host, behind weights that are made there in place of a file's. `bandwidth_share` is what a step has to read of
weights and cache, over the time of its graph, over the bandwidth that copies on the device reach here. Artifacts of
long contexts are measured behind `LONG_DEPTH` positions, too, with prompts that continue there.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from pathlib import Path

import numpy as np

from pyc.backends.random_weights import random_weights
from pyc.runtime.artifact.reader import Artifact, open_artifact
from pyc.runtime.artifact.trust.decision import require_trusted
from pyc.runtime.artifact.trust.policy import trust_of
from pyc.runtime.executors.cuda.device import Device
from pyc.runtime.executors.cuda.executor import CudaExecutor
from pyc.runtime.executors.cuda.kv_cache import block_bytes
from pyc.runtime.executors.protocol import ExecutorOptions, RowSampling
from pyc.runtime.host.rounding import ceil_div

DEPTH = 512
"""Positions in the cache before a step."""
LONG_DEPTH = 30720
"""The same of an artifact whose context has room for it and a prompt."""
COPY_BYTES = 1 << 30
FEWEST, LONGEST_MS = 10, 2000.0
"""Runs of a function, of which more are timed only as long as they take no longer together."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all artifacts of the folder."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/gpu"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--without-baselines", action="store_true")
    parser.add_argument("--first-token", type=Path, metavar="ARTIFACT", help="of this one alone")
    given = parser.parse_args(arguments)
    manifest = json.loads((given.work / "manifest.json").read_text())
    if given.first_token:
        measured(given.first_token, manifest["key"]).first_token()
        print("the first token is here", flush=True)
        return
    report: dict[str, object] = {"commit": manifest["commit"], "models": {}}
    bandwidth = 0.0
    for path in sorted(given.work.glob("[0-9]*-*.pyca")):
        started = time.perf_counter()
        program = measured(path, manifest["key"])
        if not bandwidth:
            bandwidth = copy_bandwidth(program.device, COPY_BYTES)
            report |= {"device": program.device.name, "copy_gb_s": bandwidth / 1e9}
        load_s = time.perf_counter() - started
        report["models"][path.stem] = {"load_s": load_s, **program.measure(given.repeat, bandwidth)}
        del program
        report["models"][path.stem]["first_token_s"] = until_the_first_token(given.work, path)
        print(f"{path.stem}: {json.dumps(report['models'][path.stem])}", file=sys.stderr, flush=True)
        write_report(report, given.out)
    if not given.without_baselines:
        report["baselines"] = baselines()
    print(json.dumps(report, indent=2))
    write_report(report, given.out)


def write_report(report: dict[str, object], target: Path | None) -> None:
    """Write what was measured until now: the time on such a machine may end before the last model."""
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(report, indent=2))


def measured(path: Path, key: str) -> "Measured":
    """A program with random weights, of an artifact that `key` has signed."""
    with open_artifact(path) as artifact:
        require_trusted(artifact, trust_of(key))
        return Measured(artifact)


def until_the_first_token(work: Path, path: Path) -> float:
    """Seconds from the start of a process until it says that the first token of a prompt is there."""
    started = time.perf_counter()
    command = [sys.executable, __file__, "--work", str(work), "--first-token", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        taken = time.perf_counter() - started
    if process.returncode or not line:
        raise SystemExit(f"{path}: a process for the first token ended with {process.returncode}")
    return taken


class Measured:
    """A program with random weights, and the inputs of its functions."""

    def __init__(self, artifact: Artifact) -> None:
        """Load it, with a cache for as many sequences as it takes at a time, behind the deepest place of each."""
        info = artifact.header.model
        self.info = info
        self.depths = [DEPTH, LONG_DEPTH] if info.context > LONG_DEPTH + 2048 - 1 else [min(DEPTH, info.context - 1)]
        self._blocks = ceil_div(info.context, info.kv_cache.block_tokens)
        self._each = ceil_div(self.depths[-1] + 1, info.kv_cache.block_tokens)
        kv_blocks = max(info.max_sequences * self._each, self._blocks)
        options = ExecutorOptions(kv_blocks=kv_blocks, random_weights=random_weights(artifact))
        self.executor = CudaExecutor(artifact, options)
        self.device = self.executor._device
        self._position_bytes = info.kv_cache.layers * block_bytes(info.kv_cache) // info.kv_cache.block_tokens
        sizes = {tensor.name: prod(tensor.shape) * ITEM_BYTES[tensor.dtype] for tensor in artifact.header.tensors}
        self._read = {
            (function.name, function.tokens): sum(sizes[name] for name in function.weights)
            for program in artifact.header.programs
            if program.isa == self.executor.isa
            for function in program.functions
        }
        self._table_bytes = max(size for name, size in sizes.items())

    def measure(self, repeat: int, bandwidth: float) -> dict[str, object]:
        """Return times of each bucket: of steps behind each depth, and of prompts."""
        found: dict[str, object] = {}
        for depth in self.depths:
            where = f"_behind_{depth}" if depth > DEPTH else ""
            for rows in self.executor.sampler.buckets("forward"):
                times = self._time("forward", rows, rows, repeat, depth)
                # Of the embedding table a step reads a row a token; the head reads a table of that size once.
                read = self._read["forward", rows] + self._read["logits", rows] - self._table_bytes
                cached = rows * depth * self._position_bytes
                times |= {"tokens_s": rows / times["step_ms"] * 1e3, "weight_bytes": read, "cache_bytes": cached}
                times["bandwidth_share"] = (read + cached) / times["graph_ms"] * 1e3 / bandwidth
                found[f"decode_{rows}{where}"] = times
            for rows in self.executor.functions("prompt"):
                if rows > self.info.max_sequences:
                    times = self._time("prompt", rows, 1, repeat, depth if where else 0)
                    found[f"prompt_{rows}{where}"] = {**times, "tokens_s": rows / times["step_ms"] * 1e3}
        return found

    def first_token(self) -> None:
        """Choose the first token behind the longest prompt that a bucket takes."""
        rows = max(self.executor.functions("prompt"))
        self.executor.sampler.run("prompt", rows, self.inputs("prompt", rows, 0), likeliest(1))

    def _time(self, name: str, rows: int, count: int, repeat: int, depth: int) -> dict[str, float]:
        """Milliseconds until the next tokens of `count` sequences are here, and of the graph and its launches alone."""
        sampler, inputs = self.executor.sampler, self.inputs(name, rows, depth)
        chosen = likeliest(count)
        step = timed(lambda: sampler.run(name, rows, inputs, chosen), repeat)
        bound = sampler._graph(name, rows, True)
        graph = timed(lambda: (bound.run(), self.device.wait()), repeat)
        plain = timed(lambda: (bound.run_plainly(), self.device.wait()), max(repeat // 5, 3))
        return {
            "step_ms": float(np.median(step)),
            "step_p99_ms": float(np.percentile(step, 99)),
            "graph_ms": float(np.median(graph)),
            "launches_ms": float(np.median(plain)),
        }

    def inputs(self, name: str, rows: int, depth: int | None = None) -> dict[str, np.ndarray]:
        """What a function is given: of "forward" a prompt where there are more rows than sequences, else steps; of
        steps and of prompts behind `depth` positions (None: `DEPTH` and none)."""
        if name == "logits":
            return {"hidden": np.random.default_rng(0).standard_normal((rows, self.info.hidden_size), np.float32)}
        if name == "prompt":
            return {**self._prompt(rows, depth or 0), "row": np.array([rows - 1], np.int32)}
        if rows > self.info.max_sequences:
            return self._prompt(rows, depth or 0)
        return self._steps(rows, self.depths[0] if depth is None else depth)

    def _steps(self, rows: int, depth: int) -> dict[str, np.ndarray]:
        """A step of as many sequences, each behind `depth` positions."""
        table = np.zeros((self.info.max_sequences, self._blocks), np.int32)
        for sequence in range(self.info.max_sequences):
            table[sequence, : self._each] = sequence * self._each + np.arange(self._each)
        sequences = np.arange(rows, dtype=np.int32) % self.info.max_sequences
        return self._inputs(np.full(rows, depth, np.int32), sequences, table)

    def _prompt(self, rows: int, depth: int) -> dict[str, np.ndarray]:
        """A prompt of one sequence, behind `depth` positions."""
        table = np.zeros((self.info.max_sequences, self._blocks), np.int32)
        table[0] = np.arange(self._blocks)
        return self._inputs(depth + np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32), table)

    def _inputs(self, positions: np.ndarray, sequences: np.ndarray, table: np.ndarray) -> dict[str, np.ndarray]:
        ids = np.random.default_rng(0).integers(0, self.info.vocab_size, len(positions)).astype(np.int32)
        return {"token_ids": ids, "positions": positions, "sequences": sequences, "block_table": table}


LONG_BASELINE = ("8b", "compile", f"--depth={LONG_DEPTH}")


def likeliest(count: int) -> list[RowSampling]:
    """The choice of the likeliest token, for as many rows."""
    return [RowSampling(row, 0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, None) for row in range(count)]


ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "u8": 1, "i8": 1}


def timed(work: Callable[[], object], repeat: int) -> list[float]:
    """Milliseconds of each run, after three that do not count; of those that take long fewer than `repeat`."""
    for _ in range(3):
        work()
    times: list[float] = []
    while len(times) < repeat and (len(times) < FEWEST or sum(times) < LONGEST_MS):
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def copy_bandwidth(device: Device, size_bytes: int) -> float:
    """Bytes a second that copies on the device read and write together."""
    source, target = (device.allocate(size_bytes, "the copy") for _ in range(2))
    device.clear(source, size_bytes)

    def copy() -> None:
        device.copy(source, target, size_bytes)
        device.wait()

    return 2 * size_bytes / min(timed(copy, 10)) * 1e3


def baselines() -> dict[str, object]:
    """What torch and transformers reach here, each in a process of its own; its error's last line where one fails."""
    found: dict[str, object] = {}
    for shape, way, *more in (("product", "eager"), *product(("1b", "8b"), ("eager", "compile")), LONG_BASELINE):
        command = [sys.executable, str(Path(__file__).with_name("baseline.py")), shape, way, *more]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        except subprocess.TimeoutExpired:
            found["-".join((shape, way, *more))] = "took more than 150 s"
            continue
        lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
        found["-".join((shape, way, *more))] = json.loads(lines[-1]) if done.returncode == 0 else lines[-1:]
    return found


if __name__ == "__main__":
    main()
