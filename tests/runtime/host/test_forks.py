"""A child of a fork never waits for a thread that it lacks, whatever that thread held at the moment of the fork."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import byte_level_bpe

from pyc.runtime.errors import RunError
from pyc.runtime.executors.cpu import guard as guards
from pyc.runtime.executors.cpu.libraries import MemoryLibrary
from pyc.runtime.host import forks, unfinished
from pyc.runtime.host.forks import ForkSafeLock
from pyc.runtime.host.made_once import made_once
from pyc.runtime.sources.local import open_file
from pyc.runtime.sources.sequential import SequentialSource
from pyc.runtime.text import tokenizer as tokenizers
from pyc.runtime.text.tokenizer import Tokenizer

LONGEST_S = 20


def code_of_child(work: Callable[[], object]) -> int:
    """The exit code of a child that does `work` and nothing of pytest; -14 where it waits for ever."""
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LONGEST_S)
            os._exit(0 if work() in (None, True) else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Moment:
    """What another thread does and does not end before it is told: `wait` is where it stands."""

    def __init__(self) -> None:
        self.begun, self._over = threading.Event(), threading.Event()

    def wait(self) -> None:
        self.begun.set()
        self._was_told = self._over.wait(60)

    @contextmanager
    def of(self, work: Callable[[], object]) -> Iterator[None]:
        """A thread is in the middle of `work`, which comes to `wait`."""
        thread = threading.Thread(target=work)
        thread.start()
        try:
            assert self.begun.wait(60)
            yield
        finally:
            self._over.set()
            thread.join()
        assert self._was_told, "the test waited for this thread"


def held(lock: ForkSafeLock, moment: Moment) -> Callable[[], None]:
    def hold() -> None:
        with lock.lock:
            moment.wait()

    return hold


def enters(lock: ForkSafeLock) -> bool:
    with lock.lock:
        return True


@pytest.mark.parametrize("make", [threading.RLock, threading.Lock])
def test_a_child_has_a_lock_of_its_own(make: Any) -> None:
    lock, moment = ForkSafeLock(make=make), Moment()
    with moment.of(held(lock, moment)):
        assert code_of_child(lambda: enters(lock)) == 0
        assert not lock.lock.acquire(blocking=False), "the parent's is the other thread's still"
    assert enters(lock)


def test_a_lock_that_nobody_holds_is_free_in_both() -> None:
    lock, entered = ForkSafeLock(60.0), threading.Event()
    assert code_of_child(lambda: enters(lock)) == 0
    thread = threading.Thread(target=lambda: enters(lock) and entered.set())
    thread.start()
    assert entered.wait(60), "the fork gave it back"
    thread.join()


def test_the_thread_that_forks_keeps_what_it_holds() -> None:
    lock = ForkSafeLock()

    def in_a_thread() -> bool:
        got: list[bool] = []
        thread = threading.Thread(target=lambda: got.append(lock.lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return got == [False]

    with lock.lock:
        assert code_of_child(in_a_thread) == 0
        assert in_a_thread()


def test_a_fork_waits_for_what_takes_a_moment() -> None:
    """So that the child does not meet it half done."""
    lock, moment, done = ForkSafeLock(60.0), Moment(), []

    def change() -> None:
        with lock.lock:
            moment.wait()
            done.append(True)

    with moment.of(change):
        before = lock.before_fork
        lock.before_fork = lambda: (moment._over.set(), before())[1]  # type: ignore[method-assign]
        assert code_of_child(lambda: done == [True] and enters(lock)) == 0


def test_a_signal_handler_that_raises_when_the_lock_is_taken() -> None:
    """A fork goes on after that, and gives back what it took."""
    lock, raised = ForkSafeLock(make=threading.Lock), []

    def interrupt(frame: object, event: str, function: object) -> None:
        """As a handler does: when a call has returned, before the next instruction."""
        if event == "c_return" and lock.lock.locked() and not raised:
            raised.append(function)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            lock.before_fork()
    finally:
        sys.setprofile(None)
    assert raised and lock.lock.locked()
    lock.after_fork_in_parent()
    assert not lock.lock.locked()


def test_an_object_is_told_in_the_child_alone() -> None:
    class Told:
        forks = 0

        def after_fork(self) -> None:
            self.forks += 1

    one = Told()
    forks.tell(one)
    assert code_of_child(lambda: one.forks == 1) == 0
    assert one.forks == 0


class Holder:
    def __init__(self, make: Callable[[], int]) -> None:
        self.make = make

    @made_once
    def value(self) -> int:
        """The value."""
        return self.make()


def test_an_attribute_is_made_once() -> None:
    made: list[int] = []
    one = Holder(lambda: made.append(5) or 5)  # type: ignore[func-returns-value]
    threads = [threading.Thread(target=lambda: one.value) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.value == 5 and made == [5] and vars(one).keys() == {"make", "value"}
    assert Holder.value.__doc__ == "The value."


def test_an_attribute_that_cannot_be_made_is_tried_again() -> None:
    answers = iter([0, 4])
    one = Holder(lambda: 1 // next(answers) or 7)
    with pytest.raises(ZeroDivisionError):
        _ = one.value
    assert one.value == 7 and vars(one).keys() == {"make", "value"}


def test_who_waits_for_one_that_fails_makes_it_alone() -> None:
    """The lock stays that others wait for, and so who comes later waits for them."""
    locks: list[object] = []

    def make() -> int:
        locks.append(vars(one)["making value"])
        return 1 // (len(locks) - 1)

    one = Holder(make)
    with pytest.raises(ZeroDivisionError):
        _ = one.value
    assert one.value == 1 and locks[0] is locks[1]


def test_objects_and_children_do_not_wait_for_the_attribute_of_another() -> None:
    moment = Moment()
    slow, other = Holder(lambda: moment.wait() or 1), Holder(lambda: 2)  # type: ignore[func-returns-value]

    def made_here() -> bool:
        slow.make = lambda: 3
        return slow.value == 3 and other.value == 2

    with moment.of(lambda: slow.value):
        assert other.value == 2
        assert code_of_child(made_here) == 0
    assert slow.value == 1


def test_a_tokenizer_that_another_thread_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python 3.11 the first tokenization of one model waited for another's, and a child did for ever."""
    document, moment, parse = byte_level_bpe().to_str().encode(), Moment(), tokenizers._parse
    parse(document)  # the library is imported
    slow, other, expected = Tokenizer(document), Tokenizer(document), Tokenizer(document).encode("a b")

    def slowly(document: bytes) -> Any:
        moment.wait()
        return parse(document)

    monkeypatch.setattr(tokenizers, "_parse", slowly)
    with moment.of(lambda: slow.encode("a")):
        monkeypatch.setattr(tokenizers, "_parse", parse)
        assert code_of_child(lambda: slow.encode("a b") == expected == other.encode("a b")) == 0
        assert other.encode("a b") == expected


class FakeLibrary:
    """A library that guards: what Guard calls of it."""

    def pyc_guard(self, start: int, size: int, descriptor: int) -> int:
        return 1

    def pyc_unguard(self, lost: int) -> None:
        pass

    def pyc_watch(self, lost: int) -> None:
        pass


def test_a_guard_that_another_thread_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m").write_bytes(b"abc")
    monkeypatch.setattr(guards._lock, "_patience_s", 0.01)
    monkeypatch.setattr(guards, "_guarding", [FakeLibrary()])
    moment = Moment()

    def guard() -> None:
        file = open_file(str(tmp_path / "m"), "mmap").hold()
        assert file is not None
        guards.Guard(FakeLibrary(), file).release()  # type: ignore[arg-type]

    with moment.of(held(guards._lock, moment)):
        assert code_of_child(guard) == 0
    guard()


def test_a_library_whose_threads_another_thread_ends() -> None:
    library, moment = MemoryLibrary(None, -1), Moment()  # type: ignore[arg-type]  # the process itself
    library.pyc_stop = moment.wait
    with moment.of(library.stop):
        assert code_of_child(library.stop) == 0


def test_what_another_thread_is_about_to_make() -> None:
    moment = Moment()

    def make() -> None:
        with unfinished.making():
            moment.wait()

    def makes() -> bool:
        with unfinished.making():
            return True

    with moment.of(make):
        assert code_of_child(makes) == 0


def test_bytes_that_another_thread_waits_for() -> None:
    """They are the parent's: a child that read them would take them from it."""
    moment, ended = Moment(), []
    data = iter([b"ab", b"cd", b""])

    def read(target: memoryview) -> int:
        piece = next(data)
        if piece == b"cd":
            moment.wait()
        target[: len(piece)] = piece
        return len(piece)

    source, other = (SequentialSource("pipe", read, 4, lambda: ended.append(True)) for _ in range(2))
    source.read_into(0, memoryview(bytearray(2)))

    def refused() -> bool:
        for one in (source, other):
            with pytest.raises(RunError, match="this process was forked"):
                one.read_into(2, memoryview(bytearray(2)))
            one.close()
        return not ended

    whole = bytearray(4)
    with moment.of(lambda: source.read_into(0, memoryview(whole))):
        assert code_of_child(refused) == 0
    assert bytes(whole) == b"abcd"
