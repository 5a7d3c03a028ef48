"""How much memory a calibration takes, or measuring schemes: the values of all tokens that are still to be read.

All of it is known from shapes.

    process     the interpreter, numpy and pyc, before a compiler is loaded                        65 MB
    arenas      what the C library keeps of what each worker has given back, in memory of its own  10 MB a worker
    values      as `interpret_text` holds them: those of all tokens, once or twice (exact, rounded)
    operation   what numpy makes beside its result
    matrix      the squares of inputs [K, K], their inverse in f64, and then copies of rows, some for each worker
    sketches    of YAQA: of the matrices that come next, and, while they are made, a run of some windows and back

Measured with the demo model, 4096 and 16384 tokens (tests/passes/driver/test_estimate.py measures again).
"""

from __future__ import annotations

from collections import Counter
from math import prod

from pyc.compiler.evaluate import is_rounded, stored_scheme
from pyc.compiler.ir import Function, Module, Operation
from pyc.compiler.operators import OPERATORS
from pyc.compiler.recipe.types import Algorithm
from pyc.compiler.rewrite import weight_readers
from pyc.compiler.schemes import Quantized
from pyc.passes.calibration.output_sketch import MOST_BYTES, MOST_ROWS, TOKENS_AT_A_TIME
from pyc.passes.calibration.rounding import ROUNDINGS
from pyc.passes.calibration.rounding_job import ROUND_ROWS
from pyc.passes.interpretation.interpret_text import ROWS_AT_A_TIME
from pyc.passes.mixed_precision.measure_schemes import POSITION_BYTES, SCORED_ROWS

PROCESS_BYTES = 65_000_000
ARENA_BYTES = 10_000_000
"""Measured: 20 to 22 MB less with two workers and MALLOC_ARENA_MAX=1."""
INVERSION_BYTES = 48
"""Of a pair of inputs of the matrix that is rounded: squares f32 twice, and what inverts them in f64, with LAPACK's
copies."""

SQUARE_BYTES = 12
"""Of such a pair while rows are rounded: H, the factor of its inverse, and what gives way to rounded inputs, f32."""

WEIGHT_BYTES = 28
"""Of each weight of the rows that a worker rounds at once: their values, what is left, errors, products and codes."""

OPERAND_BYTES = 12
"""Of each weight of the rows that are multiplied with at once."""

SCORING_COPIES = 4
"""Arrays f64 of the rows of logits that are compared at once."""

_BESIDE = {"gated": 3.0, "activation": 3.0, "rope": 2.0, "head_norm": 2.0, "rms_norm": 1.0, "layer_norm": 2.0}
"""Temporary arrays of an operation, in sizes of its result."""


def calibration_peak_bytes(
    module: Module, algorithms: tuple[Algorithm, ...], windows: int, length: int, workers: int
) -> int:
    """Return about what the process of a build takes at its peak while it calibrates `windows` of `length` tokens.

    `module` is the common one. Zero for algorithms that read no text.
    """
    roundings = [ROUNDINGS[name] for name in algorithms if name != "rtn"]
    if not roundings or not windows or not any(_is_chosen(module, name) for name in module.weights):
        return 0
    streams = 2 if any(each.reads_rounded for each in roundings) else 1
    sketches = None
    if any(each.is_two_sided for each in roundings):
        part = min(windows, max(1, TOKENS_AT_A_TIME // length)) * length
        sketches = _Sketches(module, _gradients_bytes(module, part, length))
    most = 0
    for function in module.graph.functions:
        if function.name == "prompt":
            continue
        held = _values_peak_bytes(module, function, windows * length, length, streams, sketches, workers)
        most = max(most, held)
    return PROCESS_BYTES + workers * ARENA_BYTES + most


def measuring_peak_bytes(
    module: Module, tokens: int, calibrated_by: int, length: int, workers: int, *, calibrates: bool
) -> int:
    """Return about what the process of a build takes at its peak while it measures schemes for a goal.

    `module` is the common one. `tokens` in windows of `length` are predicted, and as many logits kept as
    `measure_schemes` scores; the exact run has `calibrated_by` more. Each worker runs the model on from a matrix, which
    is rounded by its inputs where the recipe `calibrates`, and compares logits with the exact ones, some rows in f64.
    """
    body = next(function for function in module.graph.functions if function.name in ("forward", "embed"))
    head = next((function for function in module.graph.functions if function.name == "logits"), None)
    logits_bytes = scoring_bytes = 0
    if head is not None:
        row_bytes = _bytes(head.operations[-1].result.type.shape, 1)
        logits_bytes = min(tokens * row_bytes, POSITION_BYTES)
        scoring_bytes = SCORING_COPIES * 2 * min(SCORED_ROWS * row_bytes, logits_bytes)
    exact = _values_peak_bytes(module, body, tokens + calibrated_by, length, 1, None, 1, rounds=False)
    run = _values_peak_bytes(module, body, tokens, length, 1, None, 1, rounds=False)
    if calibrates:
        products = (o for o in body.operations if o.kind == "linear" and _is_chosen(module, o.weights[0]))
        run = max([run, *(_rounding_bytes(module, operation, 1) for operation in products)])
    return PROCESS_BYTES + logits_bytes + exact + workers * (run + logits_bytes + scoring_bytes)


def _values_peak_bytes(
    module: Module,
    function: Function,
    rows: int,
    length: int,
    streams: int,
    sketches: _Sketches | None,
    workers: int,
    *,
    rounds: bool = True,
) -> int:
    """Values of a function, each as long as it or a part of it is read, and what its largest operation makes beside."""
    base = _bases(function)
    last: dict[str, int] = {}
    for index, operation in enumerate(function.operations):
        for name in operation.operands:
            last[base.get(name, name)] = index
    live: Counter[str] = Counter()
    for parameter in function.parameters:
        if parameter.name in last and parameter.type.shape[0] == "tokens":
            live[parameter.name] = 2 * _bytes(parameter.type.shape, rows)
    most = 0
    for index, operation in enumerate(function.operations):
        held = streams * sum(live.values())
        if rounds and operation.kind == "linear" and _is_chosen(module, operation.weights[0]):
            making = 0 if sketches is None else sketches.made(operation.weights[0])
            waiting = 0 if sketches is None else sketches.taken(operation.weights[0])
            most = max(most, held + making, held + waiting + _rounding_bytes(module, operation, workers))
        else:
            waiting = 0 if sketches is None else sketches.held_bytes
        result = _bytes(operation.result.type.shape, rows)
        is_last = operation.kind == "linear" and operation.result.name == function.result and function.name == "logits"
        if operation.result.name not in base and not is_last:  # whose results nothing reads
            live[operation.result.name] = result
            beside = _beside_bytes(module, operation, result, length)
            most = max(most, held + waiting + streams * result + beside)
        for name in [name for name in live if last.get(name, len(function.operations)) == index]:
            del live[name]
    return most


def _gradients_bytes(module: Module, rows: int, length: int) -> int:
    """A run over `rows` tokens whose values all stay, that of the windows before it, predictions and labels."""
    kept, beside = 0, 0
    for name in ("forward", "logits"):
        function = module.graph.function(name)
        base = _bases(function)
        sizes = {o.result.name: _bytes(o.result.type.shape, rows) for o in function.operations}
        kept += sum(size for value, size in sizes.items() if value not in base)
        beside = max(
            beside, *(_beside_bytes(module, o, sizes[o.result.name], length) for o in function.operations), 0
        )
    logits = _bytes(module.graph.function("logits").operations[-1].result.type.shape, rows)
    return 2 * kept + max(beside, 5 * logits)


class _Sketches:
    """The sketches that are there, as `output_sketch` makes them: of a matrix and those that come next, by gradients
    that take `gradients_bytes` meanwhile."""

    def __init__(self, module: Module, gradients_bytes: int) -> None:
        self._gradients_bytes = gradients_bytes
        names = (name for name in module.graph.weight_names() if _is_chosen(module, name))
        shapes = {name: module.weights[name].shape for name in names}
        self._sizes = {
            name: 4 * (rows * rows + columns * columns) for name, (rows, columns) in shapes.items() if rows <= MOST_ROWS
        }
        self._there: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        """Those of the sketches that are there."""
        return sum(self._there.values())

    def made(self, name: str) -> int:
        """Make those of a matrix and of what comes next, where that has none; return the bytes that this takes."""
        if name not in self._sizes or name in self._there:
            return 0
        for other in list(self._sizes)[list(self._sizes).index(name) :]:
            if self._there and self.held_bytes + self._sizes[other] > MOST_BYTES:
                break
            self._there[other] = self._sizes[other]
        return self.held_bytes + self._gradients_bytes

    def taken(self, name: str) -> int:
        """Return the bytes of all that are there when a matrix is rounded, whose sketch then is no more."""
        held = self.held_bytes
        self._there.pop(name, None)
        return held


def _is_chosen(module: Module, name: str) -> bool:
    expression = module.weights[name]
    if len(expression.shape) != 2 or not isinstance(stored_scheme(expression), Quantized) or is_rounded(expression):
        return False
    return all(OPERATORS[reader.kind].role == "matmul" for reader in weight_readers(module.graph, name))


def _bases(function: Function) -> dict[str, str]:
    """Return the value of which each is a view: numpy copies no columns for a slice."""
    found: dict[str, str] = {}
    for operation in function.operations:
        if operation.kind == "slice":
            found[operation.result.name] = found.get(operation.operands[0], operation.operands[0])
    return found


def _rounding_bytes(module: Module, operation: Operation, workers: int) -> int:
    """What rounding a matrix takes: first the inversion, then its rows, a job of them a worker."""
    rows, columns = module.weights[operation.weights[0]].shape
    at_once = min(rows, workers * ROUND_ROWS)
    rounded_bytes = SQUARE_BYTES * columns * columns + WEIGHT_BYTES * at_once * columns
    return max(INVERSION_BYTES * columns * columns, rounded_bytes)


def _beside_bytes(module: Module, operation: Operation, result_bytes: int, length: int) -> int:
    """What an operation takes beside its operands and its result."""
    if operation.kind in ("attention", "span_attention"):
        return 4 * 4 * operation.integer("heads") * length * length
    if operation.kind in ("linear", "embedding"):
        rows, columns = module.weights[operation.weights[0]].shape
        return OPERAND_BYTES * min(rows, ROWS_AT_A_TIME) * columns
    return int(_BESIDE.get(operation.kind, 0) * result_bytes)


def _bytes(shape: tuple[int | str, ...], rows: int) -> int:
    return 4 * prod(rows if isinstance(extent, str) else extent for extent in shape)
