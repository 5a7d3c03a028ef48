"""pyc: an artifact, token ids straight to its session."""

import time

from job import answer, measure_steps, read_job

job = read_job()

import pyc  # noqa: E402  the CPUs are chosen before an engine starts its threads
from pyc.runtime.reader import open_artifact  # noqa: E402

EMBEDDING = "model.embed_tokens.weight"


def bytes_a_token(path: str) -> int:
    """Bytes of weights that one decode step reads: all but an embedding that is not the output matrix as well."""
    with open_artifact(path) as artifact:
        header = artifact.header
    first = {function.name: function for function in reversed(header.programs[0].functions)}
    logits = set(first["logits"].weights)
    read = {name for name in first["forward"].weights if name != EMBEDDING} | logits
    sizes = {}
    for tensor in header.tensors:
        chunks = header.chunks[tensor.span.first_chunk : tensor.span.first_chunk + tensor.span.chunk_count]
        sizes[tensor.name] = sum(chunk.raw_bytes for chunk in chunks)
    return sum(sizes[name] for name in read)


start = time.perf_counter()
model = pyc.load(job.weights, threads=job.threads, context=job.context)
load_s = time.perf_counter() - start
session = model.session
slot = session.acquire()


def prefill(ids: list[int]) -> int:
    """The token after the prompt."""
    return int(session.logits(session.prefill(ids, slot))[0].argmax())


def step(token: int) -> int:
    """The token after `token`."""
    return int(session.logits(session.step((token,), (slot,)))[0].argmax())


def reset() -> None:
    """Forget the sequence."""
    session.rewind(session.length(slot), slot)


with session.lock:
    runs = measure_steps(job, prefill, step, reset)
answer(
    runs,
    load_s,
    ("pyc-compiler", "apache-tvm-ffi", "numpy"),
    isa=model.executor.isa,
    weights_bytes=bytes_a_token(job.weights),
)
