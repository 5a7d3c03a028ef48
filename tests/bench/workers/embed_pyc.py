"""pyc: an artifact of an encoder."""

from embed_job import measure_embedding, read_embed_job

job = read_embed_job()

import pyc  # noqa: E402  the CPUs are chosen before an engine starts its threads

with pyc.load(job.weights, threads=job.threads) as model:
    measure_embedding(job, model.embed, ("pyc-compiler", "numpy"))
