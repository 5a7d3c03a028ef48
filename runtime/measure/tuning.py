"""Finds how far ahead this CPU wants weights asked for, by steps of a loaded decoder.

What panels hold is tuned in turn (`prefetch.Distances`), with one token first, then with several. Every round runs all
candidates, forwards and backwards in turn, so that a machine that changes its speed changes it for all; a candidate's
time is taken as a share of that of the distances at hand, in the same round. The best is measured beside them once
more: of ten that are equally fast, noise makes one look better.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import msgspec
import numpy as np

from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu.prefetch import Distance, Distances, PrefetchesWeights
from pyc.runtime.generation.session import Session
from pyc.runtime.generation.slots import SlotOwner
from pyc.runtime.model import Model

Kind = Literal["codes", "floats", "pairs"]
T = TypeVar("T")

BYTES_AHEAD = (0, 512, 1024, 1536, 2048, 3072, 4096)
MANY_TOKENS = 8
RUN_S = 0.03
"""A run repeats its step for so long."""
GAIN = 0.98
"""The share of the time at hand that a candidate has to stay below, twice."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found for `tokens` at a time: `after` takes `ratio` of the time of `before`; 1 if that was kept."""

    kind: Kind
    tokens: int
    before: Distance
    after: Distance
    ratio: float


def tune_distances(
    model: Model, start: Distances, *, rounds: int, progress: Callable[[float], None] = lambda share: None
) -> tuple[Distances, tuple[Finding, ...]]:
    """Return the distances that this CPU decodes `model` fastest with, and what was found on the way.

    The model uses them from now on; `progress` is told what share is done, after every round. Raises RunError for an
    encoder, for a context of less than MANY_TOKENS, and for an executor that has no prefetch distances.
    """
    session, executor = model.session, model.executor
    if not isinstance(executor, PrefetchesWeights):
        raise RunError(f"tune: this model's executor ({executor.isa}) has no prefetch distances; tune a CPU's artifact")
    if session.context < MANY_TOKENS:
        raise RunError(f"tune: a context of {session.context} tokens is too short; it takes {MANY_TOKENS}")
    kept, findings = start, list[Finding]()
    parts = len(get_args(Kind)) * 2

    def tell(share: float) -> None:
        progress((len(findings) + share) / parts)

    with session.lock:
        owner = SlotOwner()
        try:
            slot = session.acquire(owner=owner)
            for kind in get_args(Kind):
                for tokens in (1, MANY_TOKENS):
                    kept, finding = _tune(session, executor, slot, kept, kind, tokens, rounds, tell)
                    findings.append(finding)
        finally:
            owner.has_left = True
    return kept, tuple(findings)


def _tune(
    session: Session,
    executor: PrefetchesWeights,
    slot: int,
    kept: Distances,
    kind: Kind,
    tokens: int,
    rounds: int,
    progress: Callable[[float], None],
) -> tuple[Distances, Finding]:
    """Try the candidates for one kind of panels and one number of tokens."""
    before: Distance = getattr(kept, kind)

    def run(distance: Distance) -> float:
        executor.set_distances(msgspec.structs.replace(kept, **{kind: distance}))
        return _step_s(session, slot, tokens)

    best, ratio = before, 1.0
    candidates = [candidate for candidate in _candidates(before, tokens) if candidate != before]
    ratios = compare(run, before, candidates, rounds, progress)
    fastest = min(range(len(candidates)), key=ratios.__getitem__)
    if ratios[fastest] < GAIN:
        (again,) = compare(run, before, [candidates[fastest]], 2 * rounds)
        if again < GAIN:
            best, ratio = candidates[fastest], again
    kept = msgspec.structs.replace(kept, **{kind: best})
    executor.set_distances(kept)
    return kept, Finding(kind, tokens, before, best, ratio)


def compare(
    run: Callable[[T], float],
    base: T,
    others: Sequence[T],
    rounds: int,
    progress: Callable[[float], None] = lambda share: None,
) -> list[float]:
    """Return the median over `rounds` of what each of `others` takes, as a share of what `base` takes."""
    everything = [base, *others]
    for one in everything:
        run(one)
    times = np.empty((rounds, len(everything)))
    for number in range(rounds):
        for index in range(len(everything))[:: 1 if number % 2 else -1]:
            times[number, index] = run(everything[index])
        progress((number + 1) / rounds)
    medians: list[float] = np.median(times[:, 1:] / times[:, :1], axis=0).tolist()
    return medians


def _candidates(before: Distance, tokens: int) -> Iterator[Distance]:
    for ahead in BYTES_AHEAD:
        if tokens == 1:
            yield msgspec.structs.replace(before, few=ahead)
        else:
            yield msgspec.structs.replace(before, many=ahead, panel=True)
            yield msgspec.structs.replace(before, many=ahead, panel=False)


def _step_s(session: Session, slot: int, tokens: int) -> float:
    """Seconds that a step of so many tokens takes, its logits among them."""
    ids = [0] * tokens
    steps, elapsed, start = 0, 0.0, time.perf_counter()
    while not steps or elapsed < RUN_S:
        hidden = session.step(ids, (slot,)) if tokens == 1 else session.prefill(ids, slot)
        session.logits(hidden)
        session.rewind(tokens, slot)
        steps, elapsed = steps + 1, time.perf_counter() - start
    return elapsed / steps
