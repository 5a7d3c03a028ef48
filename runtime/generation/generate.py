"""One generation: prompt in, tokens out, with text, log-probabilities and the reason to end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pyc.runtime.arguments import integer
from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import RunError
from pyc.runtime.generation.sampling import Choice, Sampler, SamplingParams, TokenLogprob
from pyc.runtime.generation.session import Session, SlotOwner
from pyc.runtime.text.detokenizer import Decoder, Detokenizer
from pyc.runtime.text.stopping import StopResult, StopStrings

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token.

    `text` is what may be shown now: the texts of all tokens, joined, are the generated text. It may be empty
    (half a character, or what may become a stop string) or belong to earlier tokens. `logprob` and
    `top_logprobs` are None and empty unless asked for. `finish_reason` is None except on the last token:
    "stop" for an end-of-sequence token (which has no text) or a stop string, "length" when max_tokens or the
    context is used up.
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
class Request:
    """What to generate. `continues_text`: the text goes on where the prompt's ends, so a leading space
    counts."""

    sampling: SamplingParams
    max_tokens: int | None
    stop: tuple[str, ...]
    eos_token_ids: frozenset[int]
    continues_text: bool
    reuse_prefix: bool

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            limit = integer(self.max_tokens, "max_tokens", "a positive integer, or None for no limit", low=1)
            object.__setattr__(self, "max_tokens", limit)  # numpy's integers are ints from here on
        StopStrings(self.stop)  # refuses what is not usable before anything runs


@dataclass(frozen=True, slots=True)
class SamplingOverrides:
    """What a caller sets; None leaves it to the artifact's generation defaults."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None


def resolve_sampling(defaults: Generation, overrides: SamplingOverrides) -> SamplingParams:
    """The parameters of one generation. Raises RunError on nonsense.

    Without a temperature it is greedy, unless the model's defaults say do_sample or the caller sets top_k,
    top_p or min_p. When it samples, what the caller leaves open comes from the model's defaults, then 1.0,
    off, off, off. The model's repetition penalty holds for greedy decoding too.
    """
    narrows = any(value is not None for value in (overrides.top_k, overrides.top_p, overrides.min_p))
    temperature = overrides.temperature
    if temperature is None:
        samples = bool(defaults.do_sample) or narrows
        temperature = _pick(None, defaults.temperature, 1.0) if samples else 0.0
    top_k = overrides.top_k if overrides.top_k is not None else defaults.top_k or 0
    return SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=_pick(overrides.top_p, defaults.top_p, 1.0),
        min_p=_pick(overrides.min_p, defaults.min_p, 0.0),
        repetition_penalty=_pick(overrides.repetition_penalty, defaults.repetition_penalty, 1.0),
        frequency_penalty=overrides.frequency_penalty,
        presence_penalty=overrides.presence_penalty,
        seed=overrides.seed,
        logprobs=overrides.logprobs,
    )


def _pick(override: float | None, default: str | None, neutral: float) -> float:
    if override is not None:
        return override
    return neutral if default is None else float(default)


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


def generate_tokens(session: Session, decoder: Decoder, prompt: Sequence[int], request: Request) -> Iterator[Token]:
    """Yields the tokens that follow `prompt`; the last has a finish_reason.

    A slot of the session is held from the first token until the iterator ends or is closed. Raises RunError
    when the prompt is empty, has ids outside the vocabulary, or fills the context.
    """
    room = session.context - len(prompt)
    if room < 1:
        raise RunError(
            f"context: the prompt's {len(prompt)} tokens leave no room in this model's "
            f"context of {session.context}; shorten the prompt, or build or load with a larger context"
        )
    limit = room if request.max_tokens is None else min(request.max_tokens, room)
    owner = SlotOwner()
    with session.lock:
        slot = session.acquire(prompt[:-1] if request.reuse_prefix else (), owner=owner)
    try:
        with session.lock:
            session.begin(owner)
            try:
                hidden = session.prefill(prompt[session.length(slot) :], slot)
                sampler = Sampler(request.sampling, session.vocab_size, prompt)
                choice = sampler.sample(session.logits(hidden)[0])
            finally:
                session.end()
        stream = TextStream(decoder, prompt if request.continues_text else (), request.stop)
        for produced in range(1, limit + 1):
            token = _describe(choice, stream, request.eos_token_ids, is_last=produced == limit)
            yield token
            if token.finish_reason is not None:
                return
            with session.lock:
                session.begin(owner)
                try:
                    hidden = session.step((choice.id,), (slot,))
                    choice = sampler.sample(session.logits(hidden)[0])
                finally:
                    session.end()
    finally:
        session.release(slot)


def _describe(choice: Choice, stream: TextStream, eos_token_ids: frozenset[int], *, is_last: bool) -> Token:
    """The chosen token with its text and, when it is the last, why."""
    reason: FinishReason | None = None
    if choice.id in eos_token_ids:
        text = stream.finish().text
        reason = "stop"
    else:
        shown = stream.add(choice.id)
        text = shown.text
        if shown.stopped:
            reason = "stop"
        elif is_last:
            rest = stream.finish()
            text += rest.text
            reason = "stop" if rest.stopped else "length"
    return Token(choice.id, text, choice.logprob, choice.alternatives, reason)
