"""runtime/host/turns.py: a lock that a thread held when the process forked is lost in the child, and no other."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from pyc.runtime.errors import RunError
from pyc.runtime.host import turns as turns_module
from pyc.runtime.host.turns import Turns

FORK = """
import os, signal, sys, threading
from pyc.runtime.errors import RunError
from pyc.runtime.host.turns import Turns

signal.alarm(60)
held, own, free, go_on = Turns(), Turns(), Turns(), threading.Event()
taken = threading.Event()

def hold():
    with held.lock:
        taken.set()
        go_on.wait()

thread = threading.Thread(target=hold)
thread.start()
taken.wait()
with own.lock:
    child = os.fork()
    if not child:
        signal.alarm(20)
        with own.lock, free.lock:
            pass
        try:
            with held.lock:
                os._exit(1)
        except RunError as error:
            os._exit(0 if "forked while another thread" in str(error) else 2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
go_on.set()
thread.join()
with held.lock:
    sys.exit(code)
"""


def test_a_lock_that_nobody_gives_back_is_an_error() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_thread_enters_again_and_others_wait() -> None:
    turns, entered = Turns(), threading.Event()

    def enter() -> None:
        with turns.lock:
            entered.set()

    with turns.lock, turns.lock:
        thread = threading.Thread(target=enter)
        thread.start()
        assert not entered.wait(0.05)
    assert entered.wait(30)
    thread.join()


def test_a_lock_that_another_thread_holds_is_found() -> None:
    """As in a child, where that thread is not there."""
    turns, taken, go_on = Turns(), threading.Event(), threading.Event()

    def hold() -> None:
        with turns.lock:
            taken.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    turns.after_fork()
    with pytest.raises(RunError, match=r"forked while another thread .* child$"):
        _ = turns.lock
    go_on.set()
    thread.join()


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_turn_gives_what_the_work_gives() -> None:
    turns = Turns()
    assert turns.run(divmod, 17, 5) == (3, 2)
    with pytest.raises(ZeroDivisionError):
        turns.run(divmod, 1, 0)
    assert not turns.wait(), "nobody is at it any more"


def test_who_comes_later_waits_for_the_end_of_a_turn_and_not_for_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "PATIENCE_S", 60.0)
    turns, begun, go_on, waited = Turns(), threading.Event(), threading.Event(), []

    def work() -> None:
        begun.set()
        go_on.wait(60)

    with turns.lock:  # the turn is announced, and not begun
        first = in_a_thread(lambda: turns.run(work))
        while turns._announced is None:
            time.sleep(0.001)
        second = in_a_thread(lambda: waited.append(turns.wait()))
        second.join(0.05)
        assert not (waited or begun.is_set())
    begun.wait(60)
    second.join(0.05)
    assert not waited
    go_on.set()
    second.join(60)
    assert waited == [True]
    first.join()


def test_a_thread_does_not_wait_for_its_own_turn() -> None:
    turns = Turns()
    assert turns.run(turns.wait) is False
    assert turns.run(turns.run, turns.wait) is False


def test_an_end_that_nobody_tells_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may strike between the announcement and what tells its end."""
    monkeypatch.setattr(turns_module, "PATIENCE_S", 0.01)
    turns, lost = Turns(), threading.Lock()
    lost.acquire()
    turns._announced = -1, lost
    assert turns.wait() is False
    assert turns.run(lambda: 5) == 5
    turns._announced = -1, lost
    turns.after_fork()
    assert turns._announced is None, "the thread is not there any more"
