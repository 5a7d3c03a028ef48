"""Places of points on a chart: within it, in order, and on the ticks that say the same."""

import pytest

from pyc.commands.eval_charts import HEIGHT, MARGIN_BOTTOM, MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, WIDTH, Axis, chart

AXES = (("x", str), ("y", str))


def test_points_lie_within_and_in_order():
    points = [(10.0, 0.001, "a"), (20.0, 0.02, "b"), (40.0, 0.3, "c")]
    for is_line in (False, True):
        found = chart("t", "n", AXES, [("one", 3, points)], is_line=is_line)
        marks = found.series[0].marks
        assert [mark.told for mark in marks] == ["a", "b", "c"]
        assert sorted(mark.x for mark in marks) == [mark.x for mark in marks]
        assert sorted(mark.y for mark in marks) == [mark.y for mark in marks][::-1], "y grows downwards"
        for mark in (*marks, *found.x_ticks):
            assert MARGIN_LEFT <= getattr(mark, "x", getattr(mark, "at", None)) <= WIDTH - MARGIN_RIGHT
        for place in (*(mark.y for mark in marks), *(tick.at for tick in found.y_ticks)):
            assert MARGIN_TOP <= place <= HEIGHT - MARGIN_BOTTOM


@pytest.mark.parametrize("is_log", [False, True])
def test_a_value_on_a_tick_is_where_the_tick_is(is_log):
    axis = Axis(0.5, 20.0, 0.0, 100.0, is_log)
    ticks = axis.ticks(lambda value: f"{value:g}")
    expected = ["0.5", "1", "2", "5", "10", "20"] if is_log else ["5", "10", "15", "20"]
    assert [tick.label for tick in ticks] == expected
    for tick in ticks:
        assert tick.at == axis.at(float(tick.label))


@pytest.mark.parametrize("points", [[(5.0, 1.0, "")], [(0.0, 0.0, "")], [(3.0, 0.0, ""), (3.0, 0.0, "")]])
def test_one_value_and_zeros_have_a_chart(points):
    """The KL of an artifact to itself is 0, which has no logarithm."""
    found = chart("t", "n", AXES, [("one", 9, points)])
    assert found.series[0].colour == 1
    assert all(MARGIN_TOP <= mark.y <= HEIGHT - MARGIN_BOTTOM for mark in found.series[0].marks)


def test_without_points_there_is_none():
    assert chart("t", "n", AXES, []) is None
    assert chart("t", "n", AXES, [("one", 0, [])]) is None
