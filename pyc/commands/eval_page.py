"""The report of an evaluation as one HTML page that needs nothing else: no script, no network, light or dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pyc.commands.eval_charts import COLOURS, Chart, Points, chart
from pyc.commands.eval_text import figure, table, with_error
from pyc.runtime.host.sizes import human_bytes
from pyc.runtime.measure.quality_report import ArtifactQuality, Limit, QualityReport, ReportExample, ReportGuess
from pyc.runtime.text.printable import printable
from pyc.templates.rendering import render_html

TEMPLATE = "eval.html.j2"
SPACES = str.maketrans({" ": "\u00b7", "\n": "\u21b5", "\t": "\u21e5"})
"""Blanks where a token is one, which nobody sees else."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of an artifact, what it is, and what stands below it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class SchemeBar:
    """Bytes of one scheme: its share of the widest artifact's, in percent."""

    scheme: str
    colour: int
    percent: float
    size: str


@dataclass(frozen=True, slots=True)
class GuessBar:
    """A token that may follow, its probability in percent, and whether it is the one that follows."""

    token: str
    percent: float
    is_next: bool


@dataclass(frozen=True, slots=True)
class ExampleCard:
    """A bad place as text."""

    score: str
    place: str
    before: str
    token: str
    found: tuple[GuessBar, ...]
    wanted: tuple[GuessBar, ...]


@dataclass(frozen=True, slots=True)
class ArtifactCard:
    """What the page says of one artifact."""

    name: str
    about: str
    colour: int
    figures: tuple[Figure, ...]
    bars: tuple[SchemeBar, ...]
    examples: tuple[ExampleCard, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """What the template says."""

    title: str
    heading: tuple[str, ...]
    machine: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    charts: tuple[Chart, ...]
    artifacts: tuple[ArtifactCard, ...]
    limits: tuple[tuple[Limit, str], ...]
    example_note: str
    version: str


def html_page(report: QualityReport) -> str:
    """Return the page. What a text, a model or a file's name holds is text in it, never markup."""
    return render_html(TEMPLATE, {"page": _page(report)})


def _page(report: QualityReport) -> Page:
    header, rows = table(report)
    text, machine = report.text, report.machine
    windows = f"{text.windows:,} windows of {text.context}"
    heading = [f"{text.name}: {text.tokens:,} tokens, {windows}, {text.scored:,} scored"]
    if report.kind == "encoder":
        heading = [f"{text.name}: {text.scored:,} texts of {text.tokens:,} tokens"]
    if report.reference is not None:
        unrounded = ", compiled without rounding" if report.reference.what == "checkpoint" else ""
        heading.append(f"beside {report.reference.name}{unrounded}")
    return Page(
        title=printable(", ".join(artifact.name for artifact in report.artifacts)),
        heading=tuple(map(printable, heading)),
        machine=f"{machine.cpu}, {machine.cores} cores, {machine.kernel}",
        header=tuple(header),
        rows=tuple(tuple(map(printable, row)) for row in rows),
        charts=tuple(found for found in _charts(report) if found is not None),
        artifacts=tuple(_cards(report)),
        limits=tuple((limit, figure(limit.measured)) for limit in report.limits),
        example_note=_example_note(report),
        version=report.pyc,
    )


def _example_note(report: QualityReport) -> str:
    if report.kind == "encoder":
        return "The texts whose vectors turned furthest from the reference's."
    if report.reference is None:
        return "Where the token that follows had the least probability."
    return "Where predictions differ most from the reference's. The token that follows is marked."


def _charts(report: QualityReport) -> Iterator[Chart | None]:
    """Yield the charts that the figures allow."""
    compared = [
        (number, replace(each, name=printable(each.name)))
        for number, each in enumerate(report.artifacts)
        if each.divergence is not None
    ]
    nats = ("KL, nats a token", figure)

    def scatter(place: str, number: int, artifact: ArtifactQuality, x: float) -> tuple[str, int, Points]:
        assert artifact.divergence is not None
        kl = artifact.divergence.kl
        return artifact.name, number, [(x, kl.value, f"{artifact.name}: KL {with_error(kl)}, {place}")]

    by_bytes = [
        scatter(human_bytes(each.storage.weights_bytes), number, each, each.storage.weights_bytes)
        for number, each in compared
    ]
    yield chart("KL against bytes", "nearer to the lower left is better", (("weights", _bytes), nats), by_bytes)
    by_speed = [
        scatter(f"{speed:.0f} tokens/s", number, each, speed)
        for number, each in compared
        if (speed := each.speed.decode_tokens_s) is not None
    ]
    yield chart(
        "KL against tokens a second",
        "decoding here; nearer to the lower right is better",
        (("tokens a second", _plain), nats),
        by_speed,
    )
    positions = [
        (each.name, number, [(x, y, f"{each.name}, position {x}: KL {figure(y)}") for x, y in each.kl_by_position])
        for number, each in compared
    ]
    yield chart(
        "KL by position",
        "whether predictions drift as a window gets longer",
        (("position in the window", _plain), nats),
        positions,
        is_line=True,
    )
    spread = [
        (each.name, number, [(x, y, f"{each.name}: {x:g} % are below {figure(y)}") for x, y in _percentiles(each)])
        for number, each in compared
    ]
    yield chart(
        "How KL is spread",
        "a few bad tokens, or all a little",
        (("percent of tokens", _plain), nats),
        spread,
        is_line=True,
    )


def _percentiles(artifact: ArtifactQuality) -> tuple[tuple[float, float], ...]:
    return artifact.divergence.kl_percentiles if artifact.divergence is not None else ()


def _bytes(value: float) -> str:
    return human_bytes(round(value)) if value else "0"


def _plain(value: float) -> str:
    return f"{value:,.0f}"


def _cards(report: QualityReport) -> Iterator[ArtifactCard]:
    names = list(dict.fromkeys(scheme for each in report.artifacts for scheme, _ in each.storage.schemes))
    most = max(each.storage.weights_bytes for each in report.artifacts) or 1
    for number, each in enumerate(report.artifacts):
        storage, speed = each.storage, each.speed
        yield ArtifactCard(
            name=printable(each.name),
            about=f"{printable(each.architecture)}, {storage.scheme}, {storage.bits_a_weight:.2f} bits a weight, "
            f"{human_bytes(storage.size_bytes)}; {speed.isa}, {speed.threads} threads",
            colour=number % COLOURS,
            figures=tuple(_figures(each)),
            bars=tuple(
                SchemeBar(scheme, names.index(scheme) % COLOURS, round(100 * size / most, 2), human_bytes(size))
                for scheme, size in storage.schemes
            ),
            examples=tuple(_example(example, report) for example in each.examples),
        )


def _figures(artifact: ArtifactQuality) -> Iterator[Figure]:
    divergence, vectors, speed = artifact.divergence, artifact.vectors, artifact.speed
    if artifact.perplexity is not None:
        note = ""
        if divergence is not None:
            note = f"{with_error(divergence.perplexity_difference, sign='+')} to the reference"
        yield Figure("perplexity", with_error(artifact.perplexity), note)
    if divergence is not None:
        p99 = figure(divergence.percentile(99.0))
        yield Figure("KL, nats a token", with_error(divergence.kl), f"median {figure(divergence.kl_median)}, p99 {p99}")
        overlap = with_error(divergence.top_overlap, 100)
        yield Figure("same top-1", f"{with_error(divergence.same_top, 100)} %", f"top-5 overlap {overlap} %")
    if vectors is not None:
        yield Figure("cosine", with_error(vectors.cosine), f"least {vectors.cosine_least:.6f}")
        ranked = f"pairs of {vectors.ranked_texts:,} texts"
        yield Figure("rank correlation", f"{vectors.rank_correlation:.6f}", ranked)
    if speed.decode_tokens_s is not None:
        yield Figure("decoding", f"{figure(speed.decode_tokens_s)} tokens/s")
    if speed.prompt_tokens_s is not None:
        yield Figure("prompts", f"{figure(speed.prompt_tokens_s)} tokens/s")
    if speed.texts_s is not None:
        yield Figure("embedding", f"{figure(speed.texts_s)} texts/s")


def _example(example: ReportExample, report: QualityReport) -> ExampleCard:
    if report.kind == "encoder":
        place, score = f"text {example.window}", f"cosine {example.score:.6f}"
    else:
        place = f"window {example.window}, position {example.position}"
        score = f"{'KL' if example.wanted else 'surprise'} {figure(example.score)}"
    return ExampleCard(
        score=score,
        place=place,
        before=printable_text(example.before),
        token=_seen(example.token),
        found=_bars(example.found, example.token),
        wanted=_bars(example.wanted, example.token),
    )


def _bars(guesses: Sequence[ReportGuess], token: str) -> tuple[GuessBar, ...]:
    return tuple(GuessBar(_seen(each.text), round(100 * each.probability, 2), each.text == token) for each in guesses)


def _seen(token: str) -> str:
    """A token with its blanks shown."""
    return printable(token.translate(SPACES))


def printable_text(text: str) -> str:
    """Return a text of several lines with what is no letter of one escaped."""
    return "\n".join(printable(line.expandtabs(4)) for line in text.split("\n"))
