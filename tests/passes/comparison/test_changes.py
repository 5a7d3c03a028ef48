"""passes/comparison/changes.py: none of several things of one name is lost, and a header with many takes no longer."""

import sys

from pyc.passes.comparison.changes import by_name, changes_of


def test_things_of_one_name_are_numbered():
    pairs = [("a", "1"), ("a (2)", "2"), ("a", "3"), ("b", "4"), ("a", "5"), ("a (2)", "6")]
    assert by_name(pairs) == {"a": "1", "a (2)": "2", "a (3)": "3", "b": "4", "a (4)": "5", "a (2) (2)": "6"}
    assert changes_of(by_name(pairs[:1]), by_name(pairs[:1])) == ()


def test_the_work_is_linear_in_the_number_of_one_name():
    """Counted in calls and bytes of names, not in seconds."""
    pairs = [("fuse_lora", "x")] * 2000 + [(f"fuse_lora ({number})", "x") for number in range(2, 2000)]
    steps = 0

    def count(frame, event, argument):
        nonlocal steps
        steps += 1
        return count

    sys.settrace(count)
    try:
        found = by_name(pairs)
    finally:
        sys.settrace(None)
    assert len(found) == len(pairs) and sum(map(len, found)) < 40 * len(pairs)
    assert steps < 20 * len(pairs)
