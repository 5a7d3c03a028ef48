"""The chart of README: prompt and decode speed of pyc and the peers, out of a run of tests/bench/peers.py.

    python tests/bench/readme_chart.py tests/bench/results/2026-11-25-zen5-headline.json docs/plots/peers.svg

Engines that the run lacks are left out.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

TEMPLATE = Path(__file__).with_name("bars.svg.j2")
ENGINES = (
    ("pyc int4-g32", "pyc int4-g32 (default)"),
    ("ik_llama.cpp Q4_K_M", "ik_llama.cpp Q4_K_M"),
    ("llama.cpp Q4_K_M, flash attention", "llama.cpp Q4_K_M"),
    ("mistral.rs Q4_K_M", "mistral.rs Q4_K_M"),
    ("openvino-genai int4 g32, f16 cache", "OpenVINO GenAI int4 g32"),
)
"""Name in the results -> on the chart."""
COLUMNS = (("prefill_tok_s", "512", "prompt of 512"), ("decode_tok_s", "512", "decode at 512"))
OURS, THEIRS = "#0072b2", "#999999"
LEFT, COLUMN, ROW, TOP = 190, 285, 26, 58


@dataclass(frozen=True)
class Heading:
    """What a column shows, at a pixel."""

    at: int
    label: str


@dataclass(frozen=True)
class Bar:
    """A value of a row, drawn."""

    x: int
    width: float
    label: str


@dataclass(frozen=True)
class Row:
    """An engine."""

    name: str
    y: int
    colour: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Chart:
    """All that the template sees; lengths are pixels."""

    title: str
    headings: tuple[Heading, ...]
    rows: tuple[Row, ...]
    height: int
    width: int = LEFT + len(COLUMNS) * COLUMN
    left: int = LEFT


def bars_plot(title: str, headings: Sequence[str], rows: Mapping[str, Sequence[float]]) -> str:
    """SVG of a row for each engine and a bar for each column; those of a column are to one scale from zero."""
    most = [max(values) for values in zip(*rows.values(), strict=True)]
    drawn = tuple(
        Row(
            name,
            TOP + index * ROW,
            OURS if name.startswith("pyc") else THEIRS,
            tuple(
                Bar(LEFT + at * COLUMN, round(value / most[at] * (COLUMN - 60), 1), f"{value:.0f}")
                for at, value in enumerate(values)
            ),
        )
        for index, (name, values) in enumerate(rows.items())
    )
    chart = Chart(
        title,
        tuple(Heading(LEFT + at * COLUMN, label) for at, label in enumerate(headings)),
        drawn,
        height=TOP + len(rows) * ROW + 8,
    )
    environment = Environment(undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE.read_text("utf-8")).render(chart=chart) + "\n"


def speeds(document: Mapping[str, Any]) -> dict[str, list[float]]:
    """Medians of the engines of ENGINES that were measured, by their names on the chart."""
    measured = {engine["name"]: engine for engine in document["engines"] if engine["state"] == "measured"}
    return {
        label: [measured[name][kind][length]["median"] for kind, length, _ in COLUMNS]
        for name, label in ENGINES
        if name in measured
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("results", type=Path)
    parser.add_argument("svg", type=Path)
    arguments = parser.parse_args()
    rows = speeds(json.loads(arguments.results.read_text("utf-8")))
    title = "Qwen3-0.6B's shape, two cores of an AMD Zen 5, tokens a second"
    arguments.svg.write_text(bars_plot(title, [label for _, _, label in COLUMNS], rows), "utf-8")


if __name__ == "__main__":
    main()
