"""Runs the requests of one model together: steps of all that decode, and pieces of prompts between them.

There is no thread behind it. Whoever wants a token of a request, and finds none ready, runs the next step, of all
requests; the tokens of the others lie ready when somebody asks for them. So a single request costs no change of
threads, Ctrl-C ends what the program's own thread does, and requests that threads or tasks share one model for are
batched nevertheless (ADR 23).

- A request waits in a queue until a slot of the session is free.
- A prompt is fed in the pieces that it would be fed in alone, one a turn; a turn of decoding comes after each, so that
  a long prompt delays the others by one piece. Rows of prompts and of decoding are not mixed in a run: kernels round
  prompts differently (ADR 10), and a request has to give the tokens that it gives alone.
- Decoding runs at most READ_AHEAD tokens ahead of whoever takes them, and on to the end where a request waits for a
  slot.

Only weak references are kept: a request that nobody holds any more has left.

A thread that finds another at a step waits for the end of that step, not for the lock: its token may lie ready then,
and the lock may be taken again before it wakes.
"""

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from pyc.runtime.errors import PycError
from pyc.runtime.generation.request import Request, Token
from pyc.runtime.generation.session import Session, SlotOwner

READ_AHEAD = 32
PATIENCE_S = 0.1

Result = TypeVar("Result")


class _Turn:
    """What a thread does, or is about to do, under the session's lock, for others to wait until it is over."""

    __slots__ = ("_going_on", "_thread")

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._going_on = threading.Lock()
        self._going_on.acquire()

    def end(self) -> None:
        self._going_on.release()

    def was_waited_for(self) -> bool:
        """Whether it came to an end meanwhile. False when it is this thread's own, which a signal handler must not wait
        for, and after PATIENCE_S: an interruption may have struck before `end`."""
        if self._thread == threading.get_ident() or not self._going_on.acquire(timeout=PATIENCE_S):
            return False
        self._going_on.release()
        return True


class Scheduler:
    """The requests of one session. Threads may share it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: deque[weakref.ref[Request]] = deque()
        self._running: list[weakref.ref[Request]] = []
        self._prefilled_last = False
        self._turn: _Turn | None = None

    def submit(self, requests: Sequence[Request]) -> None:
        """Puts requests at the end of the queue. Their work is done while tokens of any request are taken.

        A request that is submitted again, since an interruption came, is taken once.
        """
        self._waiting.extend(weakref.ref(request) for request in requests)

    def take(self, request: Request) -> Token | None:
        """The next token of a submitted request; None after the last.

        Raises RunError and ArtifactError for what went wrong with this request or with the run that it had a part in.
        """
        while True:
            self.wait(request)
            try:
                return request.ready.popleft()
            except IndexError:  # it ended, or another thread took the token
                if not request.has_more:
                    return None

    def wait(self, request: Request) -> None:
        """Runs steps until a token of a submitted request is ready, or none is to come. Raises as `take` does."""
        while request.is_open and not request.ready:
            turn = self._turn
            if turn is None or not turn.was_waited_for():
                self.run_alone(lambda: self._advance(request))
        if request.error is not None and not request.ready:
            raise request.error

    def run_alone(self, work: Callable[[], Result]) -> Result:
        """Calls `work` with the session's lock, before the next step of threads that come later."""
        turn = self._turn = _Turn()
        try:
            with self._session.lock:
                return work()
        finally:
            if self._turn is turn:
                self._turn = None
            turn.end()

    def _advance(self, request: Request) -> None:
        """Runs a step, unless another thread did while this one waited."""
        session = self._session
        if request.ready or not request.is_open:
            return
        runner = SlotOwner()
        session.begin(runner)
        try:
            self._step()
        finally:
            session.end()

    def _step(self) -> None:
        self._admit()
        running = self._live()
        prompts = [request for request in running if not request.output]
        most = READ_AHEAD if not self._waiting else sys.maxsize
        decoding = [request for request in running if request.output and len(request.ready) < most]
        if prompts and not (decoding and self._prefilled_last):
            self._prefilled_last = True
            self._prefill(prompts[0])
        elif decoding:
            self._prefilled_last = False
            self._decode(decoding)
        elif self._waiting and not running:
            raise self._session.all_in_use()

    def _admit(self) -> None:
        """Gives slots to requests that wait, in their order."""
        session = self._session
        while self._waiting:
            request = self._waiting[0]()
            if request is not None and request.owner is not None and request not in self._live():
                prefix = request.prompt[:-1] if request.params.reuse_prefix else ()
                slot = session.take_slot(prefix, owner=request.owner)
                if slot is None:
                    return
                self._begin(request, slot)
            self._waiting.popleft()

    def _begin(self, request: Request, slot: int) -> None:
        session = self._session
        start = session.length(slot)
        try:
            request.ids = session.check_ids(request.prompt)
            session.reserve(slot, len(request.prompt) - start)
        except PycError as error:
            request.fail(error)
            return
        request.slot = slot
        for bucket in session.plan(len(request.prompt) - start):
            request.chunks[start] = bucket
            start += bucket
        self._running.append(weakref.ref(request))

    def _live(self) -> list[Request]:
        """The requests that have slots; those that are gone or done leave the list."""
        found = [request for request in (reference() for reference in self._running) if request is not None]
        live = [request for request in found if request.is_open]
        if len(live) != len(self._running):
            self._running = [weakref.ref(request) for request in live]
        return live

    def _prefill(self, request: Request) -> None:
        """Feeds the next piece of a prompt, and chooses the first token after the last one."""
        session, slot = self._session, request.slot
        fed = session.length(slot)
        start = max(position for position in request.chunks if position <= fed)
        if fed > start:  # an interruption came before the token
            session.rewind(fed - start, slot)
        if start == min(request.chunks):
            session.check_file()
        bucket = request.chunks[start]
        stop = min(start + bucket, len(request.prompt))
        hidden = session.prefill_chunk(request.ids[start:stop], slot, bucket)
        if stop == len(request.prompt):
            request.choose(session.logits(hidden)[0])

    def _decode(self, requests: Sequence[Request]) -> None:
        session = self._session
        for request in requests:
            # An interruption came between this request's step and its token: the step is repeated.
            if (fed := session.length(request.slot)) > request.length:
                session.rewind(fed - request.length, request.slot)
        slots = [request.slot for request in requests]
        logits = session.decode([request.output[-1] for request in requests], slots)
        for request, row in zip(requests, logits, strict=True):
            request.choose(row)
