"""Sketches of the Hessian of a model's KL for each matrix W [N, K], as Kronecker factors (YAQA, arXiv:2505.22988).

With inputs x [K] of a token and the gradient d [N] of its outputs, for labels that are drawn from what the model
predicts, the Hessian is the mean of (d d') (x) (x x'), tokens taken to be independent (sketch A of the paper, one step
of the power iteration from identities):

    H_O = sum of |x|^2 d d',    H_I = sum of |d|^2 x x'

Gradients take a run through the model and back for a few windows at a time. Factors of many matrices do not fit into
memory: those that come next, of at most MOST_BYTES, are made at once, with a run over the text for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.ir import Module
from pyc.compiler.scales import Floats
from pyc.passes.interpretation.differentiate_text import TextGradients
from pyc.passes.interpretation.interpret_text import RowsOf, Windows

MOST_BYTES = 4 << 30
"""Of the factors that are there at once."""

MOST_ROWS = 16384
"""Matrices with more outputs have no factors: heads."""

TOKENS_AT_A_TIME = 1024

Sketch = tuple[Floats, Floats]
"""H_O f32 [N, N] and H_I f32 [K, K]."""


class OutputSketches:
    """Sketches of the matrices `names` of a decoder, which are asked for in this order, those that are wanted.

    `advance` is told how many weights are sketched.
    """

    def __init__(
        self,
        module: Module,
        windows: Windows,
        rows_of: RowsOf,
        names: Sequence[str],
        is_wanted: Callable[[str], bool],
        advance: Callable[[int], None],
    ) -> None:
        self._module, self._windows, self._rows_of = module, windows, rows_of
        self._names = [name for name in names if module.weights[name].shape[0] <= MOST_ROWS]
        self._is_wanted, self._advance = is_wanted, advance
        self._made: dict[str, Sketch] = {}

    def take(self, name: str) -> Sketch | None:
        """Return the sketch of a matrix, which is then forgotten; None: it has too many outputs."""
        if name not in self._names:
            return None
        if name not in self._made:
            self._made = self._sketched(self._next(name))
        return self._made.pop(name)

    def _next(self, name: str) -> list[str]:
        """This matrix and those that come next, as many as fit."""
        found, size_bytes = [name], self._size(name)
        for other in self._names[self._names.index(name) + 1 :]:
            if not self._is_wanted(other):
                continue
            size_bytes += self._size(other)
            if size_bytes > MOST_BYTES:
                break
            found.append(other)
        return found

    def _size(self, name: str) -> int:
        rows, columns = self._module.weights[name].shape
        return 4 * (rows * rows + columns * columns)

    def _sketched(self, names: list[str]) -> dict[str, Sketch]:
        shapes = {name: self._module.weights[name].shape for name in names}
        found = {
            name: (np.zeros((rows, rows), np.float32), np.zeros((columns, columns), np.float32))
            for name, (rows, columns) in shapes.items()
        }
        ids = self._windows.ids
        step = max(1, TOKENS_AT_A_TIME // ids.shape[1])
        weights = sum(rows * columns for rows, columns in shapes.values())
        for start in range(0, len(ids), step):
            part = Windows(ids[start : start + step], self._windows.digest)
            gradients = TextGradients(self._module, part, self._rows_of)
            for operation, x, d in gradients.products(drawn(gradients.predictions(), start)):
                if operation.weights[0] in found:
                    outer, inner = found[operation.weights[0]]
                    outer += (d * np.einsum("tk,tk->t", x, x)[:, None]).T @ d
                    inner += (x * np.einsum("tn,tn->t", d, d)[:, None]).T @ x
            stop = min(start + step, len(ids))
            self._advance(weights * stop // len(ids) - weights * start // len(ids))
        return found


def drawn(probabilities: Floats, seed: int) -> NDArray[np.int64]:
    """Return labels [tokens] that are drawn from probabilities [tokens, vocabulary]; the same for the same seed."""
    thresholds = np.random.default_rng(seed).random((len(probabilities), 1))
    reached = np.cumsum(probabilities, axis=1, dtype=np.float64)
    found: NDArray[np.int64] = (reached[:, :-1] < thresholds * reached[:, -1:]).sum(axis=1)
    return found
