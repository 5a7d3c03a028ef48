"""What each run has a sample of, and `make test-long` (PYC_CASES=all) all."""

import os
from collections.abc import Iterable

IS_LONG = os.environ.get("PYC_CASES") == "all"


def sample(cases: Iterable[object], *names: object) -> list[object]:
    """The cases of these names, or without names every other one; all of them in a long run."""
    every = list(cases)
    assert all(name in every for name in names)
    if IS_LONG:
        return every
    return [case for case in every if case in names] if names else every[::2]
