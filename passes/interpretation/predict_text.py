"""What a module of logical operators predicts on a text: logits of a decoder, vectors of an encoder; see
`interpret_text`. A run may begin anywhere in the function that reads tokens, with the values that are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.scales import Floats
from pyc.passes.interpretation.interpret_text import Array, RowsOf, TextInterpreter, Values, Windows, floats


class Predictor:
    """Runs `body`, the function that reads tokens, and `head`, that of the logits; None for encoders."""

    def __init__(self, module: Module, windows: Windows) -> None:
        functions = {function.name: function for function in module.graph.functions}
        self.body = functions["embed"] if "embed" in functions else functions["forward"]
        self.head = functions.get("logits")
        self.windows = windows
        self._text = TextInterpreter(module, windows)

    def positions(self, most_bytes: int) -> NDArray[np.int64]:
        """Return the positions that are scored: all windows of an encoder; of a decoder so many, taken evenly, that
        their logits have at most `most_bytes`."""
        if self.head is None:
            return np.arange(self.windows.ids.shape[0])
        vocabulary = self.head.operations[-1].result.type.shape[1]
        assert isinstance(vocabulary, int)
        count = self.windows.ids.size
        most = max(1, most_bytes // (4 * vocabulary))
        return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))

    def inputs(self) -> Values:
        """Return what a run from the start begins with."""
        return self._text.inputs()

    def first_of(self, values: Values) -> Values:
        """Return these windows' part of the values of a run whose windows begin with them."""
        windows, length = self.windows.ids.shape
        return {
            name: value[: windows if name in ("seq_start", "seq_end") else windows * length]
            for name, value in values.items()
        }

    def steps(self, rows_of: RowsOf) -> Iterator[tuple[int, Values]]:
        """Yield the values that are there before each operation of the body, and after the last."""
        values, last_use = self.inputs(), _last_uses(self.body)
        for index, operation in enumerate(self.body.operations):
            yield index, values
            self._step(operation, index, last_use, values, rows_of)
        yield len(self.body.operations), values

    def predictions(self, values: Values, index: int, rows_of: RowsOf, positions: NDArray[np.int64]) -> Floats:
        """Run on from operation `index` of the body, and return logits f32 [positions, vocabulary], or vectors
        [windows, features]. `values` are used up."""
        result = floats(self._run(self.body, values, index, rows_of))
        if self.head is None:
            return result
        return floats(self._run(self.head, {self.head.parameters[0].name: result[positions]}, 0, rows_of))

    def _run(self, function: Function, values: Values, first: int, rows_of: RowsOf) -> Array:
        last_use = _last_uses(function)
        for index in range(first, len(function.operations)):
            self._step(function.operations[index], index, last_use, values, rows_of)
        return values[function.result]

    def _step(
        self, operation: Operation, index: int, last_use: Mapping[str, int], values: Values, rows_of: RowsOf
    ) -> None:
        operands = [values.get(name) for name in operation.operands]
        values[operation.result.name] = self._text.value(operation, operands, rows_of)
        for name in operation.operands:
            if last_use[name] == index:
                values.pop(name, None)


def _last_uses(function: Function) -> dict[str, int]:
    """The index of the last operation that reads each value; the result is never done with."""
    uses = {name: index for index, o in enumerate(function.operations) for name in o.operands}
    return {**uses, function.result: len(function.operations)}
