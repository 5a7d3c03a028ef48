"""A request: a prompt and the tokens that follow it, with text, log-probabilities and the reason to end."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyc.runtime.errors import PycError, RunError
from pyc.runtime.executors.protocol import FloatArray, RowSampling
from pyc.runtime.generation.given_ids import checked_array, no_room_for_output
from pyc.runtime.generation.queued import Queued
from pyc.runtime.generation.sampling import Choice, Sampler, SamplingParams, TokenLogprob
from pyc.runtime.generation.session import Session
from pyc.runtime.generation.settings import MAX_TOKENS
from pyc.runtime.text.detokenizer import Decoder, Detokenizer
from pyc.runtime.text.stopping import StopResult, StopStrings

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    `text` is what may be shown now: the texts of all tokens, joined, are the generated text. It may be empty
    (half a character, or what may become a stop string) or belong to earlier tokens. `logprob` and
    `top_logprobs` are None and empty unless asked for. `finish_reason` is None except on the last token:
    "stop" for a stop string, or for a token without text, which is an end of sequence or a special one among the stop
    strings; "length" when max_tokens or the context is used up.
    """

    id: int
    text: str
    logprob: float | None
    top_logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason | None

    def __repr__(self) -> str:
        """Id and text, then what else is known: Token(17, ' cat', logprob=-0.25, finish_reason='stop')."""
        logprob = "" if self.logprob is None else f", logprob={self.logprob:.4g}"
        reason = "" if self.finish_reason is None else f", finish_reason={self.finish_reason!r}"
        return f"Token({self.id}, {self.text!r}{logprob}{reason})"


@dataclass(frozen=True, slots=True)
class RequestParams:
    """What to generate."""

    sampling: SamplingParams
    max_tokens: int | None
    stop: tuple[str, ...]
    eos_token_ids: frozenset[int]
    reuse_prefix: bool

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            object.__setattr__(self, "max_tokens", MAX_TOKENS.checked(self.max_tokens))  # no numpy from here on
        StopStrings(self.stop)  # refuses what is not usable before anything runs


class TextStream:
    """Tokens to text that may be shown: detokenisation, then stop strings."""

    def __init__(self, decoder: Decoder, context: Sequence[int], stop: Sequence[str]) -> None:
        self._detokenizer = Detokenizer(decoder, context=context)
        self._stops = StopStrings(stop)

    def add(self, token_id: int) -> StopResult:
        """The text that this token sets free, and whether a stop string is complete."""
        return self._stops.add(self._detokenizer.add(token_id))

    def finish(self) -> StopResult:
        """The text held back, when no more tokens come; a stop string may still be complete in it."""
        last = self._stops.add(self._detokenizer.finish())
        return last if last.stopped else StopResult(last.text + self._stops.finish(), False)


class Request(Queued):
    """One sequence: its prompt, what has been chosen after it, and the tokens that nobody has taken yet."""

    def __init__(
        self,
        prompt: Sequence[int],
        params: RequestParams,
        decoder: Decoder,
        *,
        continues_text: bool,
        context: int,
        vocab_size: int,
    ) -> None:
        """`continues_text`: the text goes on where the prompt's ends, so a leading space counts.

        Raises RunError when the prompt leaves no room in `context` tokens, or has an id outside the vocabulary.
        """
        room = context - len(prompt)
        if room < 1:
            raise no_room_for_output(prompt, context)
        checked_array(prompt, vocab_size, context)
        super().__init__(list(prompt), reuse_prefix=params.reuse_prefix)
        self.params = params
        self.output: list[int] = []
        self.ready: deque[Token] = deque()
        self._limit = room if params.max_tokens is None else min(params.max_tokens, room)
        self._vocab_size = vocab_size
        self._ends = params.eos_token_ids
        self._sampler: Sampler | None = None
        self._text = TextStream(decoder, prompt if continues_text else (), params.stop)
        self._is_choosing = False

    @property
    def is_ready(self) -> bool:
        """Whether a token is there."""
        return bool(self.ready)

    @property
    def has_more(self) -> bool:
        """Whether a token or an error is there or to come. Other threads may run steps meanwhile: the last token is
        ready before the request ends, so that is asked first."""
        return self.is_open or bool(self.ready) or self.error is not None

    @property
    def length(self) -> int:
        """Tokens of the prompt and the output that belong into the cache before the next one is chosen."""
        return len(self.prompt) + max(len(self.output) - 1, 0)

    def row_sampling(self) -> RowSampling | None:
        """How an executor chooses the next token; None where that takes logits. Asked again before `choose`, it says
        the same."""
        if self._sampler is None:
            self._sampler = Sampler(self.params.sampling, self._vocab_size, self.prompt)
        return self._sampler.row(self.slot)

    def feed(self, session: Session, start: int, stop: int, bucket: int) -> None:
        """Run a piece of the prompt, and choose the first token behind the last one."""
        ids = self.ids[start:stop]
        if stop < len(self.prompt):
            session.prefill_chunk(ids, self.slot, bucket)
        elif session.samples:
            self.choose(session.prefill_next(ids, self.slot, bucket, self.row_sampling()))
        else:
            self.choose(session.logits(session.prefill_chunk(ids, self.slot, bucket))[0])

    def choose(self, found: FloatArray | int) -> None:
        """Takes the next token, which an executor chose by `row_sampling`, or chooses it by logits f32[vocab]; what is
        wrong with them ends this request and no other."""
        if self._is_choosing:
            self.fail(RunError("generate: an interruption struck while this request's token was chosen; ask again"))
            return
        self._is_choosing = True
        try:
            if self._sampler is None:
                self._sampler = Sampler(self.params.sampling, self._vocab_size, self.prompt)
            choice = self._sampler.take(found) if isinstance(found, int) else self._sampler.sample(found)
            token = self._described(choice, is_last=len(self.output) + 1 == self._limit)
        except PycError as error:
            self.fail(error)
            return
        self.output.append(choice.id)
        self.ready.append(token)
        if token.finish_reason is not None:
            self.close()
        else:
            self.told()
        self._is_choosing = False

    def _described(self, choice: Choice, *, is_last: bool) -> Token:
        """The chosen token with its text and, when it is the last, why."""
        reason: FinishReason | None = None
        if choice.id in self._ends:
            text = self._text.finish().text
            reason = "stop"
        else:
            text, stopped = self._text.add(choice.id)
            if stopped:
                reason = "stop"
            elif is_last:
                rest = self._text.finish()
                text += rest.text
                reason = "stop" if rest.stopped else "length"
        return Token(choice.id, text, choice.logprob, choice.alternatives, reason)
