"""What every worker does: read the job, keep to its CPUs, time, and answer with one line of JSON.

Workers run in the virtual environment of the engine they measure, so this module needs Python alone.
"""

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WARM_UP_STEPS = 4

JsonValue = str | int | float | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
Run = dict[str, int | float]


@dataclass(frozen=True)
class Prompt:
    """`text` encodes to exactly `ids`, for engines that take no ids."""

    ids: list[int]
    text: str


@dataclass(frozen=True)
class Job:
    """`weights` is what the engine loads, `checkpoint` where it finds the rest (configuration, tokenizer).

    Every prompt is run `repeats` times and followed by `decode` tokens. `options` are the engine's own.
    """

    weights: str
    checkpoint: str
    prompts: list[Prompt]
    decode: int
    threads: int
    repeats: int
    options: dict[str, str]

    @property
    def context(self) -> int:
        """Tokens that the longest run needs."""
        return max(len(prompt.ids) for prompt in self.prompts) + self.decode + 1


def read_job() -> Job:
    """The job on standard input. From here on the process has as many CPUs as the job has threads."""
    fields = json.load(sys.stdin)
    fields["prompts"] = [Prompt(**prompt) for prompt in fields["prompts"]]
    job = Job(**fields)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.threads])
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(job.threads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    return job


def measure_steps(
    job: Job, prefill: Callable[[list[int]], object], step: Callable[[int], object], reset: Callable[[], object]
) -> list[Run]:
    """Times an engine that is told every token: `prefill` of a prompt, then `step` for one token after another.

    Both leave the logits of the last token computed and read. The tokens fed are the prompt's own again, so that
    every engine does the same work. One run of each prompt goes before and is not counted.
    """
    for prompt in job.prompts:
        _run(prompt, min(job.decode, WARM_UP_STEPS), prefill, step, reset)
    return [_run(prompt, job.decode, prefill, step, reset) for _ in range(job.repeats) for prompt in job.prompts]


def _run(
    prompt: Prompt,
    decode: int,
    prefill: Callable[[list[int]], object],
    step: Callable[[int], object],
    reset: Callable[[], object],
) -> Run:
    reset()
    ids = prompt.ids
    start = time.perf_counter()
    prefill(ids)
    prefilled = time.perf_counter()
    for index in range(decode):
        step(ids[index % len(ids)])
    return timed_run(len(ids), prefilled - start, decode, time.perf_counter() - prefilled)


def timed_run(prompt_tokens: int, prefill_s: float, decode_tokens: int, decode_s: float) -> Run:
    """One run: a prompt's seconds, and the seconds of the tokens after it."""
    return {
        "context": prompt_tokens,
        "prefill_s": prefill_s,
        "prefill_tok_s": prompt_tokens / prefill_s,
        "decode_tokens": decode_tokens,
        "decode_s": decode_s,
        "decode_tok_s": decode_tokens / decode_s,
    }


def answer(runs: list[Run], load_s: float, packages: Sequence[str], **details: JsonValue) -> None:
    """Print the result: the runs, seconds to load (imports not counted), memory, versions and what else is known."""
    document = {
        "runs": runs,
        "load_s": load_s,
        "peak_rss_bytes": _memory("VmHWM"),
        "rss_bytes": _memory("VmRSS"),
        "versions": {name: importlib.metadata.version(name) for name in packages},
        **details,
    }
    print("\n" + json.dumps(document), flush=True)


def _memory(field: str) -> int:
    """Bytes of a line of /proc/self/status; pages of mapped files count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
