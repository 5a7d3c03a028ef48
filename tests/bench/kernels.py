"""Times single kernels in compiled libraries, the choice of a token, and what a step costs outside kernels.

    python tests/bench/kernels.py --out kernels.json --markdown kernels.md

Kernels are timed at the entry points of artifacts that the pipeline builds (kernel_programs.py), as differences of
two functions or positions, measured in turn:

    RMSNorm      129 of 4096 features less 129 of 16, a norm: what a call costs whatever its size is left out
    product      8 matrices of 4096 x 4096, one after another: 75 MB, so that none is in a cache. Quantizing the
                 activations is in it
    attention    8 layers at position 255 less 8 at position 0, a layer: 240 positions and 33 MB of cache, scaled to 256
    rotation     8 layers at position 0 less their products, a layer: rotating, appending, attending to one position

Outside kernels: steps of the demo model through `Model.generate`, sampled with top-k and top-p and made text, less
the time inside the executor; and, for what the executor itself costs, a compiled function that adds 16 numbers.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from kernel_programs import FEATURES, LAYERS, Program, attention, norms, products, random_weights
from machine_limits import best_isa

import pyc
from pyc.runtime.executors.protocol import Executor, FloatArray, InputArray
from pyc.runtime.generation.request import Request, RequestParams
from pyc.runtime.generation.sampling import Sampler, SamplingParams
from pyc.runtime.generation.scheduler import Scheduler
from pyc.runtime.generation.session import Session
from pyc.runtime.generation.token_stream import Batch
from pyc.runtime.host.machine import describe_machine

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo" / "checkpoint"
VOCABULARY = 151_936
NORMS = 129
STEPS = 200
MICROSECONDS = 1e6


@dataclass(frozen=True)
class Row:
    """One line of the table, in microseconds; `goal` None: shown without one."""

    name: str
    median_us: float
    least_us: float
    most_us: float
    goal_us: float | None

    @property
    def verdict(self) -> str:
        """Whether the median is below the goal."""
        if self.goal_us is None:
            return ""
        return "reached" if self.median_us < self.goal_us else "missed"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="times that everything takes its turn")
    parser.add_argument("--calls", type=int, default=40, help="calls in a turn, of which the median counts")
    parser.add_argument("--threads", type=int, default=describe_machine().cores)
    parser.add_argument("--out", type=Path, help="where the numbers go")
    parser.add_argument("--markdown", type=Path, help="where the table goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pyc-kernels-") as folder:
        rows = [
            *kernel_rows(Path(folder), options.threads, options.rounds, options.calls),
            *sampling_rows(options.rounds, options.calls),
            *step_rows(Path(folder), options.threads, options.rounds),
        ]
    text = table(rows)
    print(text)
    if options.markdown:
        options.markdown.write_text(text, "utf-8")
    if options.out:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        document = {
            "commit": commit.stdout.strip(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": asdict(describe_machine()),
            "isa": best_isa().name,
            "threads": options.threads,
            "rounds": options.rounds,
            "calls": options.calls,
            "rows": [{**asdict(row), "verdict": row.verdict} for row in rows],
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def kernel_rows(folder: Path, threads: int, rounds: int, calls: int) -> list[Row]:
    """RMSNorm, product, attention with a cache of f16, rotation."""
    say("building kernels")
    weights = random_weights(folder)
    wide, narrow = (Program(norms(NORMS, width), folder, threads=threads) for width in (FEATURES, 16))
    product = Program(products(weights), folder, threads=threads)
    attends = Program(attention(weights, attends=True), folder, threads=threads)
    plain = Program(attention(weights, attends=False), folder, threads=threads)
    for position in range(256):
        attends.at(position)
    say("timing kernels")
    times = in_turn(
        {
            "wide": wide.run,
            "narrow": narrow.run,
            "product": product.run,
            "far": lambda: attends.at(255),
            "near": lambda: attends.at(0),
            "plain": plain.run,
        },
        rounds,
        calls,
    )
    norm = (times["wide"] - times["narrow"]) / NORMS
    reached = (times["far"] - times["near"]) / LAYERS * (256 / 240)
    rotated = (times["near"] - times["plain"]) / LAYERS
    return [
        row("RMSNorm of 4096", norm, 0.62),
        row("the same with what calling it costs", times["wide"] / NORMS, None),
        row("product of a vector and 4096 x 4096, int4-g32", times["product"] / LAYERS, 500),
        row("attention over 256 positions, 32 heads of 128, f16", reached, 840),
        row("rotation and append, 32 heads of 128", rotated, 100),
    ]


def sampling_rows(rounds: int, calls: int) -> list[Row]:
    """The choice of one token out of 151,936."""
    say("timing sampling")
    random = np.random.default_rng(0)
    spread_out = random.standard_normal(VOCABULARY).astype(np.float32)
    cases = {
        "temperature, top-k 50, top-p 0.9": (3 * spread_out, {"top_k": 50, "top_p": 0.9}),
        "top-p 0.9, logits spread by 3": (3 * spread_out, {"top_p": 0.9}),
        "top-p 0.9, logits spread by 1": (spread_out, {"top_p": 0.9}),
        "top-p 0.9, nearly flat": (np.float32(0.1) * spread_out, {"top_p": 0.9}),
        "top-p 0.9, flat": (np.zeros(VOCABULARY, dtype=np.float32), {"top_p": 0.9}),
        "min-p 0.05": (3 * spread_out, {"min_p": 0.05}),
        "greedy": (3 * spread_out, {"temperature": 0.0}),
    }
    work = {
        name: sampling_of(logits, SamplingParams(seed=0, **{"temperature": 0.8, **parameters}))
        for name, (logits, parameters) in cases.items()
    }
    return [row(f"sampling: {name}", times, 500) for name, times in in_turn(work, rounds, calls).items()]


def sampling_of(logits: FloatArray, parameters: SamplingParams) -> Callable[[], object]:
    """A call that chooses a token."""
    sampler = Sampler(parameters, VOCABULARY)
    return lambda: sampler.sample(logits)


class TimedExecutor:
    """An executor that adds up the seconds inside `run`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.isa, self.threads, self.inside_s = executor.isa, executor.threads, 0.0

    def functions(self, name: str) -> tuple[int, ...]:
        """The executor's."""
        return self._executor.functions(name)

    def run(self, name: str, bucket: int, inputs: Mapping[str, InputArray]) -> FloatArray:
        """The executor's, timed."""
        start = time.perf_counter()
        result = self._executor.run(name, bucket, inputs)
        self.inside_s += time.perf_counter() - start
        return result


def step_rows(folder: Path, threads: int, rounds: int) -> list[Row]:
    """What a step costs outside the executor, and what calling a compiled function costs inside it."""
    say("building the demo model")
    isa = best_isa()
    recipe = {
        "model": str(DEMO),
        "quantize": {"scheme": "int8"},
        "shapes": {"context": 512},
        "targets": [{"arch": isa.arch, "isa": [isa.name]}],
    }
    pyc.build(recipe, output=folder / "demo.pyca")
    smallest = Program(norms(1, 16), folder, threads=threads)
    calling = in_turn({"call": smallest.run}, rounds, STEPS)["call"]
    say("timing steps")
    steps, kernels = [], []
    with pyc.load(folder / "demo.pyca", threads=threads) as model:
        executor = TimedExecutor(model.executor)
        assert model.info.kv_cache is not None
        session = Session(executor, model.info, kv_blocks=-(-512 // model.info.kv_cache.block_tokens))
        sampling = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=0)
        params = RequestParams(sampling, STEPS, ("\0never",), frozenset(), reuse_prefix=False)
        scheduler, prompt = Scheduler(session), model.prompt_ids("import os\n")
        sizes = {"context": session.context, "vocab_size": session.vocab_size}
        for _ in range(rounds):
            request = Request(prompt, params, model.tokenizer, continues_text=True, **sizes)
            tokens = Batch(scheduler, [request])[0]
            next(tokens)
            executor.inside_s = 0.0
            start = time.perf_counter()
            count = sum(1 for _ in tokens)
            steps.append((time.perf_counter() - start) / count)
            kernels.append(executor.inside_s / count)
    outside = np.array(steps) - np.array(kernels) + 2 * statistics.median(calling)
    return [
        row("a step outside kernels: dispatch of two calls, session, sampling of 4096, text", outside, 500),
        row("of that, dispatch: a compiled function of 16 numbers, twice", 2 * calling, None),
        row("a step of the demo model in all", np.array(steps), None),
    ]


def in_turn(work: Mapping[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, np.ndarray]:
    """Seconds of one call of each, a number a round: the median of so many calls, after a few that are not counted."""
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, call in work.items():
            times = []
            for _ in range(calls + 3):
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            found[name].append(statistics.median(times[3:]))
    return {name: np.array(times) for name, times in found.items()}


def row(name: str, times: Sequence[float] | np.ndarray, goal_us: float | None) -> Row:
    """A row out of seconds, one a round."""
    values = np.asarray(times) * MICROSECONDS
    return Row(name, float(np.median(values)), float(values.min()), float(values.max()), goal_us)


def table(rows: Sequence[Row]) -> str:
    """The rows as markdown."""
    lines = ["| what | microseconds | goal | |", "| --- | --- | --- | --- |"]
    for line in rows:
        goal = "" if line.goal_us is None else f"{line.goal_us:g}"
        spread = f"{shown(line.median_us)} ({shown(line.least_us)}-{shown(line.most_us)})"
        lines.append(f"| {line.name} | {spread} | {goal} | {line.verdict} |")
    return "\n".join(lines) + "\n"


def shown(value: float) -> str:
    """Three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
