"""Runs models over a text, window by window, and keeps what `quality` counts.

All models read the same window before the next one, so that a reference's predictions are needed for one window at a
time; of those, logits of ROWS_BYTES at a time. What is kept grows with the text and not with the vocabulary.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pyc.runtime.errors import RunError
from pyc.runtime.executors.protocol import FloatArray
from pyc.runtime.generation.slots import SlotOwner
from pyc.runtime.measure.quality import (
    RowScores,
    TextQuality,
    Wide,
    joined,
    log_probabilities,
    most_likely,
    score_rows,
    text_quality,
)
from pyc.runtime.model import Model
from pyc.runtime.text.counted import counted
from pyc.runtime.text.lines import lines_of
from pyc.runtime.text.tokenizer import Tokenizer

ROWS_BYTES = 32 << 20
"""Log-probabilities of one model that are held at a time."""

EXAMPLES = 12
"""Positions that are kept to be shown: those of the largest KL, without a reference of the least likely tokens."""

BEHIND_LIMIT = 64
"""Tokens that are read behind a limit, so that where the text is cut changes none before it."""

Ids = NDArray[np.int32]
Windows = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Guess:
    """A token that may follow, and its probability."""

    token: int
    probability: float


@dataclass(frozen=True, slots=True)
class Example:
    """A position: `window`, and `position` of the token that follows in it; what was likeliest, most likely first.

    `score` is the KL, or the nll without a reference, whose `wanted` are empty then.
    """

    score: float
    window: int
    position: int
    token: int
    found: tuple[Guess, ...]
    wanted: tuple[Guess, ...]


@dataclass(frozen=True, slots=True)
class TextResult:
    """What scoring one model gave: `scores` in order, its worst `examples`, and how fast it read the windows."""

    quality: TextQuality
    scores: RowScores
    examples: tuple[Example, ...]
    prompt_tokens_s: float


@dataclass(slots=True)
class Subject:
    """A model to score and what it is called; `result` gathers while it runs."""

    name: str
    model: Model
    parts: list[RowScores] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    read_s: float = 0.0


def text_windows(
    ids: Sequence[int] | Ids, context: int, beginning: int | None = None, limit: int | None = None
) -> Windows:
    """Return the whole windows [windows, context] of a text, of at most its first `limit` tokens.

    `beginning`, the token that a text begins with, replaces the first of each, as llama.cpp has it. Raises RunError
    when there is none, and for a context of fewer than four tokens.
    """
    if context < 4:
        raise RunError(f"context: got {context}, expected at least 4: half of a window is scored, but for one token")
    used = len(ids) if limit is None else min(len(ids), limit)
    count = used // context
    if not count:
        raise RunError(
            f"the text: it has {counted(used, 'token')}, expected at least {context}, one window; give a longer text, "
            "or a smaller --context"
        )
    windows = np.array(ids[: count * context], np.int32).reshape(count, context)
    if beginning is not None:
        windows[:, 0] = beginning
    return windows


def encode_text(tokenizer: Tokenizer, text: str, limit: int | None = None) -> tuple[Ids, int | None]:
    """Return the tokens of a text, at most its first `limit`, and the one that every text begins with, if any.

    Of a long text no more is read than the limit takes. Raises RunError for no text.
    """
    if not text.strip():
        raise RunError("the text: it is empty; give one like what the model is for")
    ids = _all_tokens(tokenizer, text) if limit is None else _first_tokens(tokenizer, text, limit)
    around = tokenizer.encode("")
    return ids, around[0] if around and ids.size and around[0] == ids[0] else None


def _first_tokens(tokenizer: Tokenizer, text: str, limit: int) -> Ids:
    size = 8 * (limit + BEHIND_LIMIT)
    while size < len(text):
        ids = _all_tokens(tokenizer, text[:size])
        if len(ids) >= limit + BEHIND_LIMIT:
            return ids[:limit]
        size *= 4
    return _all_tokens(tokenizer, text)[:limit]


def _all_tokens(tokenizer: Tokenizer, text: str) -> Ids:
    return np.concatenate([np.array(ids, np.int32) for ids in tokenizer.encode_parts(text)])


def require_same_tokens(
    ids: Ids, name: str, other: Model, other_name: str, text: str, limit: int | None = None
) -> None:
    """Raise RunError unless `other` makes the same tokens of the text, of its first `limit`, as the model `name`."""
    found, _ = encode_text(other.tokenizer, text, limit)
    if np.array_equal(ids, found):
        return
    both = min(len(ids), len(found))
    differing = np.flatnonzero(ids[:both] != found[:both])
    place = int(differing[0]) if differing.size else both
    raise RunError(
        f"{other_name}: its tokenizer makes {len(found)} tokens of the text, that of {name} {len(ids)}, and they "
        f"differ from token {place} on; perplexities and KL compare models of one vocabulary only"
    )


def scored_positions(context: int) -> int:
    """Return how many positions of a window count: its second half, but for its last token, which nothing follows."""
    return context - 1 - context // 2


def score_text(
    subjects: Sequence[tuple[str, Model]],
    reference: tuple[str, Model] | None,
    windows: Windows,
    progress: Callable[[int], None] = lambda done: None,
) -> list[TextResult]:
    """Return the result of each named model, in order; `progress` is told the windows that are done.

    Raises RunError for models of another size of vocabulary, a context that does not hold a window, and logits that
    are not finite.
    """
    scored = [Subject(name, model) for name, model in subjects]
    base = None if reference is None else Subject(*reference)
    _check(scored, base, windows)
    for number, window in enumerate(windows):
        _score_window(scored, base, window, number)
        progress(number + 1)
    return [_result(subject, windows.size) for subject in scored]


def _check(scored: Sequence[Subject], base: Subject | None, windows: Windows) -> None:
    everyone = [*scored, *([base] if base else [])]
    first = everyone[-1]
    for subject in everyone:
        session = subject.model.session
        if session.vocab_size != first.model.session.vocab_size:
            raise RunError(
                f"{subject.name}: its vocabulary has {session.vocab_size} tokens, that of {first.name} "
                f"{first.model.session.vocab_size}; compare models of one vocabulary"
            )
        if windows.shape[1] > session.context:
            raise RunError(
                f"{subject.name}: its context is {session.context}, expected at least the {windows.shape[1]} tokens of "
                "a window; give a smaller --context, or build with a larger shapes.context"
            )


def _score_window(scored: Sequence[Subject], base: Subject | None, window: NDArray[np.int32], number: int) -> None:
    context = len(window)
    first, last = context // 2, context - 1
    hidden = [_hidden(subject, window) for subject in scored]
    base_hidden = None if base is None else _hidden(base, window)
    rows = max(1, ROWS_BYTES // (8 * scored[0].model.session.vocab_size))
    for start in range(first, last, rows):
        stop = min(start + rows, last)
        targets = window[start + 1 : stop + 1]
        expected = None
        if base is not None and base_hidden is not None:
            expected = _log_probabilities(base, base_hidden[start:stop], number, start)
        for subject, states in zip(scored, hidden, strict=True):
            own = _log_probabilities(subject, states[start:stop], number, start)
            part = score_rows(own, targets, expected)
            subject.parts.append(part)
            _keep_examples(subject, part, own, expected, targets, (number, start + 1))


def _hidden(subject: Subject, window: NDArray[np.int32]) -> FloatArray:
    """The hidden rows of a window, read into a slot of its own."""
    session = subject.model.session
    with session.lock:
        owner = SlotOwner()
        try:
            slot = session.acquire(owner=owner)
            started_s = time.perf_counter()
            hidden = session.prefill(window, slot, keep="all")
            subject.read_s += time.perf_counter() - started_s
        finally:
            owner.has_left = True
    return hidden


def _log_probabilities(subject: Subject, hidden: FloatArray, window: int, start: int) -> Wide:
    session = subject.model.session
    with session.lock:
        logits = session.logits(hidden)
        finite = np.isfinite(logits).all(-1)
        if not finite.all():
            place = start + int(np.flatnonzero(~finite)[0])
            raise RunError(
                f"{subject.name}: its logits at token {place} of window {window} are not finite; the checkpoint's "
                "weights, or what they were rounded to, are damaged, or keys and values are beyond what f16 "
                "holds (65504): build with quantize.kv_cache: f32"
            )
        return log_probabilities(logits)


def _keep_examples(
    subject: Subject,
    part: RowScores,
    own: Wide,
    expected: Wide | None,
    targets: NDArray[np.int32],
    place: tuple[int, int],
) -> None:
    """Keep the worst EXAMPLES positions so far; `place` is the window, and the position in it of the first target."""
    values = part.kl if expected is not None else part.nll
    least = subject.examples[-1].score if len(subject.examples) == EXAMPLES else -np.inf
    worst = np.argsort(-values, kind="stable")[:EXAMPLES]
    chosen = [int(row) for row in worst if values[row] > least]
    if not chosen:
        return
    subject.examples += [
        Example(
            score=float(values[row]),
            window=place[0],
            position=place[1] + row,
            token=int(targets[row]),
            found=_guesses(own[row]),
            wanted=() if expected is None else _guesses(expected[row]),
        )
        for row in chosen
    ]
    subject.examples = sorted(subject.examples, key=lambda example: -example.score)[:EXAMPLES]


def _guesses(log_p: Wide) -> tuple[Guess, ...]:
    ids = most_likely(log_p[None])[0]
    pairs = sorted(((float(np.exp(log_p[token])), int(token)) for token in ids), key=lambda pair: (-pair[0], pair[1]))
    return tuple(Guess(token, probability) for probability, token in pairs)


def _result(subject: Subject, tokens: int) -> TextResult:
    scores = joined(subject.parts)
    return TextResult(text_quality(scores), scores, tuple(subject.examples), tokens / max(subject.read_s, 1e-9))


def kl_by_position(scores: RowScores, context: int, bins: int = 32) -> list[tuple[int, float]]:
    """Return the mean KL of stretches of a window's scored positions: the position of the middle, and nats."""
    rows = scores.kl.reshape(-1, scored_positions(context)).mean(0)
    first = context // 2 + 1
    edges = np.unique(np.linspace(0, len(rows), min(bins, len(rows)) + 1).round().astype(int))
    return [
        (first + (int(start) + int(stop) - 1) // 2, float(rows[start:stop].mean()))
        for start, stop in itertools.pairwise(edges)
    ]


def embed_texts(
    model: Model, texts: Sequence[str], progress: Callable[[int], None] = lambda done: None, batch: int = 256
) -> tuple[FloatArray, float]:
    """Return the vectors of an encoder [texts, width], and texts a second. Raises RunError for one that is not
    finite."""
    parts: list[FloatArray] = []
    started_s = time.perf_counter()
    for start in range(0, len(texts), batch):
        parts.append(model.embed(texts[start : start + batch]))
        progress(min(start + batch, len(texts)))
    elapsed_s = time.perf_counter() - started_s
    vectors = np.concatenate(parts)
    finite = np.isfinite(vectors).all(-1)
    if not finite.all():
        raise RunError(f"the vector of text {int(np.flatnonzero(~finite)[0])} is not finite; the weights are damaged")
    return vectors, len(texts) / max(elapsed_s, 1e-9)


def texts_of(text: str) -> list[str]:
    """Return the lines of a text that are not blank, as the texts to embed."""
    return [line for line in lines_of(text) if line.strip()]


def names_of(paths: Iterable[str]) -> list[str]:
    """Return short names of paths, longer where two are alike."""
    given = list(paths)
    depth = 1
    while True:
        names = ["/".join(path.rstrip("/").split("/")[-depth:]) for path in given]
        if len(set(names)) == len(names) or depth > 64:
            return names
        depth += 1
