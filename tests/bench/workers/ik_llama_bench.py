"""ik_llama.cpp: a GGUF file, weights repacked while loading. Its own llama-bench runs and times it.

It chooses its tokens itself, which changes no speed. `-gp` times the tokens after a prompt and not the prompt; each
repetition computes the prompt again, so long ones are run once.
"""

import json
import re
import resource
import subprocess
from pathlib import Path

from job import Job, Run, answer, read_job, timed_run

job = read_job()


def bench(job: Job, *tests: str, repeats: int, warm_up: bool) -> list[dict]:
    """What llama-bench says of `tests`. Raises RuntimeError when it fails."""
    weights = ("-m", job.weights, "-rtr", "1", "-fa", "1")
    cache = ("-ctk", job.options["cache"], "-ctv", job.options["cache"])
    how = ("-t", str(job.threads), "-r", str(repeats), "-w", str(int(warm_up)), "-o", "json")
    done = subprocess.run(
        (job.options["program"], *weights, *cache, *how, *tests), capture_output=True, text=True, check=False
    )
    found = re.search(r"^\[\n.*^\]", done.stdout, re.DOTALL | re.MULTILINE)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"llama-bench: exit status {done.returncode}: {done.stderr[-500:]}")
    return json.loads(found[0])


def prefill_runs(job: Job, length: int) -> list[Run]:
    """The prompt alone."""
    (test,) = bench(job, "-p", str(length), "-n", "0", repeats=job.repeats, warm_up=True)
    return [timed_run(length, nanoseconds / 1e9, 0, 0.0) for nanoseconds in test["samples_ns"]]


def decode_runs(job: Job, length: int, decode: int, *, is_long: bool) -> list[Run]:
    """The tokens after a prompt of `length`."""
    repeats = 1 if is_long else job.repeats
    tests = bench(job, "-p", "0", "-n", "0", "-gp", f"{length},{decode}", repeats=repeats, warm_up=not is_long)
    return [timed_run(length, None, decode, nanoseconds / 1e9) for nanoseconds in tests[-1]["samples_ns"]]


def version(job: Job) -> str:
    """The commit that llama-bench was built from."""
    (test,) = bench(job, "-p", "1", "-n", "0", repeats=1, warm_up=False)
    return test["build_commit"]


runs: list[Run] = []
for prompt in job.prompts:
    if not prompt.is_long:
        runs += prefill_runs(job, len(prompt.ids))
    if prompt.decode:
        runs += decode_runs(job, len(prompt.ids), prompt.decode, is_long=prompt.is_long)
sizes = json.loads(Path(job.weights).with_suffix(".json").read_text())
# Of the engine, which is another process.
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
answer(
    runs,
    None,
    (),
    rss_bytes=None,
    peak_rss_bytes=peak,
    weights_bytes=sizes["weights_bytes"],
    versions={"ik_llama.cpp": version(job)},
)
