"""compiler/scheme_choice.py against trying everything."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.compiler import scheme_choice
from pyc.compiler.scheme_choice import Option, choose, fewest, loss_of, path, size_of, smallest

options = st.lists(
    st.builds(Option, st.just("scheme"), st.integers(1, 30), st.floats(0, 1, width=32)), min_size=1, max_size=4
)
problems = st.lists(options, min_size=1, max_size=4)


def every(items):
    return itertools.product(*(range(len(each)) for each in items))


@given(problems, st.integers(1, 120))
def test_the_best_within_a_budget(items, budget):
    possible = [choice for choice in every(items) if size_of(items, choice) <= budget]
    chosen = choose(items, budget)
    if not possible:
        assert chosen is None
        return
    assert size_of(items, chosen) <= budget
    assert loss_of(items, chosen) == pytest.approx(min(loss_of(items, each) for each in possible), abs=1e-9)


@given(problems, st.integers(1, 120))
def test_larger_units_than_bytes(items, budget):
    """Sizes are rounded up to them: at most a unit an item is lost, and the budget is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheme_choice, "MOST_UNITS", 32)
        chosen = choose(items, budget)
    exact = choose(items, budget)
    assert (chosen is None) == (exact is None)
    if chosen is not None:
        assert size_of(items, chosen) <= budget
        unit = -(-(budget + 1) // 32)
        less = choose(items, max(budget - unit * len(items), size_of(items, smallest(items))))
        assert loss_of(items, exact) - 1e-9 <= loss_of(items, chosen) <= loss_of(items, less) + 1e-9


def test_many_items_are_solved_at_once():
    random = np.random.default_rng(0)
    items = []
    for _ in range(400):
        rows = int(random.integers(1, 20)) * 1024
        loss = float(random.random())
        items.append([Option(str(bits), rows * bits, loss * 4.0**-bits) for bits in range(2, 17)])
    start = time.perf_counter()
    budget = size_of(items, smallest(items)) * 3 // 2
    chosen = choose(items, budget)
    assert time.perf_counter() - start < 20
    within = [choice for choice in path(items) if size_of(items, choice) <= budget]
    assert loss_of(items, chosen) <= loss_of(items, within[-1])


@given(problems, st.floats(0, 3))
def test_the_fewest_bytes_for_a_loss(items, loss):
    possible = [choice for choice in every(items) if loss_of(items, choice) <= loss]
    chosen = fewest(items, loss)
    if chosen is None:
        assert not [choice for choice in possible if loss_of(items, choice) < loss - 1e-9]
        return
    assert loss_of(items, chosen) <= loss + 1e-9
    assert size_of(items, chosen) <= min((size_of(items, each) for each in possible), default=10**9)


@given(problems)
def test_each_choice_on_the_path_is_the_best_of_its_bytes(items):
    steps = path(items)
    assert steps[0] == smallest(items)
    sizes = [size_of(items, choice) for choice in steps]
    assert sizes == sorted(set(sizes))
    for choice, size in zip(steps, sizes, strict=True):
        best = min(loss_of(items, other) for other in every(items) if size_of(items, other) <= size)
        assert loss_of(items, choice) == pytest.approx(best, abs=1e-9)
    assert loss_of(items, steps[-1]) == pytest.approx(sum(min(o.loss for o in each) for each in items))


@given(problems, st.integers(1, 120))
def test_what_is_left_over_is_used(items, budget):
    chosen = choose(items, budget)
    if chosen is None:
        return
    left = budget - size_of(items, chosen)
    for each, index in zip(items, chosen, strict=True):
        for option in each:
            fits = option.size_bytes - each[index].size_bytes <= left
            assert not (fits and option.loss < each[index].loss)


def test_a_larger_scheme_that_loses_more_is_never_taken():
    items = [[Option("small", 10, 0.5), Option("worse", 20, 0.6), Option("better", 30, 0.1)]]
    assert [choose(items, budget) for budget in (9, 10, 29, 30)] == [None, (0,), (0,), (2,)]
