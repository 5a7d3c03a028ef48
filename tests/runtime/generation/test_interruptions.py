"""Ctrl-C and signal handlers in the middle of a generation."""

import itertools
import sys
from collections.abc import Mapping
from types import ModuleType

import numpy as np
import pytest
from interruptions import InterruptedAt, interrupted
from long_runs import IS_LONG
from numpy.typing import NDArray
from text_models import Make, greedy, ids_of, make

from pyc.runtime.errors import RunError
from pyc.runtime.generation.scheduler import Scheduler
from pyc.runtime.generation.slots import SlotOwner

__all__ = ["make"]

ANY_MOMENT = (
    *("_advance", "_step", "_admit", "_begin", "_live", "_prefill", "_decode", "submit", "take", "wait"),
    *("__next__", "choose", "take_slot", "release", "truncate", "reserve", "give_back"),
)
"""Functions of the scheduler, and of what takes and gives back slots and blocks."""


def test_a_signal_handler_that_generates_is_refused_and_spoils_nothing(fake: ModuleType, make: Make) -> None:
    """At each run of a prompt and of steps, whether it begins a generation, goes on with one, or asks for logits."""
    model, prompt = make(), [5, 6, 7]
    expected, run = greedy(fake, model, prompt, 5), model.executor.run
    begun = model.generate([1, 2], max_tokens=8)
    next(begun)
    attempts = (lambda: next(model.generate([1])), lambda: next(begun), lambda: model.logits([1, 2]))
    said = []

    def run_and_be_interrupted(name: str, bucket: int, inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        result = run(name, bucket, inputs)
        if len(said) < len(attempts):
            with pytest.raises(RunError, match="this thread is in the middle of a run of this model") as caught:
                attempts[len(said)]()
            said.append(caught.value)
        return result

    model.executor.run = run_and_be_interrupted  # type: ignore[method-assign]
    assert ids_of(list(model.generate(prompt, max_tokens=5, temperature=0.0))) == expected
    assert len(said) == len(attempts)
    assert ids_of(list(model.generate(prompt, max_tokens=5, temperature=0.0))) == expected


@pytest.mark.slow
def test_ctrl_c_at_any_moment_leaves_a_model_that_works(make: Make) -> None:
    model = make()
    prompts = [[5] * 5, [5] * 2 + [6] * 3]
    expected = [ids_of(list(model.generate(prompt, max_tokens=2))) for prompt in prompts]
    tracer = sys.gettrace()
    for moment in itertools.count(1, 2):
        interrupted = InterruptedAt(moment, ANY_MOMENT, "runtime")
        sys.settrace(interrupted)
        try:
            for _ in model.generate(prompts[moment % 2], max_tokens=2):  # every block is given back and taken
                pass
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        got = ids_of(list(model.generate(prompts[moment // 2 % 2], max_tokens=2, reuse_prefix=True)))
        assert got == expected[moment // 2 % 2], moment
        assert model.session.slots.lost_blocks == 0
        if interrupted.countdown > 0:
            break
    assert moment > 1000
    for _ in range(model.info.max_sequences):
        model.session.acquire()  # no slot is lost


@pytest.mark.slow
def test_who_catches_an_interruption_may_ask_again_at_once(make: Make) -> None:
    """The exception is alive then, and with it whatever the frames that it passed have in variables."""
    model = make()
    prompts = [[5] * 5, [5] * 2 + [6] * 3]
    expected = [ids_of(list(model.generate(prompt, max_tokens=2))) for prompt in prompts]
    wanted = model.logits(prompts[0])
    slots = model.info.max_sequences

    def work() -> None:
        for _ in model.generate(prompts[0], max_tokens=2):
            pass
        for _ in model.generate(prompts, max_tokens=1).stream():
            pass
        model.logits(prompts[0])
        model.session.acquire(owner=SlotOwner())

    moment = 0
    for moment in interrupted(work, "/runtime/", step=1 if IS_LONG else 3):
        assert ids_of(list(model.generate(prompts[moment % 2], max_tokens=2))) == expected[moment % 2], moment
        if moment % 5 == 0:
            assert [ids_of(list(stream)) for stream in model.generate(prompts, max_tokens=2)] == expected, moment
            assert np.array_equal(model.logits(prompts[0]), wanted), moment
    assert moment > 500
    for _ in range(slots):
        model.session.acquire()  # no slot is lost


@pytest.mark.parametrize("file", ["session", "scheduler", "slots"])
def test_a_kept_interruption_does_not_leave_the_model_in_use(make: Make, file: str) -> None:
    """As a debugger keeps the last one; a part of the test before, in less time."""
    model, moment = make(), 0
    expected = ids_of(list(model.generate([5, 6], max_tokens=2)))
    for moment in interrupted(lambda: list(model.generate([5, 6], max_tokens=2)), f"/generation/{file}.py"):
        assert ids_of(list(model.generate([5, 6], max_tokens=2))) == expected, moment
    assert moment > 10
    assert len([model.session.acquire() for _ in range(model.info.max_sequences)]) == model.info.max_sequences


def test_an_interruption_ends_the_whole_batch(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook still has it in a variable, and what is asked next would wait for it. Who goes on to read another of
    its streams gets no text that looks whole."""
    model = make()
    streams = model.generate([[5, 6], [7], [8, 9]], max_tokens=9)
    next(streams[1])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, "_advance", interrupt)
        with pytest.raises(KeyboardInterrupt):
            streams[0].text()
    assert list(streams[0]) == []
    for stream in streams[1:]:
        with pytest.raises(RunError, match="an interruption ended this request and those given with it; ask again"):
            stream.text()
    assert len([model.session.acquire() for _ in range(model.info.max_sequences)]) == model.info.max_sequences
