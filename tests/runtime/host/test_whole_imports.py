"""runtime/host/whole_imports.py: handlers of signals that arrive during an import run behind it, none is lost."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from pyc.runtime.host import whole_imports as module
from pyc.runtime.host.whole_imports import whole_imports

NUMBERS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)


class EndedError(ValueError):
    """As a handler raises that somebody wrote for a time limit."""


@pytest.fixture
def calls() -> Iterator[list[int]]:
    made: list[int] = []

    def handle(number: int, frame: object) -> None:
        made.append(number)
        raise EndedError(number)

    former = {number: signal.signal(number, handle) for number in NUMBERS}
    yield made
    for number, handler in former.items():
        signal.signal(number, handler)


def test_handlers_run_behind_the_block(calls: list[int]) -> None:
    handlers = [signal.getsignal(number) for number in NUMBERS]
    seen = []

    def work() -> None:
        with whole_imports():
            os.kill(os.getpid(), signal.SIGUSR2)
            os.kill(os.getpid(), signal.SIGUSR1)
            seen.extend([list(calls)])

    with pytest.raises(EndedError) as caught:
        work()
    assert seen == [[]] and calls == [signal.SIGUSR2, signal.SIGUSR1]
    assert caught.value.args == (signal.SIGUSR2,)
    assert [signal.getsignal(number) for number in NUMBERS] == handlers


@pytest.mark.parametrize("strikes", range(1, 12))
def test_a_signal_while_handlers_are_installed_again_loses_none(
    strikes: int, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [signal.getsignal(number) for number in NUMBERS]
    install, count = module._signal.signal, 0

    class Struck:
        valid_signals, getsignal = module._signal.valid_signals, module._signal.getsignal

        @staticmethod
        def signal(number: int, handler: Any) -> object:
            nonlocal count
            count += 1
            former = install(number, handler)
            if count == strikes:
                os.kill(os.getpid(), signal.SIGUSR1)
            return former

    monkeypatch.setattr(module, "_signal", Struck)
    with contextlib.suppress(EndedError), whole_imports():
        pass
    assert calls == ([signal.SIGUSR1] if count >= strikes else [])
    assert [signal.getsignal(number) for number in NUMBERS] == handlers
