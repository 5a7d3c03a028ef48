"""Runs the requests of one model together: steps of all that decode, and pieces of prompts between them.

Requests are of tokens that follow a prompt, or of the logits behind each of its tokens, which are prompts alone.

There is no thread behind it, but for coroutines (`waiting_coroutines`). Whoever wants a token of a request, and finds
none ready, runs the next step, of all requests; the tokens of the others lie ready when somebody asks for them. So a
single request costs no change of threads, Ctrl-C ends what the program's own thread does, and requests that threads or
tasks share one model for are batched nevertheless (ADR 23).

- A request waits in a queue until a slot of the session is free.
- A prompt is fed in the pieces that it would be fed in alone, one a turn; a turn of decoding comes after each, so that
  a long prompt delays the others by one piece. Rows of prompts and of decoding are not mixed in a run: kernels round
  prompts differently (ADR 10), and a request has to give the tokens that it gives alone.
- Decoding runs at most READ_AHEAD tokens ahead of whoever takes them, and on to the end where a request waits for a
  slot.

Only weak references are kept: a request that nobody holds any more has left.

A thread that finds another at a step waits for the end of that step, and then looks whether its token lies ready
(`host/turns.py`).
"""

import sys
import weakref
from collections import deque
from collections.abc import Iterable, Sequence

from pyc.runtime.errors import PycError, RunError
from pyc.runtime.executors.protocol import FloatArray
from pyc.runtime.generation.given_ids import TokenIds
from pyc.runtime.generation.logits_request import LogitsRequest
from pyc.runtime.generation.queued import Queued
from pyc.runtime.generation.request import Request, Token
from pyc.runtime.generation.session import Session
from pyc.runtime.generation.slots import SlotOwner
from pyc.runtime.generation.waiting_coroutines import WaitingCoroutines
from pyc.runtime.host.handle import Handle

READ_AHEAD = 32


class Scheduler(Handle):
    """The requests of one session. Threads may share it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._waiting: deque[weakref.ref[Queued]] = deque()
        self._running: list[weakref.ref[Queued]] = []
        self._prefilled_last = False
        self._closed: str | None = None
        self._coroutines = WaitingCoroutines()

    def submit(self, requests: Sequence[Queued]) -> None:
        """Put requests at the end of the queue. Their work is done while tokens of any request are taken.

        A request that is submitted again, since an interruption came, is taken once.
        """
        self._waiting.extend(weakref.ref(request) for request in requests)
        if self._closed is not None:
            self.close(self._closed)

    def close(self, reason: str) -> None:
        """End every request that is open or submitted later with a RunError, and let the executor go. Any thread may
        do so, at any time."""
        self._closed = reason
        self.session.close(reason)
        for reference in (*self._waiting, *self._running):
            request = reference()
            if request is not None and request.is_open:
                request.fail(RunError(reason))

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

    def logits(self, token_ids: TokenIds) -> FloatArray:
        """Logits f32[tokens, vocab] behind each token of a sequence, which waits for a slot and is fed in pieces as a
        prompt is. Raises RunError and ArtifactError."""
        session = self.session
        ids = session.check_ids(token_ids)
        request = LogitsRequest(ids, context=session.context, hidden_size=session.hidden_size)
        try:
            self.submit([request])
            self.wait(request)
        finally:
            request.close()
        assert request.logits is not None
        return request.logits

    def wait(self, request: Queued) -> None:
        """Run steps until a submitted request has what is asked for, such as a token, or nothing is to come. Raises as
        `take` does."""
        while not request.is_served:
            self._advance(request)
        request.raise_error()

    async def wait_in_coroutine(self, request: Queued) -> None:
        """`wait`, while a thread runs the steps: the event loop goes on."""
        await self._coroutines.wait(request, self._advance)
        request.raise_error()

    def _advance(self, request: Queued) -> None:
        """Wait for the step that another thread runs, or run one."""
        turns = self.session.turns
        if not turns.wait():
            turns.run(self._run_step, request)

    def _run_step(self, request: Queued) -> None:
        """Run a step, unless another thread did while this one waited."""
        session = self.session
        if request.is_served:
            return
        runner = SlotOwner()
        try:
            session.begin(runner)
            self._step()
        finally:
            runner.has_left = True

    def _step(self) -> None:
        before: list[Queued] = []
        if self._waiting:
            before = self._live()
            self._admit()
        running = self._live()
        most = READ_AHEAD if not self._waiting else sys.maxsize
        prompt: Queued | None = None
        decoding: list[Request] = []
        for request in running:
            if not isinstance(request, Request) or not request.output:
                prompt = prompt or request
            elif len(request.ready) < most:
                decoding.append(request)
        if prompt is not None and not (decoding and self._prefilled_last):
            self._prefilled_last = True
            self._prefill(prompt)
        elif decoding:
            self._prefilled_last = False
            self._decode(decoding)
        elif self._waiting and not running and not before:  # those before may have been closed since, by a thread
            raise self.session.all_in_use()

    def _admit(self) -> None:
        """Give slots to requests that wait, in their order."""
        session = self.session
        while self._waiting:
            request = self._waiting[0]()
            owner = None if request is None else request.owner  # which another thread may take away
            if request is not None and owner is not None and request not in self._live():
                prefix = request.prompt[:-1] if request.reuse_prefix else ()
                slot = session.take_slot(prefix, owner=owner)
                if slot is None:
                    return
                self._begin(request, slot)
            self._waiting.popleft()

    def _begin(self, request: Queued, slot: int) -> None:
        session = self.session
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

    def _live(self) -> list[Queued]:
        """The requests that have slots; those that are gone or done leave the list."""
        live: list[Queued] = []
        for reference in self._running:
            request = reference()
            if request is not None and request.owner is not None:
                live.append(request)
        if len(live) != len(self._running):
            self._running = [weakref.ref(request) for request in live]
        return live

    def _prefill(self, request: Queued) -> None:
        """Feed the next piece of a prompt."""
        session, slot = self.session, request.slot
        fed = session.length(slot)
        start = max(position for position in request.chunks if position <= fed)
        if fed > start:  # an interruption came before the token
            session.rewind(fed - start, slot)
        if start == min(request.chunks):
            session.check_file()
        bucket = request.chunks[start]
        request.feed(session, start, min(start + bucket, len(request.prompt)), bucket)

    def _decode(self, requests: Sequence[Request]) -> None:
        session = self.session
        for request in requests:
            # An interruption came between this request's step and its token: the step is repeated.
            if (fed := session.length(request.slot)) > request.length:
                session.rewind(fed - request.length, request.slot)
        slots, ids = [request.slot for request in requests], [request.output[-1] for request in requests]
        found: Iterable[int | FloatArray]
        if session.samples:
            found = session.next_tokens(ids, slots, [request.row_sampling() for request in requests])
        else:
            found = session.decode(ids, slots)
        for request, row in zip(requests, found, strict=True):
            request.choose(row)
