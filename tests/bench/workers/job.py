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
LONG_CONTEXT = 2048

JsonValue = str | int | float | None | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
Run = dict[str, int | float | None]
Feed = Callable[[list[int]], object]


@dataclass(frozen=True)
class Prompt:
    """`text` encodes to exactly `ids`, for engines that take no ids. `decode` tokens follow, 0 for none."""

    ids: list[int]
    text: str
    decode: int

    @property
    def is_long(self) -> bool:
        """Whether it takes minutes to run: no run goes before, and its cache may be filled otherwise."""
        return self.decode > 0 and len(self.ids) > LONG_CONTEXT


@dataclass(frozen=True)
class Job:
    """`weights` is what the engine loads, `checkpoint` where it finds the rest (configuration, tokenizer).

    Every prompt is run `repeats` times. `options` are the engine's own; `states` is a folder of this checkpoint for
    what takes long to compute. `batches` are numbers of sequences that an engine that can decodes at once.
    """

    weights: str
    checkpoint: str
    prompts: list[Prompt]
    threads: int
    repeats: int
    options: dict[str, str]
    states: str
    batches: list[int]

    @property
    def context(self) -> int:
        """Tokens that the longest run needs."""
        return max(len(p.ids) + (self.repeats if p.is_long else 1) * p.decode + WARM_UP_STEPS for p in self.prompts) + 1


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
    job: Job, prefill: Feed, step: Callable[[int], object], reset: Callable[[], object], fill: Feed | None = None
) -> list[Run]:
    """Times an engine that is told every token: `prefill` of a prompt, then `step` for one token after another.

    Both leave the logits of the last token computed and read. The tokens fed are the prompt's own again, so that
    every engine does the same work. One run of each prompt goes before and is not counted: it touches the cache's and
    the activations' memory for the first time. Long contexts are fed once, by `fill` where there is one, and then
    decoded from `repeats` times.
    """
    runs: list[Run] = []
    short = [prompt for prompt in job.prompts if not prompt.is_long]
    for prompt in short:
        _run(prompt, min(prompt.decode, WARM_UP_STEPS), prefill, step, reset)
    runs += [_run(prompt, prompt.decode, prefill, step, reset) for _ in range(job.repeats) for prompt in short]
    for prompt in job.prompts:
        if prompt.is_long:
            runs += _run_long(prompt, job.repeats, prefill, step, reset, fill)
    return runs


def _run(prompt: Prompt, decode: int, prefill: Feed, step: Callable[[int], object], reset: Callable[[], object]) -> Run:
    reset()
    start = time.perf_counter()
    prefill(prompt.ids)
    prefill_s = time.perf_counter() - start
    return timed_run(len(prompt.ids), prefill_s, decode, _decode_s(prompt, decode, step))


def _run_long(
    prompt: Prompt,
    repeats: int,
    prefill: Feed,
    step: Callable[[int], object],
    reset: Callable[[], object],
    fill: Feed | None,
) -> list[Run]:
    reset()
    start = time.perf_counter()
    (fill or prefill)(prompt.ids)
    prefill_s = None if fill else time.perf_counter() - start
    _decode_s(prompt, WARM_UP_STEPS, step)
    return [
        timed_run(len(prompt.ids), prefill_s, prompt.decode, _decode_s(prompt, prompt.decode, step))
        for _ in range(repeats)
    ]


def _decode_s(prompt: Prompt, decode: int, step: Callable[[int], object]) -> float:
    start = time.perf_counter()
    for index in range(decode):
        step(prompt.ids[index % len(prompt.ids)])
    return time.perf_counter() - start


def timed_run(prompt_tokens: int, prefill_s: float | None, decode_tokens: int, decode_s: float) -> Run:
    """One run: a prompt's seconds, None where it was not computed, and the seconds of the tokens after it."""
    return {
        "context": prompt_tokens,
        "prefill_s": prefill_s,
        "prefill_tok_s": None if prefill_s is None else prompt_tokens / prefill_s,
        "decode_tokens": decode_tokens,
        "decode_s": decode_s if decode_tokens else None,
        "decode_tok_s": decode_tokens / decode_s if decode_tokens else None,
    }


def answer(runs: list[Run], load_s: float | None, packages: Sequence[str], **details: JsonValue) -> None:
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
