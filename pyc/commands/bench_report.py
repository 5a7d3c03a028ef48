"""What `pyc bench` measured, as JSON and as tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from pyc.commands.bench_worker import Report, Request
from pyc.commands.tables import markdown_table, plain_table
from pyc.runtime.host.machine import Machine
from pyc.runtime.host.sizes import human_bytes, human_count
from pyc.runtime.measure.benchmark import Spread, histogram, spread

COLUMNS = ("model", "size", "params", "scheme", "variant", "threads", "test", "result", "unit")
RIGHT = ("size", "params", "threads", "result")


@dataclass(frozen=True, slots=True)
class Subject:
    """An artifact: `name` of its file, what kind of model, its parameters and the scheme of most of them, and whether
    weights were its own. `size_bytes` are the file's, or those of random weights."""

    name: str
    architecture: str
    kind: str
    size_bytes: int
    parameters: int
    scheme: str
    weights: Literal["own", "random"] = "own"


@dataclass(frozen=True, slots=True)
class Measured:
    """An artifact with one number of threads and one variant: what was asked for, and a report for each round."""

    subject: Subject
    request: Request
    reports: tuple[Report, ...]


def documents(measured: Measured, machine: Machine) -> Iterator[dict[str, object]]:
    """Yield a JSON document for each size that was asked for: a prompt, a decoding and a depth; or the sentences."""
    request, first = measured.request, measured.reports[0]
    sizes = list(itertools.product(request.depths, request.prompts, request.decodes)) if first.prompts else [(0, 0, 0)]
    used = {"threads": first.threads, "isa": first.isa, "features": list(first.features)}
    load = spread([report.load_s for report in measured.reports])
    for depth, prompt, decode in sizes:
        found = _decoder(measured.reports, prompt, decode, depth) if first.prompts else _encoder(measured)
        values, more = found
        spreads = {"load_s": load, **values}
        yield {
            "artifact": measured.subject.name,
            **more,
            **{name: round(value.median, 6) for name, value in spreads.items()},
            **_steps(measured.reports, decode, depth),
            "spread": {name: [round(value.least, 6), round(value.most, 6)] for name, value in spreads.items()},
            "deviation": {name: round(value.deviation, 6) for name, value in spreads.items()},
            "repeat": len(measured.reports),
            "peak_rss_bytes": max(report.peak_rss_bytes for report in measured.reports),
            "model": {name: value for name, value in asdict(measured.subject).items() if name != "name"},
            "machine": {**asdict(machine), **used},
        }


def _decoder(
    reports: Sequence[Report], prompt: int, decode: int, depth: int
) -> tuple[dict[str, Spread], dict[str, object]]:
    prompts = [run for report in reports for run in report.prompts if (run.tokens, run.depth) == (prompt, depth)]
    decodes = [run for report in reports for run in report.decodes if (run.tokens, run.depth) == (decode, depth)]
    spreads = {
        "ttft_s": spread([run.first_s for run in prompts]),
        "prefill_tok_s": spread([prompt / run.prefill_s for run in prompts]),
        "decode_tok_s": spread([decode / sum(run.steps_s) for run in decodes]),
    }
    return spreads, {"prompt_tokens": prompt, "decode_tokens": decode, "depth_tokens": depth}


def _encoder(measured: Measured) -> tuple[dict[str, Spread], dict[str, object]]:
    texts = [report.texts for report in measured.reports if report.texts is not None]
    count = measured.request.sentences
    together, alone = spread([count / run.together_s for run in texts]), spread([run.alone_s for run in texts])
    return {"sentences_s": together, "latency_s": alone}, {"sentences": count}


def _steps(reports: Sequence[Report], decode: int, depth: int) -> dict[str, object]:
    """Percentiles and bins of the milliseconds of all steps; nothing for encoders."""
    runs = [run for report in reports for run in report.decodes if (run.tokens, run.depth) == (decode, depth)]
    steps_ms = [step * 1e3 for run in runs for step in run.steps_s]
    if not steps_ms:
        return {}
    p50, p90, p99 = (round(float(value), 4) for value in np.percentile(steps_ms, (50, 90, 99)))
    bins = [[round(edge_ms, 5), count] for edge_ms, count in histogram(steps_ms)]
    return {"decode_ms": {"p50": p50, "p90": p90, "p99": p99}, "decode_histogram": bins}


def text_lines(results: Sequence[Measured], machine: Machine, width: int | None) -> list[str]:
    """Return lines for a reader: what all rows have in common, then a table of what differs, tests and results."""
    rows = [row for measured in results for row in _rows(measured)]
    same = [name for name in COLUMNS[:6] if len({row[COLUMNS.index(name)] for row in rows}) == 1]
    common = dict(zip(COLUMNS, rows[0], strict=True))
    title = ", ".join(_phrase(name, common[name]) for name in same if name not in ("variant", "threads"))
    place = ", ".join([machine.cpu, *(_phrase(name, common[name]) for name in ("variant", "threads") if name in same)])
    kept = [index for index, name in enumerate(COLUMNS) if name not in same]
    header = [COLUMNS[index] for index in kept]
    table = plain_table(
        "",
        header,
        [[row[index] for index in kept] for row in rows],
        right=[index for index, name in enumerate(header) if name in RIGHT],
        width=width,
    )
    rounds = len(results[0].reports)
    note = f"median \u00b1 standard deviation of {rounds} runs" if rounds > 1 else "one run"
    return [*([title] if title else []), place, "", *table, note]


def markdown_lines(results: Sequence[Measured]) -> list[str]:
    """Return the same as a table in markdown, with every column."""
    rows = [row for measured in results for row in _rows(measured)]
    return markdown_table(COLUMNS, rows, right=[COLUMNS.index(name) for name in RIGHT])


def _rows(measured: Measured) -> Iterator[tuple[str, ...]]:
    """The rows of an artifact with one number of threads: what COLUMNS says."""
    subject, first = measured.subject, measured.reports[0]
    start = (
        subject.name,
        human_bytes(subject.size_bytes),
        human_count(subject.parameters),
        subject.scheme if subject.weights == "own" else f"{subject.scheme}, random weights",
        first.isa,
        str(first.threads),
    )
    for test, result, unit in _tests(measured):
        yield (*start, test, result, unit)


def _tests(measured: Measured) -> Iterator[tuple[str, str, str]]:
    """The name of each test, its result and the unit of that."""
    reports = measured.reports
    prompts = [list(runs) for runs in zip(*(report.prompts for report in reports), strict=True)]
    for runs in prompts:
        speeds = [run.tokens / run.prefill_s for run in runs]
        yield f"pp{_size(runs[0].tokens, runs[0].depth)}", _result(speeds), "t/s"
    for steps in zip(*(report.decodes for report in reports), strict=True):
        speeds = [len(run.steps_s) / sum(run.steps_s) for run in steps]
        yield f"tg{_size(steps[0].tokens, steps[0].depth)}", _result(speeds), "t/s"
    for runs in prompts:
        which = f", pp{_size(runs[0].tokens, runs[0].depth)}" if len(prompts) > 1 else ""
        yield f"first token{which}", _result([run.first_s * 1e3 for run in runs]), "ms"
    texts = [report.texts for report in reports if report.texts is not None]
    if texts:
        count = measured.request.sentences
        yield f"{count} sentences", _result([count / run.together_s for run in texts]), "texts/s"
        yield "one sentence", _result([run.alone_s * 1e3 for run in texts]), "ms"
    yield "load", _result([report.load_s * 1e3 for report in reports]), "ms"
    yield "peak memory", f"{max(report.peak_rss_bytes for report in reports) / 1e6:.0f}", "MB"


def _size(tokens: int, depth: int) -> str:
    return f"{tokens} @ d{depth}" if depth else str(tokens)


def _result(values: Sequence[float]) -> str:
    found = spread(values)
    return f"{found.median:.2f}" + (f" \u00b1 {found.deviation:.2f}" if len(values) > 1 else "")


def _phrase(name: str, value: str) -> str:
    """A column's value, where it stands alone."""
    if name == "params":
        return f"{value} parameters"
    if name == "threads":
        return f"{value} thread{'s' if value != '1' else ''}"
    return value
