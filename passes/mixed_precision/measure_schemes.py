"""Measures what rounding costs a model: the distance of its predictions on a text from those of the exact weights.

The graph is interpreted in f32 (`interpret_text`). For a decoder the distance is the mean KL(exact || rounded) of the
next token in nats, over at most POSITION_BYTES of log-probabilities, positions taken evenly; for an encoder one minus
the mean cosine of its vectors. A whole model is measured as the module that a build makes. Of groups of matrices,
values before the first product that reads a rounded matrix are those of the exact model, so one exact run over the
text serves the measurements of all: each goes on from where it differs.

A group of matrices is measured so under one scheme, the first of its own that loses something (a checkpoint's own codes
and bf16 may lose nothing). Under another its distance is that times the quotient of what rounding does to the products
of the group's inputs X [tokens, K], tr((W - Q) X'X (W - Q)'), or to a table that is looked up, the sum of squares of
W - Q, both over at most ERROR_ROWS rows of a matrix: distances are quadratic in small errors. On the demo model a
group's distances that are found so lie within 12 % of measured ones (standard deviation; 34 % at 2 bits), and their
sums within 6 % of what whole models were measured to have.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from pyc.compiler.awaited import Awaited, Workers
from pyc.compiler.digest import expression_digest
from pyc.compiler.evaluate import evaluate_rows, is_kept, unstored
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.operands import sources
from pyc.compiler.operators import OPERATORS
from pyc.compiler.quantization import dequantize_rows
from pyc.compiler.rewrite import weight_readers
from pyc.compiler.scales import Floats
from pyc.compiler.schemes import Algorithm, Quantized
from pyc.compiler.text import print_graph
from pyc.compiler.weights import Expression, ScaledColumns, Stored
from pyc.passes.calibration.rounding import ROUNDINGS
from pyc.passes.interpretation.interpret_text import RowsOf, Values, Windows, floats, prefix_digest, stored_rows
from pyc.passes.interpretation.predict_text import Predictor
from pyc.runtime.errors import QuantizeError
from pyc.runtime.measure.quality import log_probabilities

VERSION = 6
"""Changes when the same model and text would give other distances."""

POSITION_BYTES = 256 << 20
"""Of the exact model's log-probabilities, f32."""

SCORED_ROWS = 256
"""Rows of logits whose f64 log-probabilities are there at once."""

ERROR_ROWS = 1024
ERROR_BLOCKS = 16

LOSSLESS = 1e-9
"""Of the largest error of a group: so little is rounding in f32, and no other error can be in proportion to it."""

DIGITS = 4
"""Distances are rounded to so many digits: the last bits of sums, which differ between CPUs, then rarely decide."""

Group = tuple[str, ...]
"""Names of matrices that take one scheme."""

StoredGroup = Mapping[str, Stored]
"""Matrices of a group by name, as a build stores them under a scheme."""

Advance = Callable[[int], None]
"""Is told how many runs of the model, or of a part of it, are done."""


class SchemeMeter:
    """Measures schemes on `windows`: of wholes, and of groups of `module`, in which gains of norms are folded wherever
    some scheme has them so, and nothing is stacked. Distances are from `exact`, whose weights are stored as they are.

    With `calibrated_by`, windows of the same length, groups are rounded as `algorithm_of` says of a matrix, where that
    chooses codes, for the inputs that they have on those: on the text that it was rounded for a group costs less than
    elsewhere. What an algorithm knows of more than a group, scaled channels and sketches of outputs, is left out.
    """

    def __init__(
        self,
        module: Module,
        exact: Module,
        windows: Windows,
        files: SourceFiles,
        cache: Cache,
        workers: int,
        advance: Advance,
        *,
        calibrated_by: Windows | None = None,
        algorithm_of: Callable[[str], Algorithm] = lambda name: "rtn",
    ) -> None:
        self._module, self._files, self._cache = module, files, cache
        self._is_calibrated, self._algorithm_of = calibrated_by is not None, algorithm_of
        self._model = Predictor(module, windows)
        self._reference_of = exact
        self._exact = self._model if calibrated_by is None else Predictor(module, windows.followed_by(calibrated_by))
        self._workers, self._advance = workers, advance
        parts = VERSION, self._digest(exact), self._digest(module), self._exact.windows.key
        self._key = repr(("measure schemes", *parts))
        self._reference: Floats | None = None
        self._positions = self._model.positions(POSITION_BYTES)

    @property
    def metric(self) -> str:
        """What distances are of."""
        return "1 - cosine" if self._model.head is None else "KL"

    @property
    def positions(self) -> int:
        """How many predictions are compared."""
        return len(self._positions)

    # --- of a whole model

    def distance_of(
        self, stored: Module, made: Callable[[], AbstractContextManager[Module]], *rounded_by: object
    ) -> float:
        """Return the distance of the module that a build makes of `stored`, the one that the pipeline returns, by
        `rounded_by`. It is not made when the cache knows its distance."""
        key = self._entry("made", self._digest(stored), *rounded_by)
        found = self._cache.get(key, counts=False)
        if found is not None:
            return float(json.loads(found))
        reference = self._reference_logits()
        with made() as module:

            def rows_of(name: str, start: int, stop: int) -> Floats:
                return stored_rows(name, module.weights[name], start, stop, self._files)

            model = Predictor(module, self._model.windows)
            distance = self._compared(reference, model.predictions(model.inputs(), 0, rows_of, self._positions))
        self._files.check()
        self._cache.put(key, json.dumps(distance).encode())
        return distance

    # --- of groups of matrices, one at a time

    def distances(self, stored: Mapping[Group, Sequence[StoredGroup]]) -> dict[Group, list[float]]:
        """Return the distance of each group as it is stored under each of its schemes, the rest of the model being
        exact."""
        groups = list(stored)
        keys = {group: self._group_key(group, stored[group]) for group in groups}
        found: dict[Group, list[float]] = {}
        for group, key in keys.items():
            data = self._cache.get(key, counts=False)
            if data is not None:
                found[group] = json.loads(data)
        missing = [group for group in groups if group not in found]
        if missing:
            with Workers(self._workers, "pyc-measure") as pool:
                for group, measured in self._measured(missing, stored, pool):
                    self._files.check()
                    self._cache.put(keys[group], json.dumps(measured).encode())
                    found[group] = measured
        return found

    def _group_key(self, group: Group, stored: Sequence[StoredGroup]) -> str:
        """What stands for a group's distances: its schemes, which of them leave gains apart, and how it is rounded."""
        used = self._algorithm_of(group[0]) if self._is_calibrated else False
        schemes = [
            (repr(weight.scheme), self._gain_apart(name, weight) is not None)
            for each in stored
            for name, weight in each.items()
        ]
        return self._entry("group", group, used, schemes)

    def _measured(
        self, groups: Sequence[Group], stored: Mapping[Group, Sequence[StoredGroup]], pool: Executor
    ) -> Iterator[tuple[Group, list[float]]]:
        """Yield groups in the order in which the model reads them, with at most one task a worker on its way."""
        waiting: deque[tuple[Group, Awaited[list[float]]]] = deque()
        starts: dict[int, list[Group]] = {}
        for group in groups:
            starts.setdefault(self._first_reader(group), []).append(group)
        try:
            self._reference_logits()
            for index, values in self._exact.steps(self._rows({})):
                for group in starts.get(index, []):
                    while len(waiting) >= self._workers:
                        done, run = waiting.popleft()
                        yield done, run.result()
                    x = self._inputs(group, values)
                    task = partial(self._of_group, group, stored[group], x, self._model.first_of(values), index)
                    waiting.append((group, Awaited(pool, task)))
            while waiting:
                done, run = waiting.popleft()
                yield done, run.result()
        finally:
            for _, run in waiting:
                run.cancel()

    def _of_group(
        self, group: Group, stored: Sequence[StoredGroup], x: Floats | None, values: Values, index: int
    ) -> list[float]:
        errors = self._errors(group, stored, x) if len(stored) > 1 else [1.0]
        probe = next((position for position, error in enumerate(errors) if error > LOSSLESS * max(errors)), 0)
        rows_of = self._rows(stored[probe])
        if self._is_calibrated and x is not None:
            rows_of = self._calibrated(stored[probe], x)
        probed = self._finish(values, index, rows_of)
        scale = probed / errors[probe] if errors[probe] else 0.0
        return [_rounded(scale * error) for error in errors]

    def _calibrated(self, stored: StoredGroup, x: Floats) -> RowsOf:
        """Rows of a group that its algorithm has rounded for its exact inputs, and others as they are stored; exact
        ones of the rest."""
        name, exact, nearest = next(iter(stored)), self._rows({}), self._rows(stored)
        algorithm, scheme = self._algorithm_of(name), stored[name].scheme
        prepare = None if algorithm == "rtn" else ROUNDINGS[algorithm].prepare
        if prepare is None or not isinstance(scheme, Quantized):
            return nearest
        made: dict[str, Floats] = {}
        try:
            round_rows = prepare(scheme, x, x, None, 1)
            for name, weight in stored.items():
                if is_kept(weight) or self._gain_apart(name, weight) is not None:
                    continue
                rows = exact(name, 0, self._module.weights[name].shape[0])
                made[name] = dequantize_rows(round_rows(rows, None), scheme)
        except QuantizeError as error:
            raise QuantizeError(f"quantize: {name}: {error}") from error
        return lambda name, start, stop: made[name][start:stop] if name in made else nearest(name, start, stop)

    def _errors(self, group: Group, stored: Sequence[StoredGroup], x: Floats | None) -> list[float]:
        """Return the squared error under each scheme of the group's products with x [tokens, K], or of its values."""
        gram = None if x is None else x.T @ x
        errors = [0.0] * len(stored)
        for name in group:
            for start, stop in _some_rows(self._module.weights[name].shape[0]):
                exact = self._rows({})(name, start, stop)
                for position, each in enumerate(stored):
                    lost = exact - self._rows(each)(name, start, stop)
                    seen = lost if gram is None else lost @ gram
                    errors[position] += float(np.einsum("nk,nk->", seen, lost, dtype=np.float64))
        return errors

    def _inputs(self, group: Group, values: Values) -> Floats | None:
        """Return what all matrices of a group are multiplied by, on the windows that calibrate; None where one is
        looked up, or inputs differ."""
        readers = [reader for name in group for reader in weight_readers(self._module.graph, name)]
        operands = {reader.operands[0] for reader in readers}
        if len(operands) > 1 or any(OPERATORS[reader.kind].role != "matmul" for reader in readers):
            return None
        name = operands.pop()
        if not all(reader in self._model.body.operations for reader in readers):
            head = self._model.head
            if head is None or name != head.parameters[0].name:
                return None
            name = self._model.body.result
        first = self._model.windows.ids.size if self._is_calibrated else 0
        return floats(values[name])[first:]

    def _first_reader(self, group: Group) -> int:
        """The first operation of the body that reads a matrix of the group; one past its end when none does."""
        operations = self._model.body.operations
        return next((i for i, o in enumerate(operations) if not set(group).isdisjoint(o.weights)), len(operations))

    # --- running

    def _finish(self, values: Values, index: int, rows_of: RowsOf) -> float:
        """Run the model on from operation `index` of its body, and return the distance of its predictions."""
        reference = self._reference_logits()
        return self._compared(reference, self._model.predictions(values, index, rows_of, self._positions))

    def _compared(self, reference: Floats, predictions: Floats) -> float:
        measured = _distance(reference, predictions, is_decoder=self._model.head is not None)
        self._advance(1)
        return _rounded(measured)

    def _reference_logits(self) -> Floats:
        if self._reference is None:
            weights, model = self._reference_of.weights, Predictor(self._reference_of, self._model.windows)

            def rows_of(name: str, start: int, stop: int) -> Floats:
                return evaluate_rows(unstored(weights[name]), start, stop, self._files)

            self._reference = model.predictions(model.inputs(), 0, rows_of, self._positions)
        return self._reference

    def _rows(self, stored: StoredGroup) -> RowsOf:
        """Rows of a group as it is stored, and exact ones of the rest."""

        def rows_of(name: str, start: int, stop: int) -> Floats:
            if name not in stored:
                return evaluate_rows(self._base(name), start, stop, self._files)
            rows = stored_rows(name, stored[name], start, stop, self._files)
            gain = self._gain_apart(name, stored[name])
            return rows if gain is None else rows * evaluate_rows(gain, 0, gain.shape[0], self._files)

        return rows_of

    def _base(self, name: str) -> Expression:
        return unstored(self._module.weights[name])

    def _gain_apart(self, name: str, weight: Stored) -> Expression | None:
        """Return the gain that is in a matrix's columns here, where a build leaves it apart."""
        base = self._base(name)
        return base.vector if isinstance(base, ScaledColumns) and base.base == weight.base else None

    def _entry(self, *parts: object) -> str:
        return blake3(repr((self._key, *parts)).encode()).hexdigest()

    def _digest(self, module: Module) -> str:
        """What stands for a module's predictions."""
        paths = {source.path for weight in module.weights.values() for source in sources(weight)}
        digests = {path: self._files.digest(path) for path in sorted(paths)}
        weights = [(name, expression_digest(weight, digests)) for name, weight in module.weights.items()]
        return blake3(repr((print_graph(module.graph), weights, prefix_digest(module))).encode()).hexdigest()


def _some_rows(rows: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of at most ERROR_ROWS rows in all, spread evenly."""
    blocks = min(ERROR_BLOCKS, -(-rows // (ERROR_ROWS // ERROR_BLOCKS)))
    for block in range(blocks):
        start = rows * block // blocks
        yield start, min(rows * (block + 1) // blocks, start + ERROR_ROWS // ERROR_BLOCKS)


def _rounded(distance: float) -> float:
    return float(f"{distance:.{DIGITS}g}")


def _distance(exact: Floats, rounded: Floats, *, is_decoder: bool) -> float:
    """Return the mean KL of rows of logits in nats, or one minus the mean cosine of vectors."""
    if not is_decoder:
        difference = _directions(exact) - _directions(rounded)
        return float((difference * difference).sum(axis=1).mean() / 2)  # |u - v|^2 = 2 - 2 cos, and 0 for equal ones
    total = 0.0
    for start in range(0, len(exact), SCORED_ROWS):
        p, q = (log_probabilities(each[start : start + SCORED_ROWS]) for each in (exact, rounded))
        total += float(np.einsum("rv,rv->", np.exp(p), p - q))
    return max(total / len(exact), 0.0)


def _directions(vectors: Floats) -> NDArray[np.float64]:
    """Return rows in f64, divided by their lengths. Equal rows give equal ones: no sum depends on where they lie."""
    wide = vectors.astype(np.float64)
    found: NDArray[np.float64] = wide / np.maximum(np.sqrt((wide * wide).sum(axis=1, keepdims=True)), 1e-30)
    return found
