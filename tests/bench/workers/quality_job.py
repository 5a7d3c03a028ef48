"""What every worker that scores a text does: read the job and answer with JSON.

The job is one JSON document on standard input. `windows` is an .npy file of token ids int32 [windows, n], each a text
of its own. An engine that gives logits writes those of the second half of each window to `logits`, f32
[windows, n - 1 - n // 2, vocabulary]; one that compares them itself reads `reference`, the log-probabilities of
transformers in the file format of llama.cpp's perplexity tool, and answers with figures. Needs Python and numpy alone.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class QualityJob:
    """`weights` is what the engine loads, `checkpoint` where it finds the rest, `options` are the engine's own."""

    weights: str
    checkpoint: str
    threads: int
    options: dict[str, str]
    windows: str
    logits: str
    reference: str


def read_quality_job() -> QualityJob:
    """The job. From here on the process has as many CPUs as the job has threads."""
    job = QualityJob(**json.load(sys.stdin))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.threads])
    os.environ["HF_HUB_OFFLINE"] = "1"
    return job


def score_windows(job: QualityJob, logits: Callable[[list[int]], np.ndarray]) -> None:
    """Write the logits of the second half of every window; `logits` gives f32 [n, vocabulary] of a text."""
    found = []
    for ids in np.load(job.windows):
        first = len(ids) // 2
        found.append(np.array(logits(ids.tolist())[first : len(ids) - 1], np.float32))
    np.save(job.logits, np.stack(found))
    print("\n" + json.dumps({"logits": True}), flush=True)
