"""pyc: milliseconds of a token and memory at rising contexts, in one process. The job is a line of JSON on standard
input: weights, threads, contexts (ascending), steps, repeats; the answer is one on standard output.

A second sequence stays at the shortest context, and decodes in turn with the one that grows: what a token costs more
behind a context is the difference of neighbours, whatever becomes of the machine's speed from one context to the next.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path

job = json.load(sys.stdin)
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job["threads"]])

from pyc_session import FillingSession  # noqa: E402  the CPUs are chosen before an engine starts its threads

import pyc  # noqa: E402
from pyc.runtime.generation.kv_blocks import blocks_for  # noqa: E402

PIECE = 512


def rss_bytes() -> int:
    """Resident memory; pages of mapped files count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


model = pyc.load(job["weights"], threads=job["threads"], context=max(job["contexts"]) + job["steps"])
filling = FillingSession(model, max(job["contexts"]) + job["steps"])
session = filling.session
slot, shortest = session.acquire(), session.acquire()
vocabulary = model.info.vocab_size


def step_ms(token: int, of: int) -> float:
    """One token of a slot, logits read."""
    start = time.perf_counter()
    int(session.logits(session.step((token,), (of,)))[0].argmax())
    return 1e3 * (time.perf_counter() - start)


def steps_ms(of: int) -> list[float]:
    """The job's steps, of which the first is not counted; the slot is then as it was."""
    length = session.length(of)
    step_ms(1, of)
    found = [step_ms(index % vocabulary, of) for index in range(job["steps"] - 1)]
    session.rewind(session.length(of) - length, of)
    return found


filling.fill([index % vocabulary for index in range(job["contexts"][0])], shortest)
rows = []
for context in job["contexts"]:
    done = session.length(slot) // PIECE * PIECE  # a piece begins at the border of a block
    session.rewind(session.length(slot) - done, slot)
    if context > done:
        filling.fill([index % vocabulary for index in range(done, context)], slot)
    times: list[float] = []
    beside: list[float] = []
    for _ in range(job["repeats"]):
        times += steps_ms(slot)
        beside += steps_ms(shortest)
    blocks = blocks_for(context, model.info.kv_cache.block_tokens)
    spread = {"token_ms": statistics.median(times), "least_ms": min(times), "most_ms": max(times)}
    more = {"attention_ms": statistics.median(times) - statistics.median(beside)}
    rows.append({"context": context, **spread, **more, "blocks": blocks, "rss_bytes": rss_bytes()})
    print(f"  {context}: {statistics.median(times):.2f} ms", file=sys.stderr, flush=True)
print("\n" + json.dumps({"isa": model.executor.isa, "rows": rows}))
