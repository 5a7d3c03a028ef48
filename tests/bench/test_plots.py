"""Plots are SVG that a reader of XML takes, with every point where it belongs."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # the modules of a script import each other from its folder

import readme_chart
import svg_plot

SVG = "{http://www.w3.org/2000/svg}"


def points_of(text: str) -> list[list[tuple[float, float]]]:
    lines = ElementTree.fromstring(text).findall(f"{SVG}polyline")
    return [[tuple(map(float, point.split(","))) for point in line.attrib["points"].split()] for line in lines]


def test_lines_of_an_axis_that_doubles():
    series = {"<a> & b": [(512, 10.0), (1024, 20.0), (4096, 40.0)], "c": [(512, 0.0), (4096, 40.0)]}
    text = svg_plot.line_plot("a title", "tokens", "ms", series, doubling=True)
    first, second = points_of(text)
    # equal ratios are equal distances, and 40 is the top of the axis
    assert first[2][0] - first[1][0] == pytest.approx(2 * (first[1][0] - first[0][0]), abs=0.2)
    assert [y for _, y in first] == [250, 180, 40]
    assert second == [(first[0][0], 320), first[2]]
    labels = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert {"a title", "tokens", "ms", "512", "4k", "40", "<a> & b", "c"} <= set(labels)


def test_one_point_is_in_the_middle():
    text = svg_plot.line_plot("t", "threads", "tok/s", {"a": [(1, 7.0)]}, doubling=False)
    assert points_of(text) == [[(315, pytest.approx(75))]]


def test_bars_of_a_histogram():
    text = svg_plot.histogram_plot("t", "ms", "steps", [(0.1, 5), (0.2, 10), (0.4, 0)])
    background, *bars = ElementTree.fromstring(text).findall(f"{SVG}rect")
    assert background.attrib["fill"] == "#ffffff"
    assert [float(bar.attrib["height"]) for bar in bars] == [140, 280, 0]


def test_bars_of_a_column_are_to_one_scale():
    text = readme_chart.bars_plot("t", ["a", "b"], {"pyc <x>": [10.0, 5.0], "y": [5.0, 20.0]})
    _, *bars = ElementTree.fromstring(text).findall(f"{SVG}rect")
    assert [float(bar.attrib["width"]) for bar in bars] == [225, 56.2, 112.5, 225]
    assert {bar.attrib["x"] for bar in bars[::2]} != {bar.attrib["x"] for bar in bars[1::2]}
    assert bars[0].attrib["fill"] != bars[2].attrib["fill"]


def test_the_chart_of_readme_shows_engines_that_were_measured():
    speed = {"prefill_tok_s": {"512": {"median": 3.0}}, "decode_tok_s": {"512": {"median": 2.0}}}
    engines = [
        {"name": "mistral.rs Q4_K_M", "state": "measured", **speed},
        {"name": "ik_llama.cpp Q4_K_M", "state": "not installed"},
        {"name": "another", "state": "measured", **speed},
    ]
    assert readme_chart.speeds({"engines": engines}) == {"mistral.rs Q4_K_M": [3.0, 2.0]}
