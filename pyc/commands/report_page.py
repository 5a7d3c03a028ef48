"""The report of an artifact's rounding errors: rows for a reader, and one HTML page that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyc.commands.eval_text import figure, table
from pyc.passes.comparison.weight_errors import MatrixError, relative_error
from pyc.runtime.text.printable import printable
from pyc.templates.rendering import render_html

if TYPE_CHECKING:
    from pyc.runtime.measure.quality_report import QualityReport

TEMPLATE = "report.html.j2"
STEPS = 10
"""Colours of the heat map."""
HEADER = ("matrix", "shape", "scheme", "algorithm", "bits", "relative error", "largest error")
KIND_HEADER = ("kind", "matrices", "schemes", "bits", "relative error", "largest in")


@dataclass(frozen=True, slots=True)
class Cell:
    """A matrix in the heat map: its colour's class, its error, and what a pointer over it is told."""

    heat: str
    value: str
    told: str


@dataclass(frozen=True, slots=True)
class MapRow:
    """A layer."""

    layer: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """What the template says."""

    title: str
    heading: tuple[str, ...]
    version: str
    steps: int
    least: str
    most: str
    kinds: tuple[str, ...]
    map: tuple[MapRow, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    kind_header: tuple[str, ...]
    kind_rows: tuple[tuple[str, ...], ...]
    evaluated: tuple[str, ...]
    figures: tuple[tuple[str, ...], ...]


def report_page(
    name: str, heading: Sequence[str], errors: Sequence[MatrixError], quality: QualityReport | None, version: str
) -> str:
    """Return the page of an artifact called `name`. What files hold is text in it, never markup."""
    return render_html(TEMPLATE, {"page": _page(name, heading, errors, quality, version)})


def matrix_rows(errors: Iterable[MatrixError]) -> list[tuple[str, ...]]:
    """Return a row of HEADER for each matrix."""
    return [
        (
            printable(each.name),
            f"{each.rows} x {each.columns}",
            each.scheme,
            each.algorithm,
            f"{each.bits:.2f}",
            figure(each.relative),
            figure(each.largest),
        )
        for each in errors
    ]


def kind_rows(errors: Iterable[MatrixError]) -> list[tuple[str, ...]]:
    """Return a row of KIND_HEADER for each kind, and one of all matrices."""
    kinds: dict[str, list[MatrixError]] = {}
    for each in errors:
        kinds.setdefault(each.kind, []).append(each)
    rows = [_joined(kind, members) for kind, members in kinds.items()]
    return [*rows, _joined("all", [each for members in kinds.values() for each in members])]


def _joined(kind: str, members: Sequence[MatrixError]) -> tuple[str, ...]:
    weights = sum(each.rows * each.columns for each in members)
    bits = sum(each.bits * each.rows * each.columns for each in members) / weights
    worst = max(members, key=lambda each: each.relative)
    total = relative_error(sum(each.error_square for each in members), sum(each.square for each in members))
    where = worst.name if worst.layer is None else f"layer {worst.layer}: {figure(worst.relative)}"
    schemes = ", ".join(dict.fromkeys(each.scheme for each in members))
    return (printable(kind), str(len(members)), schemes, f"{bits:.2f}", figure(total), printable(where))


def _page(
    name: str, heading: Sequence[str], errors: Sequence[MatrixError], quality: QualityReport | None, version: str
) -> Page:
    inside = [each for each in errors if each.layer is not None]
    kinds = tuple(dict.fromkeys(each.kind for each in inside))
    found = {(each.layer, each.kind): each for each in inside}
    scale = [each.relative for each in inside if 0 < each.relative < math.inf]
    least, most = (min(scale), max(scale)) if scale else (0.0, 0.0)
    layers = sorted({each.layer for each in inside if each.layer is not None})
    figures: tuple[tuple[str, ...], ...] = ()
    if quality is not None:
        header, rows = table(quality)
        figures = (tuple(header), *(tuple(map(printable, row)) for row in rows))
    return Page(
        title=printable(name),
        heading=tuple(map(printable, heading)),
        version=version,
        steps=STEPS,
        least=figure(least),
        most=figure(most),
        kinds=tuple(map(printable, kinds)),
        map=tuple(
            MapRow(layer, tuple(_cell(found.get((layer, kind)), least, most) for kind in kinds)) for layer in layers
        ),
        header=HEADER,
        rows=tuple(matrix_rows(errors)),
        kind_header=KIND_HEADER,
        kind_rows=tuple(kind_rows(errors)),
        evaluated=() if quality is None else (_evaluated(quality),),
        figures=figures,
    )


def _evaluated(quality: QualityReport) -> str:
    beside = "" if quality.reference is None else f", beside {quality.reference.name}"
    return printable(f"{quality.text.name}: {quality.text.scored:,} scored{beside}")


def _cell(matrix: MatrixError | None, least: float, most: float) -> Cell:
    if matrix is None:
        return Cell("", "", "")
    how = f"{matrix.name}: {matrix.scheme}, {matrix.algorithm}, {matrix.bits:.2f} bits, largest error "
    told = printable(how + figure(matrix.largest))
    return Cell(f"h{_step(matrix.relative, least, most)}", figure(matrix.relative), told)


def _step(value: float, least: float, most: float) -> int:
    """The colour of an error, 0 to STEPS - 1 on a logarithmic scale."""
    if value <= 0:
        return 0
    if not value < most:  # infinity, and what is no number, too
        return STEPS - 1
    return 1 + int((STEPS - 2) * math.log(value / least) / math.log(most / least))
