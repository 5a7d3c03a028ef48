"""A signal that interrupts nothing is noticed all the same."""

import os
import signal
import threading

import pytest

from pyc.commands.waiting import noticing_signals


class NoticedError(Exception):
    """What the handler raises."""


def test_a_signal_that_another_thread_takes_ends_the_wait():
    def raise_it(number, frame):
        raise NoticedError

    reading, writing = os.pipe()
    former = signal.signal(signal.SIGUSR1, raise_it), signal.getsignal(signal.SIGURG)
    threads = threading.active_count()
    gives_up = threading.Timer(60, os.write, (writing, b"the wait would last for ever"))
    # As when it arrives in the moment before the call: Python knows of it, the call does not.
    elsewhere = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))

    def wait():
        with noticing_signals():
            elsewhere.start()
            os.read(reading, 1)

    try:
        gives_up.start()
        with pytest.raises(NoticedError):
            wait()
    finally:
        gives_up.cancel()
        gives_up.join()
        elsewhere.join()
        signal.signal(signal.SIGUSR1, former[0])
        os.close(reading)
        os.close(writing)
    assert signal.getsignal(signal.SIGURG) == former[1]
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads


def test_elsewhere_than_in_the_main_thread_it_does_nothing():
    def enter():
        with noticing_signals():
            seen.append(signal.getsignal(signal.SIGURG))

    seen = []
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]
