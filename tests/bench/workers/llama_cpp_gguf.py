"""llama.cpp through llama-cpp-python: a GGUF file, token ids straight to its evaluation."""

import ctypes
import json
import time
from pathlib import Path

from job import answer, measure_steps, read_job

job = read_job()

import numpy as np  # noqa: E402  the CPUs are chosen before an engine starts its threads
from llama_cpp import Llama, llama_cpp  # noqa: E402

start = time.perf_counter()
model = Llama(
    job.weights,
    n_ctx=-(-job.context // 256) * 256,
    n_batch=512,
    n_ubatch=512,
    n_threads=job.threads,
    n_threads_batch=job.threads,
    verbose=False,
)
load_s = time.perf_counter() - start


def evaluate(ids: list[int]) -> int:
    """The token after `ids`."""
    model.eval(ids)
    logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
    row = np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (model.n_vocab(),))
    return int(row.argmax())


def step(token: int) -> int:
    """The token after `token`."""
    return evaluate([token])


runs = measure_steps(job, evaluate, step, model.reset)
sizes = json.loads(Path(job.weights).with_suffix(".json").read_text())
system = llama_cpp.llama_print_system_info().decode()
answer(runs, load_s, ("llama-cpp-python",), system=system, weights_bytes=sizes["weights_bytes"])
