"""The tokens of requests, as their callers take them: one by one, as text, from a coroutine, or several at once."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, overload

from pyc.runtime.errors import RunError
from pyc.runtime.generation.request import Request, Token
from pyc.runtime.generation.scheduler import Scheduler
from pyc.runtime.host.handle import ClosingHandle
from pyc.runtime.text.counted import counted

INTERRUPTED = "generate: an interruption ended this request and those given with it; ask again"


class _Submission:
    """Requests that enter the queue together, when the first token of any of them is asked for."""

    def __init__(self, scheduler: Scheduler, requests: Sequence[Request]) -> None:
        self.scheduler = scheduler
        self._requests: Sequence[Request] = requests
        self._all = tuple(weakref.ref(request) for request in requests)  # whose stream is forgotten is cancelled

    def begin(self) -> Scheduler:
        """Submit them: again where Ctrl-C came before all were in the queue, or two threads ask at once."""
        if self._requests:
            self.scheduler.submit(self._requests)
            self._requests = ()
        return self.scheduler

    def interrupt(self) -> None:
        """End those that go on: what is asked next would wait for them, though nobody reads them any more. Whoever does
        gets an error, and no text that looks whole."""
        for request in (each() for each in self._all):
            if request is not None and request.is_open:
                request.fail(RunError(INTERRUPTED))


class _Cancelled(ClosingHandle):
    """What the end of an `async with` block cancels, too."""

    async def aclose(self) -> None:
        """`close`, for contextlib.aclosing."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TokenStream(_Cancelled, Iterator[Token]):
    """The tokens that follow one prompt: an iterator, also for `async for`.

    Nothing is computed before the first is asked for. `close` cancels what is left; so does leaving a `with` (or
    `async with`) block, an error, and forgetting the stream. What iterating raises, `Model.generate` says.
    """

    _instead = "take its tokens or its text, which may be"

    def __init__(self, request: Request, submission: _Submission) -> None:
        self._request = request
        self._submission = submission
        self._is_closed = False

    def __repr__(self) -> str:
        """How far it is: <pyc.TokenStream: 12 tokens after 7 of the prompt, at its end>."""
        state = ", at its end" if self.is_at_end else "" if self.has_begun else ", not begun"
        made = counted(len(self._request.output), "token")
        return f"<pyc.TokenStream: {made} after {self.prompt_tokens} of the prompt{state}>"

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._request.prompt)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Token:
        if self._is_closed:
            raise StopIteration
        try:
            token = self._submission.begin().take(self._request)
        except BaseException as error:
            self.close()
            if isinstance(error, KeyboardInterrupt):
                self._submission.interrupt()
            raise
        if token is None or self._is_closed:
            raise StopIteration
        return token

    @property
    def is_at_end(self) -> bool:
        """Whether there is no further token and no error to come."""
        return self._is_closed or not self._request.has_more

    @property
    def has_begun(self) -> bool:
        """Whether the request has left the queue: it runs, or is over."""
        return self._is_closed or self._request.slot >= 0 or not self._request.is_open

    def text(self) -> str:
        """The text of all tokens that are left."""
        return "".join(token.text for token in self)

    def take_ready(self) -> list[Token]:
        """The tokens that are there, without waiting for one."""
        ready: list[Token] = []
        with suppress(IndexError):  # another thread may take the last
            while not self._is_closed:
                ready.append(self._request.ready.popleft())
        return ready

    def close(self) -> None:
        """Cancel the request; no token follows. Any thread may do so, at any time, and more than once."""
        self._is_closed = True
        self._request.close()

    # --- coroutines

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        """The next token. The event loop goes on meanwhile: a thread does the work, one for all coroutines."""
        while not self.is_at_end:
            with suppress(IndexError):  # none is ready, or another thread took it
                return self._request.ready.popleft()
            try:
                await self._submission.begin().wait_in_coroutine(self._request)
            except BaseException:
                self.close()
                raise
        raise StopAsyncIteration


class Batch(_Cancelled, Sequence[TokenStream]):
    """The streams of several prompts, in their order. Their requests run together, whichever is read first.

    `close`, and leaving a `with` (or `async with`) block, cancel what is left; so does an interruption while one of
    them is read by `for`. A coroutine that is cancelled may not be meant to end the others: its own stream ends alone.
    """

    _instead = TokenStream._instead

    def __init__(self, scheduler: Scheduler, requests: Sequence[Request]) -> None:
        submission = _Submission(scheduler, requests)
        self._streams = tuple(TokenStream(request, submission) for request in requests)

    @overload
    def __getitem__(self, index: int) -> TokenStream: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TokenStream]: ...
    def __getitem__(self, index: int | slice) -> TokenStream | Sequence[TokenStream]:
        return self._streams[index]

    def __len__(self) -> int:
        return len(self._streams)

    def stream(self) -> Iterator[tuple[int, Token]]:
        """Yield (index of the prompt, token) as tokens come, of whichever request."""
        waiting = deque(enumerate(self._streams))
        begun: list[tuple[int, TokenStream]] = []
        while waiting or begun:
            while waiting and (waiting[0][1].has_begun or not begun):
                begun.append(waiting.popleft())
            for index, stream in begun:
                for token in stream.take_ready():
                    yield index, token
            begun = [(index, stream) for index, stream in begun if not stream.is_at_end]
            if begun:
                index, stream = begun[0]
                for token in stream:
                    yield index, token
                    break

    def close(self) -> None:
        """Cancel all that is left."""
        for stream in self._streams:
            stream.close()
