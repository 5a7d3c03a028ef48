"""The bins of a histogram."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.runtime.measure.benchmark import histogram, spread


def test_edges_are_powers_of_the_eighth_root_of_two():
    bins = histogram([1.0, 1.0, 1.05, 2.0])
    assert [count for _, count in bins] == [2, 1, 0, 0, 0, 0, 0, 0, 1]
    assert bins[0][0] == 1.0 and bins[-1][0] == 2.0


@pytest.mark.slow
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=50))
def test_every_value_is_counted_below_its_edge(values: list[float]) -> None:
    bins = histogram(values)
    assert sum(count for _, count in bins) == len(values)
    for edge, _ in bins:
        below = sum(count for upper, count in bins if upper <= edge)
        # a value within rounding of an edge may lie on either side
        assert sum(value < edge * (1 - 1e-12) for value in values) <= below
        assert below <= sum(value <= edge * (1 + 1e-12) for value in values)


def test_a_spread_has_the_median_the_extremes_and_the_deviation_of_a_sample():
    found = spread([1.0, 4.0, 2.0])
    assert (found.median, found.least, found.most) == (2.0, 1.0, 4.0)
    assert found.deviation == statistics.stdev([1.0, 4.0, 2.0])
    assert spread([3.0]).deviation == 0
