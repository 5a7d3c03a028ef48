"""docs/tensor-layouts.md: the tables of entries are those of the code."""

import re
from pathlib import Path

from pyc.compiler.codebooks import CODEBOOKS

PAGE = Path(__file__).parents[2] / "docs" / "tensor-layouts.md"


def test_entries_of_lookup_tables_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([-\d, ]+) \| (\d+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    found = {name: (tuple(map(int, entries.split(", "))), int(shift)) for name, entries, shift in rows}
    expected = {name: (book.entries, book.shift) for name, book in CODEBOOKS.items()}
    assert found == {name: book for name, book in expected.items() if name not in ("e2m1", "ternary")}
