"""runtime/host/turns.py: a lock that a thread held when the process forked is lost in the child, and no other."""

import subprocess
import sys
import threading

import pytest

from pyc.runtime.errors import RunError
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
