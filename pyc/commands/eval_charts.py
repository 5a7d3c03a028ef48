"""Charts of an evaluation as places on a canvas: what the page's SVG draws, worked out here.

x grows to the right and y down, in units of the canvas, WIDTH by HEIGHT; values lie between MARGIN_LEFT and the right
edge, and between MARGIN_TOP and the axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 460, 280
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 62, 18, 14, 44
COLOURS = 8
"""Series are told apart by so many colours, in turn; the page's style has them."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of a series, and what a pointer over it is told; `is_left`: its name stands to its left."""

    x: float
    y: float
    told: str
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one artifact, and the number of its colour; `path` joins them."""

    name: str
    colour: int
    marks: tuple[Mark, ...]

    @property
    def path(self) -> str:
        """The points of a polyline."""
        return " ".join(f"{mark.x:.1f},{mark.y:.1f}" for mark in self.marks)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its title, what the axes are, and what is on it. `is_line`: points are joined."""

    title: str
    note: str
    x_name: str
    y_name: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[Series, ...]
    is_line: bool
    width: int = WIDTH
    height: int = HEIGHT
    left: int = MARGIN_LEFT
    right: int = WIDTH - MARGIN_RIGHT
    top: int = MARGIN_TOP
    bottom: int = HEIGHT - MARGIN_BOTTOM


@dataclass(frozen=True, slots=True)
class Axis:
    """Places of values from `low` to `high`, on a canvas from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        """The place of a value."""
        low, high, given = self.low, self.high, value
        if self.is_log:
            low, high, given = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return round(self.start + (self.end - self.start) * (given - low) / (high - low), 2)

    def ticks(self, label: Callable[[float], str]) -> tuple[Tick, ...]:
        """Round values on the axis, with their labels."""
        values = _powers(self.low, self.high) if self.is_log else _steps(self.low, self.high)
        return tuple(Tick(self.at(value), label(value)) for value in values)


Points = Sequence[tuple[float, float, str]]
"""x, y, and what a pointer is told."""


def chart(
    title: str,
    note: str,
    axes: tuple[tuple[str, Callable[[float], str]], tuple[str, Callable[[float], str]]],
    named: Sequence[tuple[str, int, Points]],
    *,
    is_line: bool = False,
    is_log: bool = True,
) -> Chart | None:
    """Return the chart of named points with their colours; None without any. `axes`: the name of x and of y, and how
    values are written. y is logarithmic with `is_log`, where all values are positive."""
    points = [point for _, _, given in named for point in given]
    if not points:
        return None
    (x_name, x_label), (y_name, y_label) = axes
    values = [y for _, y, _ in points]
    is_log = is_log and min(values) > 0
    x_axis = _axis([x for x, _, _ in points], MARGIN_LEFT + 8, WIDTH - MARGIN_RIGHT - 8, from_zero=not is_line)
    y_axis = _axis(values, HEIGHT - MARGIN_BOTTOM, MARGIN_TOP, from_zero=not is_log, is_log=is_log)
    middle = (MARGIN_LEFT + WIDTH - MARGIN_RIGHT) / 2
    series = tuple(
        Series(
            name,
            colour % COLOURS,
            tuple(Mark(x_axis.at(x), y_axis.at(y), told, x_axis.at(x) > middle) for x, y, told in given),
        )
        for name, colour, given in named
    )
    return Chart(title, note, x_name, y_name, x_axis.ticks(x_label), y_axis.ticks(y_label), series, is_line)


def _axis(
    values: Sequence[float], start: float, end: float, *, from_zero: bool, is_log: bool = False
) -> Axis:
    low, high = min(values), max(values)
    if is_log:
        return Axis(low / 1.6, high * 1.6, start, end, True)
    if from_zero:
        low = min(low, 0.0)
    if high <= low:
        high = low + 1
    return Axis(low, high + (high - low) * 0.05 if from_zero else high, start, end, False)


def _powers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from low to high; of a wide range the powers alone."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    return [value for value in found if low <= value <= high]


def _steps(low: float, high: float) -> list[float]:
    """Four to eight round values from low to high."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]
