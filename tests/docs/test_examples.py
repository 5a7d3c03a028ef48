"""Examples of the documents that are not run: each says what it takes."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXPORTS = re.compile(r"^(?: {4}|\$ )pyc export \S+\.pyca .*$", re.MULTILINE)


def test_an_export_of_an_artifact_says_that_it_needs_the_target_onnx():
    """A build of the default recipe has none."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    found = [(page.name, line) for page in pages for line in EXPORTS.findall(page.read_text("utf-8"))]
    assert len(found) >= 3
    assert [each for each in found if "target onnx" not in each[1]] == []
