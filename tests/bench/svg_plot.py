"""Plots as SVG out of a template: lines over an axis that doubles or is even, and histograms."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined

TEMPLATE = Path(__file__).with_name("plot.svg.j2")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito: for all eyes
WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 560, 40, 320
TICKS = 5

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Tick:
    """A mark at a pixel."""

    at: float
    label: str


@dataclass(frozen=True)
class Pixel:
    """A point of a line."""

    x: float
    y: float


@dataclass(frozen=True)
class Line:
    """A series, drawn."""

    name: str
    colour: str
    points: tuple[Pixel, ...]


@dataclass(frozen=True)
class Bar:
    """A bin, drawn."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Plot:
    """All that the template sees; lengths are pixels."""

    title: str
    x_name: str
    y_name: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    top: int = TOP
    bottom: int = BOTTOM


def line_plot(title: str, x_name: str, y_name: str, series: Mapping[str, Points], *, doubling: bool) -> str:
    """SVG of lines from zero up; `doubling`: equal distances on x are equal ratios, and x is above 0."""
    xs = sorted({x for points in series.values() for x, _ in points})
    top = _round_up(max(y for points in series.values() for _, y in points))

    def place(x: float) -> float:
        scale = math.log2 if doubling else float
        low, high = scale(xs[0]), scale(xs[-1])
        share = 0.5 if low == high else (scale(x) - low) / (high - low)
        return round(LEFT + 20 + share * (RIGHT - LEFT - 40), 1)

    lines = [
        Line(name, COLOURS[index % len(COLOURS)], tuple(Pixel(place(x), _height(y, top)) for x, y in points))
        for index, (name, points) in enumerate(series.items())
    ]
    x_ticks = tuple(Tick(place(x), _short(x)) for x in xs)
    return _render(Plot(title, x_name, y_name, x_ticks, _y_ticks(top), lines=tuple(lines)))


def _short(x: float) -> str:
    """Whole multiples of 1024 as 1k, 2k, ...: longer numbers touch each other."""
    return f"{x / 1024:g}k" if x and x % 1024 == 0 else f"{x:g}"


def histogram_plot(title: str, x_name: str, y_name: str, bins: Points) -> str:
    """SVG of a histogram: `bins` are the upper edge of each, ascending, and how many are in it."""
    top = _round_up(max(count for _, count in bins))
    width = (RIGHT - LEFT) / len(bins)
    bars = tuple(
        Bar(round(LEFT + index * width + 1, 1), _height(count, top), round(width - 2, 1), BOTTOM - _height(count, top))
        for index, (_, count) in enumerate(bins)
    )
    every = -(-len(bins) // 8)
    x_ticks = tuple(
        Tick(round(LEFT + (index + 1) * width, 1), f"{edge:.3g}")
        for index, (edge, _) in enumerate(bins)
        if index % every == 0
    )
    return _render(Plot(title, x_name, y_name, x_ticks, _y_ticks(top), bars=bars))


def _height(y: float, top: float) -> float:
    return round(BOTTOM - y / top * (BOTTOM - TOP), 1)


def _y_ticks(top: float) -> tuple[Tick, ...]:
    values = [top * index / TICKS for index in range(TICKS + 1)]
    return tuple(Tick(_height(value, top), f"{value:g}") for value in values)


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value * (1 - 1e-9))


def _render(plot: Plot) -> str:
    environment = Environment(undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE.read_text("utf-8")).render(plot=plot) + "\n"
