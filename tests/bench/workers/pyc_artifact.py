"""pyc: an artifact, token ids straight to its session. Long contexts are filled piece by piece (pyc_session.py)."""

import time

from job import Job, Run, answer, measure_steps, read_job

job = read_job()

from pyc_session import FillingSession  # noqa: E402  the CPUs are chosen before an engine starts its threads
from weights_read import bytes_a_token  # noqa: E402

import pyc  # noqa: E402
from pyc.runtime.generation.session import Session  # noqa: E402


def measure_batches(session: Session, job: Job) -> list[Run]:
    """Tokens a second in all of 1, 4, ... sequences that decode together after the first prompt, greedily."""
    prompt, runs = job.prompts[0], []
    for count in [count for _ in range(job.repeats) for count in job.batches]:
        slots = tuple(session.acquire() for _ in range(count))
        for slot in slots:
            session.prefill(prompt.ids, slot)
        tokens = tuple(prompt.ids[:1] * count)
        start = time.perf_counter()
        for _ in range(prompt.decode):
            tokens = tuple(session.logits(session.step(tokens, slots)).argmax(axis=1).tolist())
        decode_s = time.perf_counter() - start
        runs.append({"sequences": count, "decode_s": decode_s, "decode_tok_s": count * prompt.decode / decode_s})
        for slot in slots:
            session.rewind(session.length(slot), slot)
            session.release(slot)
    return runs


start = time.perf_counter()
model = pyc.load(job.weights, threads=job.threads, isa=job.options.get("isa"), context=job.context)
load_s = time.perf_counter() - start
filling = FillingSession(model, job.context)
session = filling.session
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
    runs = measure_steps(job, prefill, step, reset, lambda ids: filling.fill(ids, slot))
    reset()
    session.release(slot)
    batches = measure_batches(session, job) if job.batches else []
answer(
    runs,
    load_s,
    ("pyc-compiler", "numpy"),
    isa=model.executor.isa,
    batches=batches,
    weights_bytes=bytes_a_token(job.weights),
)
