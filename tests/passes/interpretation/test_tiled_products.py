"""Products in tiles: what float64 gives, and the same bits for any number of threads."""

import numpy as np
import pytest

from pyc.passes.interpretation import tiled_products
from pyc.passes.interpretation.tiled_products import TILE, cross, gram, product_into

SHAPES = [(1, 1, 1), (7, 33, 5), (TILE, 64, 96), (TILE + 1, 2 * TILE + 17, 48), (300, TILE - 1, TILE + 9)]


def product(x, w, workers):
    result = np.full((len(x), len(w) + 2), np.nan, np.float32)[:, 1:-1]
    product_into(result, x, w, workers)
    return result


@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_products_are_those_of_float64_whatever_the_threads(rows, inputs, outputs):
    random = np.random.default_rng(rows)
    x, y = (random.standard_normal((rows, inputs), np.float32) for _ in range(2))
    w = random.standard_normal((outputs, inputs), np.float32)
    for made, operands, wanted in [
        (product, (x, w), x.astype(np.float64) @ w.T.astype(np.float64)),
        (gram, (x,), x.T.astype(np.float64) @ x.astype(np.float64)),
        (cross, (y, x), y.T.astype(np.float64) @ x.astype(np.float64)),
    ]:
        found = made(*operands, 1)
        length = inputs if made is product else rows
        # Sums of `length` products of normal numbers, about sqrt(length) all the while, rounded at each step.
        np.testing.assert_allclose(found, wanted, rtol=2.0**-20, atol=4 * 2.0**-24 * max(length, 8))
        for workers in (2, 5):
            np.testing.assert_array_equal(made(*operands, workers), found)
    np.testing.assert_array_equal(gram(x, 2), gram(x, 2).T)


def test_what_a_thread_raises_is_raised():
    with pytest.raises(ValueError, match="matmul"):
        product(np.ones((3000, 4), np.float32), np.ones((2, 5), np.float32), 2)


def test_one_tile_starts_no_thread(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("a pool of threads")

    monkeypatch.setattr(tiled_products, "Workers", refuse)
    one, none = np.ones((TILE, 8), np.float32), np.ones((0, 8), np.float32)
    product(one, one, 4), product(none, one, 4), gram(one, 4), cross(one, one, 4)
    with pytest.raises(AssertionError, match="a pool of threads"):
        product(np.ones((TILE + 1, 8), np.float32), one, 4)
