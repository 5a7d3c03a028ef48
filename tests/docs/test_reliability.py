"""docs/reliability.md: each test that it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_test_that_the_page_names_is_there() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")
    sources = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in ROOT.glob("tests/**/*.py")}
    named = re.findall(r"`(?:(tests/[\w/]+\.py)(?:::)?)?(test_\w+)?`", page)
    assert len(named) > 100
    for file, test in named:
        assert not file or file in sources, file
        where = [sources[file]] if file else sources.values()
        assert not test or any(re.search(rf"def {test}\b", text) for text in where), f"{file}::{test}"
