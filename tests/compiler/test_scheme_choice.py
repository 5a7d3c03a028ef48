"""compiler/scheme_choice.py against trying everything."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc.compiler.scheme_choice import Option, choose, loss_of, path, size_of, smallest

options = st.lists(
    st.builds(Option, st.just("scheme"), st.integers(1, 30), st.floats(0, 1, width=32)), min_size=1, max_size=4
)
problems = st.lists(options, min_size=1, max_size=4)


def every(items):
    return itertools.product(*(range(len(each)) for each in items))


@given(problems, st.integers(1, 120))
def test_within_one_step_of_the_best(items, budget):
    possible = [choice for choice in every(items) if size_of(items, choice) <= budget]
    chosen = choose(items, budget)
    if not possible:
        assert chosen is None
        return
    assert size_of(items, chosen) <= budget
    best = min(loss_of(items, choice) for choice in possible)
    steps = path(items)
    beyond = [choice for choice in steps if size_of(items, choice) > budget]
    within = [choice for choice in steps if size_of(items, choice) <= budget]
    saved = loss_of(items, within[-1]) - loss_of(items, beyond[0]) if beyond else 0.0
    assert best <= loss_of(items, chosen) <= best + saved + 1e-9


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
