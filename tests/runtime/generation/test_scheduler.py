"""Requests that run together: each has the tokens that it has alone, whoever asks first, waits, leaves or fails."""

import asyncio
import gc
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from unittest.mock import Mock

import numpy as np
import pytest
from interruptions import InterruptedAt
from numpy.typing import NDArray
from scheduled_models import CONTEXT, PROMPTS, Make, alone

from pyc.runtime.errors import RunError
from pyc.runtime.generation.request import Request, Token
from pyc.runtime.generation.scheduler import READ_AHEAD
from pyc.runtime.generation.token_stream import TokenStream
from pyc.runtime.host import turns
from pyc.runtime.model import Model


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0, "top_p": 0.9, "seed": 3}, {"repetition_penalty": 1.5}])
def test_each_of_several_prompts_has_the_tokens_that_it_has_alone(make: Make, settings: dict[str, float]) -> None:
    expected = [alone(make, prompt, 25, **settings) for prompt in PROMPTS]
    batch = make().generate(PROMPTS, max_tokens=25, **settings)
    assert len(batch) == len(PROMPTS)
    assert [list(stream) for stream in batch] == expected
    assert [list(stream) for stream in reversed(make().generate(PROMPTS, max_tokens=25, **settings))] == expected[::-1]
    assert [stream.prompt_tokens for stream in batch] == [len(prompt) for prompt in PROMPTS]


def test_texts_and_messages_come_in_lists_too(make: Make) -> None:
    model = make()
    texts = ["the quick", "brown fox"]
    expected = [make().generate(text, max_tokens=8).text() for text in texts]
    assert [stream.text() for stream in model.generate(texts, max_tokens=8)] == expected
    assert [stream.text() for stream in model.generate(tuple(texts), max_tokens=8)] == expected
    with pytest.raises(RunError, match="this model has no chat template"):
        model.generate([[{"role": "user", "content": "hello"}]])
    for bad, message in (
        (["the", 5], "^prompt 1: got 5, expected text"),
        (["the", ""], "^prompt 1: got no tokens, expected at least one; give a character of text"),
        ([[1], [1] * CONTEXT], f"prompt 1: context: the prompt's {CONTEXT} tokens leave no room"),
    ):
        with pytest.raises(RunError, match=message):
            model.generate(bad)


def test_requests_share_their_steps(make: Make) -> None:
    model = make()
    for stream in model.generate(PROMPTS[:3], max_tokens=20):
        list(stream)
    steps = [bucket for name, bucket in model.executor.calls if name == "logits"]
    assert len(steps) <= 3 + 19 + 4, "three prompts, and the steps of one"


def test_a_long_prompt_delays_decoding_by_one_piece_at_a_time(make: Make) -> None:
    model = make()
    short = model.generate([5, 6], max_tokens=30)
    next(short)
    model.executor.calls.clear()
    list(model.generate([*range(100)], max_tokens=1))
    names = [(name, bucket) for name, bucket in model.executor.calls if name == "forward"]
    prompts = [index for index, call in enumerate(names) if call[1] > 1]
    assert len(prompts) == 7 and max(np.diff(prompts)) == 2, "a step of the other request after each piece"
    assert len(short.take_ready()) == 7


def test_more_requests_than_sequences_wait_for_their_turn(make: Make) -> None:
    model = make()
    unread = [model.generate(prompt, max_tokens=60) for prompt in PROMPTS[:3]]
    for stream in unread:
        next(stream)
    assert list(model.generate(PROMPTS[3], max_tokens=5)) == alone(make, PROMPTS[3], 5)
    for stream, prompt in zip(unread, PROMPTS, strict=False):
        assert list(stream) == alone(make, prompt, 60)[1:], "they went on meanwhile"


def test_decoding_runs_ahead_so_far_and_no_further(make: Make) -> None:
    model = make()
    unread = model.generate(PROMPTS[0], max_tokens=100)
    next(unread)
    list(model.generate(PROMPTS[1], max_tokens=90))
    assert len(unread.take_ready()) == READ_AHEAD


def test_a_stop_string_ends_a_request_that_nobody_reads(make: Make) -> None:
    whole = "".join(token.text for token in alone(make, PROMPTS[0], 60))
    stop = whole[5:8]
    model = make()
    unread = model.generate(PROMPTS[0], max_tokens=60, stop=stop)
    next(unread)
    list(model.generate(PROMPTS[1], max_tokens=60))
    assert "".join(token.text for token in unread.take_ready()) in whole[: whole.index(stop)]
    assert unread.is_at_end


@pytest.mark.slow
@pytest.mark.parametrize("leave", ["close", "forget", "with"])
def test_whoever_leaves_makes_room(make: Make, leave: str) -> None:
    model = make()
    unread = [model.generate(prompt, max_tokens=90) for prompt in PROMPTS[:3]]
    for stream in unread:
        next(stream)
    stream = unread.pop()
    if leave == "close":
        stream.close()
        stream.close()
        assert list(stream) == []
    elif leave == "with":
        with stream:
            next(stream)
        assert list(stream) == []
    del stream
    gc.collect()
    model.executor.calls.clear()
    assert list(model.generate([9], max_tokens=3)) == alone(make, [9], 3)
    assert len(model.executor.calls) < 12, "the others were not run to their ends"


def test_nothing_runs_before_a_token_is_asked_for(make: Make) -> None:
    model = make()
    streams = [model.generate(PROMPTS[0]), *model.generate(PROMPTS)]
    assert model.executor.calls == []
    streams[0].close()
    assert list(streams[0]) == []
    assert model.executor.calls == []


def test_slots_that_nobody_gives_back_are_an_error(make: Make) -> None:
    model = make()
    slots = [model.session.acquire() for _ in range(3)]
    stream = model.generate(PROMPTS[0], max_tokens=3)
    with pytest.raises(RunError, match="all 3 sequences of this model are in use"):
        next(stream)
    model.session.release(slots[0])
    assert list(model.generate(PROMPTS[0], max_tokens=3)) == alone(make, PROMPTS[0], 3)


def test_tokens_as_they_come(make: Make) -> None:
    batch = make().generate(PROMPTS, max_tokens=10)
    found: list[list[Token]] = [[] for _ in PROMPTS]
    order = []
    for index, token in batch.stream():
        found[index].append(token)
        order.append(index)
    assert found == [alone(make, prompt, 10) for prompt in PROMPTS]
    assert order != sorted(order), "they come side by side"
    assert list(batch.stream()) == []
    with make().generate(PROMPTS, max_tokens=10) as batch:
        for _ in batch.stream():
            break
    assert [list(stream) for stream in batch[1:3]] == [[], []]


def test_tokens_of_many_prompts_are_not_looked_for_among_those_that_wait(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, take_ready = [0], TokenStream.take_ready

    def counted(stream: TokenStream) -> list[Token]:
        looked[0] += 1
        return take_ready(stream)

    monkeypatch.setattr(TokenStream, "take_ready", counted)
    batch = make().generate([[5]] * 100, max_tokens=4)
    assert sum(1 for _ in batch.stream()) == 400
    assert looked[0] < 2000, "a look at each of 100 for each of 400 tokens is quadratic"


class FilledMeanwhile(deque[Token]):
    """Tokens that are ready; the last one comes just after somebody found none, as another thread's step brings it."""

    def __init__(self, model: Model, request: Request) -> None:
        super().__init__()
        self._model, self._request = model, request

    def __bool__(self) -> bool:
        found, lock = len(self) > 0, self._model.session.turns._lock
        if not found and lock.acquire(blocking=False):  # as a step has it; else a step brings the token
            try:
                if self._request.is_open:
                    self._request.choose(np.arange(self._request._vocab_size, dtype=np.float32))
            finally:
                lock.release()
        return found


@pytest.mark.parametrize("way", ["iterate", "end", "coroutine"])
def test_the_last_token_may_come_while_somebody_looks(make: Make, way: str) -> None:
    async def read(stream: TokenStream) -> list[Token]:
        return [token async for token in stream]

    model = make()
    batch = model.generate([[5]], max_tokens=1)
    batch[0]._request.ready = FilledMeanwhile(model, batch[0]._request)
    if way == "iterate":
        assert len(list(batch[0])) == 1
    elif way == "end":
        assert not batch[0].is_at_end
    else:
        assert len(asyncio.run(read(batch[0]))) == 1


def test_ctrl_c_on_the_way_into_the_queue_leaves_no_request_behind(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads another of the batch does not wait for one that never runs."""
    model = make()
    batch = model.generate([[5], [6]], max_tokens=3)

    def interrupted(requests: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(model.scheduler, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batch[0])
    with pytest.raises(RunError, match="an interruption ended this request and those given with it"):
        next(batch[1])
    assert list(model.generate([6], max_tokens=3)) == alone(make, [6], 3)


def test_a_reader_whose_token_another_made_does_not_wait_for_the_lock(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is not fair: who gives it back has it again before those wake that wait for it."""
    model, found, arrived = make(), [], threading.Event()
    first, second = model.generate([[5], [6]], max_tokens=90)
    for stream in (first, second):
        next(stream)
        stream.take_ready()
    run = model.executor.run

    def read() -> None:
        arrived.set()
        found.append(next(second))

    reader = threading.Thread(target=read, daemon=True)

    def run_while_another_comes(name: str, bucket: int, inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        if name == "logits":
            reader.start()
            arrived.wait()
            time.sleep(0.02)  # so that it waits; a reader that comes later finds its token
        return run(name, bucket, inputs)

    first.take_ready()
    monkeypatch.setattr(model.executor, "run", run_while_another_comes)
    monkeypatch.setattr(turns, "PATIENCE_S", 60)
    with model.session.lock:
        next(first)
        reader.join(10)
        assert found


def test_logits_wait_for_a_sequence_as_a_prompt_does(make: Make) -> None:
    """Streams that nobody reads run on meanwhile, and lose nothing."""
    model = make()
    unread = [model.generate(prompt, max_tokens=60) for prompt in PROMPTS[:3]]
    for stream in unread:
        next(stream)
    assert np.array_equal(model.logits(PROMPTS[3]), make().logits(PROMPTS[3]))
    for stream, prompt in zip(unread, PROMPTS, strict=False):
        assert list(stream) == alone(make, prompt, 60)[1:]
    held = [model.session.acquire() for _ in range(3)]
    with pytest.raises(RunError, match="all 3 sequences of this model are in use"):
        model.logits([1])
    model.session.release(held[0])
    assert model.logits([1]).shape[0] == 1


def test_logits_delay_decoding_by_one_piece_at_a_time(make: Make) -> None:
    model, ids = make(), [*range(100)]
    short = model.generate([5, 6], max_tokens=30)
    next(short)
    assert np.array_equal(model.logits(ids), make().logits(ids))
    assert len(short.take_ready()) == 7, "a step before each of the seven pieces"
    assert list(short) == alone(make, [5, 6], 30)[8:]


def test_logits_that_are_interrupted_or_fail_leave_their_sequence(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model, expected = make(), make().logits([5, 6, 7])
    streams = [model.generate(prompt, max_tokens=60) for prompt in PROMPTS[:2]]
    for stream in streams:
        next(stream)
    run = model.executor.run
    for error in (KeyboardInterrupt(), RunError("broken")):

        monkeypatch.setattr(model.executor, "run", Mock(side_effect=error))
        with pytest.raises(type(error)):
            model.logits([5, 6, 7])
        monkeypatch.setattr(model.executor, "run", run)
        assert np.array_equal(model.logits([5, 6, 7]), expected)
    monkeypatch.setattr(model.session, "logits", Mock(side_effect=MemoryError))
    with pytest.raises(RunError, match=r"^logits: no memory for those of 3 tokens, .* give fewer at a time$"):
        model.logits([5, 6, 7])
    monkeypatch.undo()
    for stream, prompt in zip(streams, PROMPTS, strict=False):
        assert list(stream) == alone(make, prompt, 60)[1:]


def test_scores_are_computed_while_threads_read(make: Make) -> None:
    model, stop = make(), threading.Event()
    expected = make().logits([5, 6, 7])

    def read() -> None:
        while not stop.is_set():
            list(model.generate([8], max_tokens=20))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert np.array_equal(model.logits([5, 6, 7]), expected)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_broken_request_ends_alone(make: Make) -> None:
    model = make()
    run, broken_rows = model.executor.run, []
    streams = [model.generate(prompt, max_tokens=20) for prompt in PROMPTS[:3]]
    for stream in streams:
        next(stream)

    def broken(name: str, bucket: int, inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        result = run(name, bucket, inputs)
        if name == "logits" and bucket == 4 and not broken_rows:
            broken_rows.append(1)
            result = result.copy()
            result[1] = np.nan
        return result

    model.executor.run = broken  # type: ignore[method-assign]
    assert list(streams[0]) == alone(make, PROMPTS[0], 20)[1:]
    with pytest.raises(RunError, match="sampling: the largest logit is nan"):
        list(streams[1])
    assert list(streams[1]) == []
    assert list(streams[2]) == alone(make, PROMPTS[2], 20)[1:]


def test_threads_that_share_a_model_are_batched(make: Make) -> None:
    model, found = make(), {}
    barrier = threading.Barrier(len(PROMPTS))

    def read(index: int) -> None:
        barrier.wait()
        found[index] = list(model.generate(PROMPTS[index], max_tokens=40))

    threads = [threading.Thread(target=read, args=(index,)) for index in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(len(PROMPTS))] == [alone(make, prompt, 40) for prompt in PROMPTS]


def test_another_thread_may_close_a_stream_at_any_time(make: Make) -> None:
    model, expected = make(), alone(make, PROMPTS[0], 100)
    for _ in range(30):
        stream = model.generate(PROMPTS[0], max_tokens=100)
        next(stream)
        thread = threading.Thread(target=stream.close)
        thread.start()
        rest = list(stream)
        thread.join()
        assert rest == expected[1 : 1 + len(rest)]
    assert list(model.generate(PROMPTS[1], max_tokens=9)) == alone(make, PROMPTS[1], 9)


def test_streams_that_are_closed_while_another_looks_for_a_sequence_make_room(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    running = [model.generate(prompt, max_tokens=50) for prompt in PROMPTS[:3]]
    for stream in running:
        next(stream)
    take_slot, asked = model.session.take_slot, []

    def take_and_close(*arguments: object, **named: object) -> int | None:
        slot = take_slot(*arguments, **named)
        asked.append(slot)
        for stream in running:
            stream.close()
        return slot

    monkeypatch.setattr(model.session, "take_slot", take_and_close)
    assert list(model.generate(PROMPTS[3], max_tokens=9)) == alone(make, PROMPTS[3], 9)
    assert asked[0] is None


STEP = ("_advance", "_step", "_prefill", "_decode", "_admit", "_begin", "choose", "decode", "prefill_chunk")
"""Functions of a step."""


def test_ctrl_c_after_the_last_token_was_chosen_does_not_let_the_request_go_on(make: Make) -> None:
    tracer = sys.gettrace()
    for moment in itertools.count(1):
        request = make().generate([5], max_tokens=1)._request
        logits = np.arange(request._vocab_size, dtype=np.float32)
        interrupted = InterruptedAt(moment, STEP, "generation")
        sys.settrace(interrupted)
        try:
            request.choose(logits)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        if request.is_open:
            request.choose(logits)
        assert not request.is_open and (request.error is not None or len(request.ready) == 1), moment
        if interrupted.countdown > 0:
            break
    assert moment > 20


@pytest.mark.slow
def test_ctrl_c_in_a_step_leaves_the_other_requests_right(make: Make) -> None:
    """They go on, or say that they were interrupted while a token of theirs was chosen."""
    model = make()
    others = [[5, 6, 7, 8, 9], [60, 61]]
    expected = [alone(make, prompt, 5) for prompt in others]
    tracer, failures = sys.gettrace(), 0
    for moment in itertools.count(1, 3):
        streams = [model.generate(prompt, max_tokens=5) for prompt in others]
        first = next(streams[0])
        interrupted = InterruptedAt(moment, STEP, "generation")
        sys.settrace(interrupted)
        try:
            list(model.generate([1, 2], max_tokens=3))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(tracer)
        try:
            found = [first, *streams[0]]
        except RunError as error:
            failures += "an interruption struck" in str(error)
        else:
            assert found == expected[0], moment
        assert list(streams[1]) == expected[1], moment
        if interrupted.countdown > 0:
            break
    assert moment > 300
    assert 0 < failures < moment / 6
