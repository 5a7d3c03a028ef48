"""OpenVINO GenAI: a model that optimum-intel exported. It samples greedily, feeds itself and times itself."""

import json
import time
from pathlib import Path

from job import WARM_UP_STEPS, Prompt, Run, answer, read_job, timed_run

job = read_job()

import numpy as np  # noqa: E402  the CPUs are chosen before an engine starts its threads
import openvino  # noqa: E402
import openvino_genai as genai  # noqa: E402


def load(path: str) -> "genai.LLMPipeline":
    """The pipeline, without a cache of prefixes: it would spare the prompt that is timed."""
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    cache = {"KV_CACHE_PRECISION": job.options["cache"]} if "cache" in job.options else {}  # its own choice: 8 bits
    return genai.LLMPipeline(
        path,
        "CPU",
        scheduler_config=scheduler,
        PERFORMANCE_HINT="LATENCY",
        INFERENCE_PRECISION_HINT=job.options["precision"],
        INFERENCE_NUM_THREADS=job.threads,
        **cache,
    )


def run(pipeline: "genai.LLMPipeline", prompt: Prompt, decode: int) -> Run:
    """One generation. The first token belongs to the prompt, so one more is asked for."""
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = decode + 1, True, False
    ids = np.array([prompt.ids], dtype=np.int64)
    inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    metrics = pipeline.generate(inputs, config).perf_metrics
    token_s = metrics.get_tpot().mean / 1e3 if decode else 0.0
    return timed_run(len(prompt.ids), metrics.get_ttft().mean / 1e3, decode, token_s * decode)


start = time.perf_counter()
pipeline = load(job.weights)
load_s = time.perf_counter() - start
short = [prompt for prompt in job.prompts if not prompt.is_long]
for prompt in short:
    run(pipeline, prompt, WARM_UP_STEPS)
runs = [run(pipeline, prompt, prompt.decode) for _ in range(job.repeats) for prompt in short]
runs += [run(pipeline, prompt, prompt.decode) for prompt in job.prompts if prompt.is_long]  # once: minutes each
# The embedding is stored once where it is the output matrix too.
tied = json.loads((Path(job.checkpoint) / "config.json").read_text())["tie_word_embeddings"]
weights_bytes = (Path(job.weights) / "openvino_model.bin").stat().st_size if tied else None
answer(runs, load_s, ("openvino-genai", "openvino"), weights_bytes=weights_bytes)
