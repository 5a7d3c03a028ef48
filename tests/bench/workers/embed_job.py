"""What every worker that embeds does: read the job, keep to its CPUs, time all sentences at once, answer with JSON.

The job is one JSON document on standard input: weights, checkpoint, sentences, threads, repeats, and `vectors`, the
.npy file that takes the embeddings f32 [sentences, features]. Needs Python and numpy alone.
"""

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class EmbedJob:
    """`weights` is what the engine loads, `checkpoint` where it finds the rest."""

    weights: str
    checkpoint: str
    sentences: list[str]
    threads: int
    repeats: int
    vectors: str


def read_embed_job() -> EmbedJob:
    """The job. From here on the process has as many CPUs as the job has threads."""
    job = EmbedJob(**json.load(sys.stdin))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.threads])
    for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(job.threads)
    return job


def measure_embedding(job: EmbedJob, embed: Callable[[list[str]], "np.ndarray"], packages: Sequence[str]) -> None:
    """Times `embed` of all sentences, from text to vectors, once more than counted, and prints the answer."""
    import numpy as np

    np.save(job.vectors, embed(job.sentences))
    seconds = []
    for _ in range(job.repeats):
        start = time.perf_counter()
        embed(job.sentences)
        seconds.append(time.perf_counter() - start)
    versions = {name: importlib.metadata.version(name) for name in packages}
    print("\n" + json.dumps({"seconds": seconds, "versions": versions}), flush=True)
