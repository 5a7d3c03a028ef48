"""Measures loaded models against a text, and makes the report: what `pyc eval` and the gate of a build share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from pyc.runtime.errors import RunError
from pyc.runtime.host.machine import describe_machine
from pyc.runtime.measure.benchmark import WARM_UP_TOKENS, DecoderBench
from pyc.runtime.measure.quality import text_quality
from pyc.runtime.measure.quality_report import (
    ArtifactQuality,
    QualityReport,
    Reference,
    ReportExample,
    ReportGuess,
    Speed,
    Storage,
    Text,
)
from pyc.runtime.measure.scoring import (
    EXAMPLES,
    Example,
    Guess,
    TextResult,
    Windows,
    embed_texts,
    encode_text,
    kl_by_position,
    require_same_tokens,
    score_text,
    scored_positions,
    text_windows,
    texts_of,
)
from pyc.runtime.measure.vector_quality import cosines_of, vector_quality
from pyc.runtime.model import Model

if TYPE_CHECKING:
    from typing import Literal

    from pyc.runtime.executors.protocol import FloatArray

DEFAULT_CONTEXT = 512
"""Tokens of a window unless others are asked for: llama.cpp's."""

DECODE_TOKENS = 64
BEFORE_TOKENS = 48
"""What is shown before the token of an example."""

Progress = Callable[[str, int, int], None]
"""Is told what is done, how much of it, of how much."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A loaded model, what it is called, and how it is stored."""

    name: str
    model: Model
    storage: Storage


@dataclass(frozen=True, slots=True)
class Baseline:
    """The loaded model that others are compared with."""

    name: str
    model: Model
    what: Literal["artifact", "checkpoint"]


@dataclass(frozen=True, slots=True)
class Passage:
    """A text and what to do with it: windows of `context` tokens, of at most its first `limit` tokens (or lines)."""

    name: str
    text: str
    context: int = DEFAULT_CONTEXT
    limit: int | None = None


def evaluate(
    candidates: Sequence[Candidate],
    baseline: Baseline | None,
    passage: Passage,
    *,
    version: str,
    with_speed: bool = True,
    progress: Progress = lambda what, done, total: None,
) -> QualityReport:
    """Return the report of at least one candidate, all of one kind, and a text.

    Without `with_speed` decoding is not timed. Raises RunError for a text that is too short, models of different
    vocabularies, an encoder without a baseline, and what is not finite.
    """
    kind = candidates[0].model.info.kind
    everyone: list[Candidate | Baseline] = [*candidates, *([baseline] if baseline else [])]
    for other in everyone:
        if other.model.info.kind != kind:
            raise RunError(
                f"{other.name}: got a model of the kind {other.model.info.kind}, expected {kind}, as "
                f"{candidates[0].name} is; compare models of one kind"
            )
    if kind == "encoder":
        return _evaluate_encoders(candidates, baseline, passage, version, progress)
    return _evaluate_decoders(candidates, baseline, passage, version, progress, with_speed=with_speed)


def _evaluate_decoders(
    candidates: Sequence[Candidate],
    baseline: Baseline | None,
    passage: Passage,
    version: str,
    progress: Progress,
    *,
    with_speed: bool,
) -> QualityReport:
    first = candidates[0]
    ids, beginning = encode_text(first.model.tokenizer, passage.text, passage.limit)
    others: list[Candidate | Baseline] = [*candidates[1:], *([baseline] if baseline else [])]
    for other in others:
        require_same_tokens(ids, first.name, other.model, other.name, passage.text, passage.limit)
    windows = text_windows(ids, passage.context, beginning, passage.limit)
    named = [(candidate.name, candidate.model) for candidate in candidates]
    results = score_text(
        named,
        None if baseline is None else (baseline.name, baseline.model),
        windows,
        lambda done: progress("scoring windows", done, len(windows)),
    )
    found = []
    for number, (candidate, result) in enumerate(zip(candidates, results, strict=True)):
        progress("timing decoding", number, len(candidates))
        decode_tokens_s = _decode_speed(candidate.model) if with_speed else None
        found.append(_decoder_quality(candidate, result, windows, decode_tokens_s))
    divergence = found[0].divergence
    return QualityReport(
        pyc=version,
        kind="decoder",
        text=Text(
            name=passage.name,
            blake3=blake3(passage.text.encode()).hexdigest(),
            tokens=len(ids),
            windows=len(windows),
            context=passage.context,
            scored=len(windows) * scored_positions(passage.context),
        ),
        reference=None
        if baseline is None or divergence is None
        else Reference(name=baseline.name, what=baseline.what, perplexity=divergence.reference_perplexity),
        artifacts=tuple(found),
        machine=describe_machine(),
    )


def _decoder_quality(
    candidate: Candidate, result: TextResult, windows: Windows, decode_tokens_s: float | None
) -> ArtifactQuality:
    model = candidate.model
    quality = text_quality(result.scores)
    return ArtifactQuality(
        name=candidate.name,
        architecture=model.info.architecture,
        storage=candidate.storage,
        speed=Speed(
            isa=model.executor.isa,
            threads=model.executor.threads,
            prompt_tokens_s=result.prompt_tokens_s,
            decode_tokens_s=decode_tokens_s,
        ),
        mean_nll=quality.mean_nll,
        perplexity=quality.perplexity,
        divergence=quality.divergence,
        kl_by_position=tuple(kl_by_position(result.scores, windows.shape[1])) if quality.divergence else (),
        examples=tuple(_shown(model, example, windows) for example in result.examples),
    )


def _shown(model: Model, example: Example, windows: Windows) -> ReportExample:
    """An example as text."""
    window = windows[example.window].tolist()
    before = window[max(0, example.position - BEFORE_TOKENS) : example.position]

    def texts(guesses: tuple[Guess, ...]) -> tuple[ReportGuess, ...]:
        return tuple(ReportGuess(_token_text(model, guess.token), guess.probability) for guess in guesses)

    return ReportExample(
        score=example.score,
        window=example.window,
        position=example.position,
        before=model.tokenizer.decode(before, skip_special_tokens=False),
        token=_token_text(model, example.token),
        found=texts(example.found),
        wanted=texts(example.wanted),
    )


def _token_text(model: Model, token: int) -> str:
    """The text of one token; where it is none alone, such as half a letter, how the vocabulary spells it."""
    text = model.tokenizer.decode([token], skip_special_tokens=False)
    return text if text and "\ufffd" not in text else model.tokenizer.token(token) or f"<{token}>"


def _decode_speed(model: Model) -> float:
    """Tokens a second of a greedy generation, by the median of its steps."""
    bench = DecoderBench(model)
    bench.decode(min(WARM_UP_TOKENS, model.session.context))
    return 1 / float(np.median(bench.decode(min(DECODE_TOKENS, model.session.context))))


def _evaluate_encoders(
    candidates: Sequence[Candidate], baseline: Baseline | None, passage: Passage, version: str, progress: Progress
) -> QualityReport:
    if baseline is None:
        raise RunError(
            f"{candidates[0].name}: an encoder's vectors say nothing alone; compare them with --reference CHECKPOINT"
        )
    texts = texts_of(passage.text)[: passage.limit]
    if not texts:
        raise RunError("the text: it is empty; give one with a text a line")

    def telling(name: str) -> Callable[[int], None]:
        return lambda done: progress(f"embedding with {name}", done, len(texts))

    expected, _ = embed_texts(baseline.model, texts, telling(baseline.name))
    found = []
    for candidate in candidates:
        name = candidate.name
        vectors, texts_s = embed_texts(candidate.model, texts, telling(name))
        if vectors.shape != expected.shape:
            raise RunError(
                f"{name}: its vectors have {vectors.shape[1]} values, those of {baseline.name} {expected.shape[1]}; "
                "compare models of one architecture"
            )
        found.append(_encoder_quality(candidate, vectors, expected, texts, texts_s))
    tokens = sum(len(ids) for ids in candidates[0].model.tokenizer.encode_batch(texts, max_tokens=1 << 30))
    return QualityReport(
        pyc=version,
        kind="encoder",
        text=Text(
            name=passage.name,
            blake3=blake3(passage.text.encode()).hexdigest(),
            tokens=tokens,
            windows=0,
            context=0,
            scored=len(texts),
        ),
        reference=Reference(name=baseline.name, what=baseline.what),
        artifacts=tuple(found),
        machine=describe_machine(),
    )


def _encoder_quality(
    candidate: Candidate, vectors: FloatArray, expected: FloatArray, texts: Sequence[str], texts_s: float
) -> ArtifactQuality:
    model = candidate.model
    cosines = cosines_of(vectors, expected)
    worst = np.argsort(cosines, kind="stable")[:EXAMPLES]
    return ArtifactQuality(
        name=candidate.name,
        architecture=model.info.architecture,
        storage=candidate.storage,
        speed=Speed(isa=model.executor.isa, threads=model.executor.threads, texts_s=texts_s),
        vectors=vector_quality(vectors, expected),
        examples=tuple(
            ReportExample(score=float(cosines[index]), window=int(index), position=0, before=texts[index])
            for index in worst
        ),
    )
