"""Coroutines that share a model: one thread runs their steps, and nothing else of the program waits for them."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing

import numpy as np
import pytest
from interruptions import interrupted
from numpy.typing import NDArray
from scheduled_models import PROMPTS, Make, alone

from pyc.runtime.errors import RunError
from pyc.runtime.generation.queued import Queued
from pyc.runtime.generation.request import Token
from pyc.runtime.model import Model


@pytest.mark.slow
def test_coroutines_share_a_model_and_do_not_hold_up_their_loop(make: Make) -> None:
    model, run = make(), None
    run = model.executor.run

    def slow(name: str, bucket: int, inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        time.sleep(0.001)
        return run(name, bucket, inputs)

    model.executor.run = slow  # type: ignore[method-assign]

    async def read(prompt: list[int]) -> list[Token]:
        async with model.generate(prompt, max_tokens=20) as stream:
            return [token async for token in stream]

    async def read_some(prompt: list[int]) -> list[Token]:
        async with aclosing(model.generate(prompt, max_tokens=90)) as stream:
            return [await anext(stream) for _ in range(3)]

    async def main() -> list[list[Token]]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0)
                ticks += 1

        ticking = asyncio.create_task(tick())
        cancelled = asyncio.create_task(read([77, 78]))
        await asyncio.sleep(0.004)
        cancelled.cancel()
        found = await asyncio.gather(*(read(prompt) for prompt in PROMPTS), read_some(PROMPTS[0]))
        ticking.cancel()
        assert ticks > 20
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        return found

    *found, some = asyncio.run(main())
    assert found == [alone(make, prompt, 20) for prompt in PROMPTS]
    assert some == alone(make, PROMPTS[0], 90)[:3]
    wait_for_its_end()
    assert len([model.session.acquire() for _ in range(3)]) == 3


async def read(model: Model, prompt: list[int], count: int = 20) -> list[Token]:
    async with model.generate(prompt, max_tokens=count) as stream:
        return [token async for token in stream]


def wait_for_its_end() -> None:
    """Wait until there is no thread that runs steps."""
    for thread in threading.enumerate():
        if thread.name == "pyc steps for coroutines":
            thread.join(60)
            assert not thread.is_alive()


def test_more_coroutines_than_the_executor_has_threads_need_none_of_them(make: Make) -> None:
    """The program itself may fill the executor, and wait there for what coroutines answer."""
    model, prompts = make(), PROMPTS * 10

    async def main() -> list[list[Token]]:
        loop, is_over = asyncio.get_running_loop(), threading.Event()
        busy = [loop.run_in_executor(None, is_over.wait) for _ in range(64)]
        try:
            return await asyncio.wait_for(asyncio.gather(*(read(model, prompt) for prompt in prompts)), 60)
        finally:
            is_over.set()
            await asyncio.gather(*busy)

    expected = {tuple(prompt): alone(make, prompt, 20) for prompt in PROMPTS}
    assert asyncio.run(main()) == [expected[tuple(prompt)] for prompt in prompts]


def test_a_stream_that_has_begun_gets_each_token_while_others_wait_for_a_sequence(make: Make) -> None:
    model = make()

    async def main() -> None:
        others = [asyncio.create_task(read(model, prompt, 90)) for prompt in PROMPTS * 3]
        async with model.generate([5], max_tokens=90) as stream:
            async for _ in stream:
                assert sum(task.done() for task in others) < len(others)
                if stream._request.slot >= 0 and stream._request.is_open:
                    break
            late = model.generate([6], max_tokens=2)
            waiting = asyncio.create_task(anext(late))
            for _ in range(40):
                await asyncio.wait_for(anext(stream), 60)
        for task in (*others, waiting):
            task.cancel()
        await asyncio.gather(*others, waiting, return_exceptions=True)

    asyncio.run(main())
    wait_for_its_end()
    assert len([model.session.acquire() for _ in range(3)]) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coroutine 'read' was never awaited")  # an interruption came before
def test_who_catches_an_interruption_may_ask_again_at_once(make: Make) -> None:
    """The exception is alive then, and with it whatever the frames that it passed have in variables."""
    model = make()
    prompts = [[5, 6, 7], [8]]
    expected = [alone(make, prompt, 2) for prompt in prompts]

    async def main() -> list[list[Token]]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # which would log each
        return await asyncio.gather(*(read(model, prompt, 2) for prompt in prompts))

    moment = 0
    for moment in interrupted(lambda: asyncio.run(main()), "/runtime/", "threading.py"):
        assert list(model.generate(prompts[moment % 2], max_tokens=2)) == expected[moment % 2], moment
        if moment % 5 == 0:
            assert asyncio.run(main()) == expected, moment
    assert moment > 100
    wait_for_its_end()
    assert len([model.session.acquire() for _ in range(3)]) == 3


def test_several_event_loops_and_threads_share_a_model(make: Make) -> None:
    model = make()
    found: list[list[Token]] = []

    async def main() -> None:
        found.extend(await asyncio.gather(*(read(model, prompt) for prompt in PROMPTS)))

    def sync() -> None:
        found.extend(list(model.generate(prompt, max_tokens=20)) for prompt in PROMPTS)

    def run() -> None:
        asyncio.run(main())

    threads = [threading.Thread(target=work) for work in (run, run, sync)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = [alone(make, prompt, 20) for prompt in PROMPTS]
    assert len(found) == 3 * len(PROMPTS) and all(tokens in expected for tokens in found)


def test_the_thread_ends_when_nobody_waits(make: Make) -> None:
    model = make()
    asyncio.run(read(model, [5]))
    wait_for_its_end()
    assert asyncio.run(read(model, [8])) == alone(make, [8], 20)


def test_what_a_step_raises_reaches_the_coroutine_that_waits_and_the_others_go_on(make: Make) -> None:
    model, fails = make(), [True]
    decode = model.session.decode

    def failing(*arguments: object) -> object:
        if fails:
            fails.pop()
            raise RunError("it broke")
        return decode(*arguments)  # type: ignore[arg-type]

    model.session.decode = failing  # type: ignore[method-assign]

    async def main() -> list[object]:
        return await asyncio.gather(*(read(model, prompt) for prompt in PROMPTS), return_exceptions=True)

    found = asyncio.run(main())
    (error,) = [each for each in found if isinstance(each, BaseException)]
    assert isinstance(error, RunError) and str(error) == "it broke"
    expected = [alone(make, prompt, 20) for prompt in PROMPTS]
    assert all(each is error or each == tokens for each, tokens in zip(found, expected, strict=True))


def test_a_model_that_is_closed_ends_every_coroutine(make: Make) -> None:
    model = make()

    async def main() -> list[object]:
        reading = [asyncio.create_task(read(model, prompt, 80)) for prompt in PROMPTS]
        await asyncio.sleep(0.01)
        model.close()
        return await asyncio.wait_for(asyncio.gather(*reading, return_exceptions=True), 60)

    assert all(isinstance(each, RunError) and "closed" in str(each) for each in asyncio.run(main()))


def test_an_event_loop_that_is_closed_meanwhile_holds_nothing(make: Make) -> None:
    model, loop = make(), asyncio.new_event_loop()
    streams = [model.generate(prompt, max_tokens=90) for prompt in PROMPTS]
    waiting = [loop.create_task(anext(stream)) for stream in streams]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    for task in waiting:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    for stream in streams:
        stream.close()
    del waiting
    wait_for_its_end()
    assert asyncio.run(read(model, [8])) == alone(make, [8], 20)


def test_those_that_wait_are_not_looked_at_in_each_step(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands may wait for a sequence."""
    looks = [0]
    is_served = Queued.is_served.fget
    assert is_served is not None

    def counted(request: Queued) -> bool:
        looks[0] += 1
        return bool(is_served(request))

    monkeypatch.setattr(Queued, "is_served", property(counted))
    model, counts = make(), []

    async def main(count: int) -> None:
        await asyncio.gather(*(read(model, [5], 3) for _ in range(count)))

    for count in (50, 200):
        looks[0] = 0
        asyncio.run(main(count))
        counts.append(looks[0])
    assert counts[1] < 6 * counts[0]


# An event loop on a daemon's thread reads without end; the thread of the steps began with another loop.
DAEMON = """
import asyncio, sys, threading
sys.path[:] = eval(sys.argv[1])
import fake_model
from scheduled_models import CONTEXT, KV_BLOCKS
from small_tokenizers import KINDS
from pyc.runtime.artifact.format import Generation
from pyc.runtime.model import Model
from pyc.runtime.text.tokenizer import Tokenizer

tokenizer = Tokenizer(KINDS["byte_level_bpe"]().to_str().encode())
info = fake_model.decoder_info(vocab_size=tokenizer.vocab_size, context=CONTEXT)
model = Model(info, Generation(), fake_model.FakeDecoder(info, kv_blocks=KV_BLOCKS), tokenizer, kv_blocks=KV_BLOCKS)
rounds = threading.Semaphore(0)

async def read(count):
    async with model.generate([5], max_tokens=count) as stream:
        async for _ in stream:
            pass
    rounds.release()

async def serve():
    while True:
        await read(20)

asyncio.run(read(2))
threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
for _ in range(4):
    rounds.acquire()
"""


@pytest.mark.slow
def test_a_process_ends_while_an_event_loop_of_a_daemon_reads() -> None:
    arguments = [sys.executable, "-c", DAEMON, repr(sys.path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_batch_is_cancelled_by_the_end_of_its_block(make: Make) -> None:
    model = make()

    async def first_tokens() -> list[int]:
        async with model.generate([[5], [6]], max_tokens=90) as batch:
            found = [(await anext(stream)).id for stream in batch]
        assert all(stream.is_at_end for stream in batch)
        async with aclosing(model.generate([[5], [6]], max_tokens=90)) as batch:
            assert [(await anext(stream)).id for stream in batch] == found
        assert all(stream.is_at_end for stream in batch)
        return found

    expected = [next(model.generate(prompt, max_tokens=1)).id for prompt in ([5], [6])]
    assert asyncio.run(first_tokens()) == expected


def test_without_an_event_loop_of_asyncio(make: Make) -> None:
    """As where another library runs coroutines."""
    with pytest.raises(RunError, match="no event loop of asyncio runs here"):
        make().generate([5], max_tokens=2).__anext__().send(None)


def test_where_no_thread_is_to_be_had(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RunError, match=r"can't start new thread; raise the limit of threads \(ulimit -u\)"):
            asyncio.run(read(model, [5]))
    assert asyncio.run(read(model, [8])) == alone(make, [8], 20)


@pytest.mark.parametrize("is_read_on", [False, True])
def test_a_fork_waits_for_the_end_of_a_step(is_read_on: bool, make: Make) -> None:
    """As a server that warms up with a time limit, and then forks; or that forks while a loop in a thread reads."""
    model, begun, end = make(), threading.Event(), threading.Event()
    run = model.executor.run

    def slow(name: str, bucket: int, inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        begun.set()
        time.sleep(0.02)
        return run(name, bucket, inputs)

    model.executor.run = slow  # type: ignore[method-assign]

    async def main() -> None:
        reading = asyncio.create_task(read(model, [5], 100))
        while not begun.is_set() or (is_read_on and not end.is_set()):
            await asyncio.sleep(0.001)
        reading.cancel()

    loop = threading.Thread(target=lambda: asyncio.run(main()))
    loop.start()
    if is_read_on:
        begun.wait(60)
    else:
        loop.join(60)
    assert in_a_child(lambda: list(model.generate([8], max_tokens=20)) == alone(make, [8], 20))
    end.set()
    loop.join(60)


def in_a_child(check: Callable[[], bool]) -> bool:
    """Whether a check holds in a forked child."""
    child = os.fork()
    if child == 0:
        try:
            is_right = check()
        except BaseException:  # noqa: BLE001 -- a child of the test must not go on as the suite
            is_right = False
        os._exit(0 if is_right else 1)
    deadline = time.monotonic() + 60
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return done[1] == 0


def test_a_child_that_was_forked_while_the_thread_lingered_reads_too(make: Make) -> None:
    model = make()
    asyncio.run(read(model, [5]))
    assert in_a_child(lambda: asyncio.run(read(model, [8])) == alone(make, [8], 20))
