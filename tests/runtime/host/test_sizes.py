"""Numbers for people."""

import pytest

from pyc.runtime.host.sizes import human_bytes, human_count, human_duration


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (1234, "1.23 kB"), (999_499, "999 kB"),
        (999_500, "1 MB"), (1_234_567, "1.23 MB"), (5_550_000_000, "5.55 GB"), (2_000_000_000_000, "2 TB"),
    ],
)  # fmt: skip
def test_bytes(size_bytes, text):
    assert human_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (4500, "4.5 thousand"), (999_999, "1 million"),
     (596_049_920, "596 million"), (8_030_000_000, "8.03 billion")],
)  # fmt: skip
def test_counts(count, text):
    assert human_count(count) == text


@pytest.mark.parametrize(
    ("elapsed_s", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (59.6, "1:00"), (185, "3:05"), (3723, "1:02:03")],
)
def test_durations(elapsed_s, text):
    assert human_duration(elapsed_s) == text
