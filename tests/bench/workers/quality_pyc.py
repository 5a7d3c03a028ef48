"""pyc: an artifact's logits of every window."""

from quality_job import read_quality_job, score_windows

job = read_quality_job()

import pyc  # noqa: E402  the CPUs are chosen before an engine starts its threads

with pyc.load(job.weights, threads=job.threads, isa=job.options.get("isa")) as model:
    score_windows(job, model.logits)
