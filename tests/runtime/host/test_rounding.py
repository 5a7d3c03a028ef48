"""runtime/host/rounding.py: exact, without floats."""

import pytest

from pyc.runtime.host.rounding import ceil_div, round_up


@pytest.mark.parametrize(
    ("value", "by", "pieces"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), ((1 << 60) + 1, 1 << 30, (1 << 30) + 1)]
)
def test_rounding_up(value, by, pieces):
    assert ceil_div(value, by) == pieces
    assert round_up(value, by) == pieces * by
