"""Rules that no linter checks."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
C = sorted((*ROOT.glob("templates/cpu/*.c"), *ROOT.glob("templates/cpu/include/*.h")))


@pytest.mark.parametrize("path", C, ids=lambda path: path.name)
def test_lines_of_c_are_as_wide_as_those_of_python(path):
    wide = [number for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 120]
    assert not wide, f"{path.name}: lines {wide} are over 120 characters"
