"""The report of an evaluation as lines for a reader: a screen for one artifact, a table for several."""

from __future__ import annotations

from collections.abc import Callable

from pyc.commands.tables import plain_table
from pyc.runtime.host.sizes import human_bytes
from pyc.runtime.measure.quality import Divergence, Estimate
from pyc.runtime.measure.quality_report import ArtifactQuality, Limit, QualityReport
from pyc.runtime.text.counted import counted

LABEL = 18
WIDE = 1e9
"""From here on a number is written with an exponent."""
PLUS_MINUS = "\u00b1"


def text_lines(report: QualityReport, width: int | None = None) -> list[str]:
    """Return the lines; a table keeps to `width` columns where that can be."""
    lines = [*_heading(report), ""]
    if len(report.artifacts) == 1:
        lines += _one(report.artifacts[0], report)
    else:
        header, rows = table(report)
        lines += plain_table("", header, rows, right=range(1, len(header)), width=width)[:-1]
    if report.limits:
        lines += ["", *map(limit_line, report.limits)]
    return lines


def limit_line(limit: Limit) -> str:
    """Return what a limit of a gate asks and what was measured."""
    sign = "<=" if limit.name.startswith("max_") else ">="
    verdict = "kept" if limit.is_kept else "EXCEEDED"
    return f"{limit.name:<{LABEL}}{verdict}: {figure(limit.measured)}, expected {sign} {limit.limit:g}"


def figure(value: float) -> str:
    """Return a number with the digits that a reader compares: four significant ones."""
    return f"{value:.5g}" if abs(value) >= 1 else f"{value:.4g}"


def with_error(estimate: Estimate, scale: float = 1.0, sign: str = "") -> str:
    """Return a value and its error, both to the second digit of the error; an error that is rounding is left out."""
    value, error = estimate.value * scale, estimate.error * scale
    if error <= 1e-12 * abs(value):
        return f"{value:{sign}.6g}"
    if max(abs(value), error) >= WIDE:
        return f"{value:{sign}.4g} {PLUS_MINUS} {error:.2g}"
    digits = min(max(1 - _exponent(error), 0), 12)
    return f"{value:{sign}.{digits}f} {PLUS_MINUS} {error:.{digits}f}"


def _column(value: float, sign: str = "") -> str:
    return f"{value:{sign}.3f}" if abs(value) < WIDE else f"{value:{sign}.4g}"


def _exponent(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


def _heading(report: QualityReport) -> list[str]:
    text = report.text
    if report.kind == "decoder":
        windows = f"{text.windows:,} window{'s' if text.windows != 1 else ''} of {text.context}"
        lines = [f"{text.name}: {text.tokens:,} tokens, {windows}, {text.scored:,} scored"]
    else:
        lines = [f"{text.name}: {text.scored:,} texts of {text.tokens:,} tokens"]
    if report.reference is not None:
        unrounded = ", compiled without rounding" if report.reference.what == "checkpoint" else ""
        lines.append(f"reference: {report.reference.name}{unrounded}")
    return lines


def _one(artifact: ArtifactQuality, report: QualityReport) -> list[str]:
    storage, speed = artifact.storage, artifact.speed
    bits = f"{storage.bits_a_weight:.2f} bits a weight"
    lines = [f"{artifact.name}: {artifact.architecture}, {storage.scheme}, {human_bytes(storage.size_bytes)}, {bits}"]

    def say(label: str, text: str) -> None:
        lines.append(f"{label:<{LABEL}}{text}")

    if artifact.perplexity is not None:
        say("perplexity", with_error(artifact.perplexity))
    if artifact.divergence is not None:
        _say_divergence(artifact.divergence, say)
    if artifact.vectors is not None:
        vectors = artifact.vectors
        say("cosine", f"{with_error(vectors.cosine)}, least {vectors.cosine_least:.6f} (text {vectors.least_text})")
        say("rank correlation", f"{vectors.rank_correlation:.6f}, pairs of {vectors.ranked_texts:,} texts")
    say("speed", f"{_speed_text(artifact)} ({speed.isa}, {counted(speed.threads, 'thread')})")
    return lines


def _say_divergence(divergence: Divergence, say: Callable[[str, str], None]) -> None:
    say("of the reference", with_error(divergence.reference_perplexity))
    ratio = with_error(divergence.perplexity_ratio)
    say("difference", f"{with_error(divergence.perplexity_difference, sign='+')}, ratio {ratio}")
    say("KL, nats a token", with_error(divergence.kl))
    p90, p99 = (figure(divergence.percentile(percent)) for percent in (90.0, 99.0))
    middle, largest = figure(divergence.kl_median), figure(divergence.kl_most)
    say("", f"median {middle}, p90 {p90}, p99 {p99}, largest {largest}")
    say("same top-1", f"{with_error(divergence.same_top, 100)} %")
    say("top-5 overlap", f"{with_error(divergence.top_overlap, 100)} %")
    say("p of the token", f"root mean square of the change {with_error(divergence.probability_rms, 100)} %")


def _speed_text(artifact: ArtifactQuality) -> str:
    speed = artifact.speed
    named = (("prompts", speed.prompt_tokens_s, "tokens/s"), ("decoding", speed.decode_tokens_s, "tokens/s"))
    parts = [f"{name} {figure(value)} {unit}" for name, value, unit in named if value is not None]
    if speed.texts_s is not None:
        parts.append(f"{figure(speed.texts_s)} texts/s")
    return ", ".join(parts)


def table(report: QualityReport) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: a row an artifact, and one for the reference; columns that all lack are left out."""
    names = ["artifact", "size", "bits", "PPL", "+/-", "delta PPL", "+/-", "KL", "+/-", "p99 KL", "same top", "top-5"]
    names += ["cosine", "least", "rank", "pp t/s", "tg t/s", "texts/s"]
    rows = [_row(artifact) for artifact in report.artifacts]
    if report.reference is not None and report.reference.perplexity is not None:
        perplexity = report.reference.perplexity
        own = [report.reference.name, "", "", _column(perplexity.value), _column(perplexity.error)]
        rows.append([*own, *[""] * (len(names) - len(own))])
    kept = [index for index in range(len(names)) if any(row[index] for row in rows)]
    return [names[index] for index in kept], [[row[index] for index in kept] for row in rows]


def _row(artifact: ArtifactQuality) -> list[str]:
    storage, speed = artifact.storage, artifact.speed
    row = [artifact.name, human_bytes(storage.size_bytes), f"{storage.bits_a_weight:.2f}"]
    perplexity, divergence, vectors = artifact.perplexity, artifact.divergence, artifact.vectors
    row += ["", ""] if perplexity is None else [_column(perplexity.value), _column(perplexity.error)]
    if divergence is None:
        row += [""] * 7
    else:
        delta = divergence.perplexity_difference
        row += [_column(delta.value, "+"), _column(delta.error)]
        row += [f"{divergence.kl.value:.3g}", f"{divergence.kl.error:.2g}"]
        row += [f"{divergence.percentile(99.0):.3g}"]
        row += [f"{divergence.same_top.value:.2%}", f"{divergence.top_overlap.value:.2%}"]
    if vectors is None:
        row += [""] * 3
    else:
        row += [f"{vectors.cosine.value:.6f}", f"{vectors.cosine_least:.6f}", f"{vectors.rank_correlation:.6f}"]
    speeds = (speed.prompt_tokens_s, speed.decode_tokens_s, speed.texts_s)
    return [*row, *("" if value is None else f"{value:.0f}" for value in speeds)]
