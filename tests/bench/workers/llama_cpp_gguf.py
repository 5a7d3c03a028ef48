"""llama.cpp through llama-cpp-python: a GGUF file, token ids straight to its evaluation.

A long context is computed once, by the first engine that needs it, and kept as llama.cpp's own state file: the cache
has the same form for all storages of the weights (but not with and without flash attention).
"""

import ctypes
import importlib.metadata
import json
import time
from pathlib import Path

from job import answer, measure_steps, read_job

job = read_job()

import numpy as np  # noqa: E402  the CPUs are chosen before an engine starts its threads
from llama_cpp import Llama, llama_cpp  # noqa: E402

CACHE_TYPES = {"f16": 1, "q8_0": 8}  # ggml_type
SEQUENCE = 0

start = time.perf_counter()
model = Llama(
    job.weights,
    n_ctx=-(-job.context // 256) * 256,
    n_batch=512,
    n_ubatch=512,
    n_threads=job.threads,
    n_threads_batch=job.threads,
    type_k=CACHE_TYPES[job.options["cache"]],
    type_v=CACHE_TYPES[job.options["cache"]],
    flash_attn=job.options["flash"] == "on",
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


def fill(ids: list[int]) -> None:
    """The cache of `ids`: computed, or read from the state file of an earlier process."""
    version = importlib.metadata.version("llama-cpp-python")
    path = Path(job.states) / f"llama-{version}-{job.options['cache']}-flash-{job.options['flash']}-{len(ids)}.bin"
    tokens = (llama_cpp.llama_token * len(ids))(*ids)
    if not path.exists():
        evaluate(ids)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        if not llama_cpp.llama_state_seq_save_file(model.ctx, bytes(partial), SEQUENCE, tokens, len(ids)):
            raise RuntimeError(f"llama.cpp could not write {partial}")
        partial.rename(path)
        return
    count = ctypes.c_size_t()
    if not llama_cpp.llama_state_seq_load_file(model.ctx, bytes(path), SEQUENCE, tokens, len(ids), count):
        raise RuntimeError(f"llama.cpp could not read {path}")
    if count.value != len(ids):
        raise RuntimeError(f"{path}: {count.value} tokens, expected {len(ids)}")
    model.input_ids[: len(ids)] = ids
    model.n_tokens = len(ids)


runs = measure_steps(job, evaluate, step, model.reset, fill)
sizes = json.loads(Path(job.weights).with_suffix(".json").read_text())
system = llama_cpp.llama_print_system_info().decode()
answer(runs, load_s, ("llama-cpp-python",), system=system, weights_bytes=sizes["weights_bytes"])
