"""llama.cpp through llama-cpp-python: logits of every window, evaluated as one batch."""

from quality_job import read_quality_job, score_windows

job = read_quality_job()

import numpy as np  # noqa: E402  the CPUs are chosen before an engine starts its threads
from llama_cpp import Llama  # noqa: E402

CACHE_TYPES = {"f16": 1, "q8_0": 8}  # ggml_type

model = Llama(
    job.weights,
    n_ctx=512,
    n_batch=512,
    n_ubatch=512,
    n_threads=job.threads,
    n_threads_batch=job.threads,
    type_k=CACHE_TYPES[job.options["cache"]],
    type_v=CACHE_TYPES[job.options["cache"]],
    flash_attn=job.options["flash"] == "on",
    logits_all=True,
    verbose=False,
)


def logits(ids: list[int]) -> np.ndarray:
    """Logits f32 [ids, vocabulary] of one text."""
    model.reset()
    model.eval(ids)
    return model.scores[: len(ids)]


score_windows(job, logits)
