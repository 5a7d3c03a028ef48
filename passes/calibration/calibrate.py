"""Calibrate: choose the codes of quantized matrices by what a text makes of their inputs, one product after another.

The graph of logical operators is interpreted over all tokens of the text at once, with exact weights and with rounded
ones. A product is rounded when its inputs are known, so that over inputs that earlier rounding has changed it gives
what it gave over exact ones; what comes behind it sees the rounded weights. Its codes go to a file, from which the
build then reads them as it reads a checkpoint (`weights.Rounded`), and to the build cache, from which an interrupted
calibration goes on. Memory: the values between two products for all tokens, twice, and those of the largest matrix.
Algorithms that look at exact inputs alone interpret once. Which algorithm does what: `passes.rounding`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache as once
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from pyc.compiler import gptq
from pyc.compiler.digest import expression_digest
from pyc.compiler.evaluate import evaluate_rows, stored_scheme, unstored
from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Function, Module
from pyc.compiler.operands import sources
from pyc.compiler.quantization import QuantizedRows, dequantize_rows, quantize_rows
from pyc.compiler.recipe.types import Algorithm
from pyc.compiler.scales import Floats
from pyc.compiler.schemes import Quantized
from pyc.compiler.text import print_graph
from pyc.compiler.weights import Expression, Rounded, Source, Stacked
from pyc.passes.calibration.imported_importance import Importance
from pyc.passes.calibration.matrix_algorithms import calibrated, is_product, is_quantized, rounded, scaled
from pyc.passes.calibration.output_sketch import MOST_ROWS, OutputSketches, Sketch
from pyc.passes.calibration.rounding import ROUNDINGS, RoundRows, by_importance
from pyc.passes.calibration.rounding_job import ROUND_ROWS, RoundingJob, joined, rounding_jobs
from pyc.passes.calibration.scale_channels import scale_channels, scaled_weights
from pyc.passes.interpretation.interpret_text import (
    Array,
    TextInterpreter,
    Values,
    Windows,
    floats,
    prefix_digest,
    quantized,
    stored_rows,
)
from pyc.passes.jobs.job import JobExecutor
from pyc.passes.jobs.local import LocalJobs
from pyc.runtime.artifact.format import PassRecord
from pyc.runtime.errors import QuantizeError
from pyc.runtime.host.machine import allowed_cpus

VERSION = 9
"""Changes when the same text would give other codes."""
ALIGNMENT = 64

_NUMPY = {"u8": "u1", "f16": "<f2", "f32": "<f4"}

Advance = Callable[[int], None]
"""Is told how many weights are done."""


def calibrate(
    module: Module,
    windows: Windows | None,
    files: SourceFiles,
    cache: Cache,
    folder: Path,
    advance: Advance,
    algorithm: Algorithm = "gptq",
    migration: float = 0.5,
    importance: Importance | None = None,
    executor: JobExecutor | None = None,
    workers: int | None = None,
) -> Module:
    """Return the module, whose passes are the common ones, with `Rounded` weights where their scheme quantizes.

    Overrides may name other algorithms than `algorithm` (`matrix_algorithms`). SmoothQuant's strength is `migration`;
    `imatrix` takes `importance` where the recipe brings some, and `windows` are None where no other algorithm is used.
    `folder` gets files that are read as long as the build lasts. `executor` rounds matrices (without one, threads of
    this process), and `workers` threads (one for each CPU that the process can use) share what products it takes to
    know their inputs. Raises QuantizeError, IngestError, ClusterError and OSError.
    """
    count = workers or allowed_cpus()
    if executor is None:
        with LocalJobs(count, cache) as threads:
            return calibrate(
                module, windows, files, cache, folder, advance, algorithm, migration, importance, threads, count
            )
    records = calibration_records(module, windows, algorithm, migration, importance)
    if not records:
        return module
    chosen = calibrated(module, algorithm, importance)
    if windows is not None:
        module = with_scaled_channels(module, windows, files, cache, folder, advance, algorithm, migration)
    made = dict(module.weights)
    if rounded(chosen):
        with open(folder / "codes", "wb") as file:
            run = _Calibration(
                module, windows, files, executor, count, file, advance, rounded(chosen), importance or {}
            )
            run.calibrate()
        made |= run.rounded
    return replace(module.with_graph(module.graph, made), passes=(*module.passes, *records))


def calibration_records(
    module: Module,
    windows: Windows | None,
    algorithm: Algorithm,
    migration: float,
    importance: Importance | None = None,
) -> tuple[PassRecord, ...]:
    """Return what `calibrate` records of a module: nothing where there is no matrix to round."""
    chosen = calibrated(module, algorithm, importance)
    if not chosen:
        return ()
    options: dict[str, str] = {"algorithm": algorithm}
    if windows is not None:
        options |= {"tokens": str(windows.ids.size), "window": str(windows.ids.shape[1])}
    if scaled(chosen)[0] == "smoothquant":
        options["migration"] = repr(migration)
    if windows is not None:
        options["text"] = windows.digest[:16]
    if importance is not None:
        options["importance"] = blake3(repr(sorted(map(_heard, importance.items()))).encode()).hexdigest()[:16]
    return (PassRecord("calibrate", VERSION, msgspec.json.encode(options).decode()),)


def _heard(item: tuple[str, tuple[Floats, ...]]) -> tuple[str, str]:
    """The name of a matrix, and what stands for its importance."""
    name, parts = item
    return name, blake3(b"".join(part.tobytes() for part in parts)).hexdigest()


def with_scaled_channels(
    module: Module,
    windows: Windows,
    files: SourceFiles,
    cache: Cache,
    folder: Path,
    advance: Advance,
    algorithm: Algorithm,
    migration: float,
) -> Module:
    """Return what an algorithm makes of a module before it chooses codes; raises as `calibrate` does."""
    method, names = scaled(calibrated(module, algorithm))
    if method is None:
        return module
    key = _key(module, windows, {path: files.digest(path) for path in _paths(module)})
    return scale_channels(module, method, names, migration, windows, files, cache, key, folder, advance)


def weights_to_round(module: Module, algorithm: Algorithm = "gptq", importance: Importance | None = None) -> int:
    """Return how many weights calibration chooses factors for, sketches, and rounds: what `advance` is told in all."""
    chosen = calibrated(module, algorithm, importance)
    method, names = scaled(chosen)
    first = 0 if method is None else scaled_weights(module, method, names)
    steps = {name: 2 if ROUNDINGS[used].is_two_sided else 1 for name, used in rounded(chosen).items()}
    return first + sum(_size(module.weights[name]) * count for name, count in steps.items())


def _size(expression: Expression) -> int:
    rows, columns = expression.shape
    return rows * columns


class _Calibration:
    """Two streams of values: exact ones, of the weights as they were, and those of the weights as they are rounded."""

    def __init__(
        self,
        module: Module,
        windows: Windows | None,
        files: SourceFiles,
        executor: JobExecutor,
        workers: int,
        file: BinaryIO,
        advance: Advance,
        chosen: Mapping[str, Algorithm],
        importance: Importance,
    ) -> None:
        self._chosen, used, self._importance = chosen, set(chosen.values()), importance
        self._reads_rounded = any(ROUNDINGS[algorithm].reads_rounded for algorithm in used)
        self._module, self._files, self._executor, self._workers = module, files, executor, workers
        self._text = None if windows is None else TextInterpreter(module, windows, workers)
        self._file, self._advance = file, advance
        self._key = _key(module, windows, executor.digests(_paths(module), files))
        # What one matrix is rounded by, the others' rounding has changed.
        known = [(name, importance) for name, importance in self._importance.items() if self._is_known(name)]
        self._all_chosen = (*sorted(chosen.items()), *sorted(map(_heard, known)))
        self.rounded: dict[str, Rounded] = {}
        self._sketches: OutputSketches | None = None
        names = [name for name in module.graph.weight_names() if self._is_two_sided(name)]
        if names and windows is not None:
            self._sketches = OutputSketches(module, windows, self._exact_rows, names, self._is_missing, advance)

    def calibrate(self) -> None:
        """Round every weight that is chosen, those of known importance first."""
        for name in self._chosen:
            if self._is_known(name):
                self._round(name, None, None)
        if self._text is None or all(map(self._is_known, self._chosen)):
            return
        functions = {function.name: function for function in self._module.graph.functions}
        exact: Values = self._text.inputs()
        values = dict(exact) if self._reads_rounded else exact
        if "embed" in functions:
            self._run(functions["embed"], exact, values, is_last=True)
            return
        result, hidden = self._run(functions["forward"], exact, values, is_last=False)
        exact = {"hidden": result}
        values = {"hidden": hidden} if self._reads_rounded else exact
        self._run(functions["logits"], exact, values, is_last=True)

    def _is_known(self, name: str) -> bool:
        return self._chosen.get(name) == "imatrix" and name in self._importance

    def _run(self, function: Function, exact: Values, values: Values, *, is_last: bool) -> tuple[Array, Array]:
        """Interpret a function on both streams and return its results, of which a product is not computed `is_last`.

        `values` are `exact` where rounded ones are not looked at.
        """
        streams = [(exact, self._exact_rows), (values, self._rows)][: 1 if values is exact else 2]
        last_use = {name: index for index, o in enumerate(function.operations) for name in o.operands}
        for index, operation in enumerate(function.operations):
            result = operation.result.name
            if operation.kind == "linear" and operation.weights[0] in self._chosen:
                name, source = operation.weights[0], operation.operands[0]
                if name not in self.rounded:
                    self._round(name, floats(exact[source]), floats(values[source]))
            if not (is_last and result == function.result and operation.kind == "linear"):
                for stream, rows_of in streams:
                    assert self._text is not None
                    stream[result] = self._text.value(operation, [stream.get(n) for n in operation.operands], rows_of)
            for name in operation.operands:
                if last_use[name] == index and name != function.result:
                    exact.pop(name, None)
                    values.pop(name, None)
        nothing = np.empty(0, np.float32)
        return exact.get(function.result, nothing), values.get(function.result, nothing)

    # --- weights

    def _exact_rows(self, name: str, start: int, stop: int) -> Floats:
        """The values of rows of a weight before they are rounded; of a table whose codes nothing chooses, as they are
        stored."""
        weight = self._module.weights[name]
        if name in self._chosen or (is_quantized(weight) and is_product(self._module, name)):
            return evaluate_rows(unstored(weight), start, stop, self._files)
        return self._stored_rows(name, start, stop)

    def _rows(self, name: str, start: int, stop: int) -> Floats:
        """The values of rows of a weight as the artifact has them. The file still grows: `SourceFiles` waits for it."""
        rounded = self.rounded.get(name)
        if rounded is None:
            return self._stored_rows(name, start, stop)
        codes = _read(rounded.codes, start, stop)
        zero = None if rounded.zero is None else _read(rounded.zero, start, stop)
        outer = None if rounded.outer is None else _read(rounded.outer, start, stop)
        stored = QuantizedRows(codes, _read(rounded.scale, start, stop), zero, outer)
        return dequantize_rows(stored, quantized(rounded.scheme))

    def _stored_rows(self, name: str, start: int, stop: int) -> Floats:
        return stored_rows(name, self._module.weights[name], start, stop, self._files)

    def _round(self, name: str, exact: Floats | None, x: Floats | None) -> None:
        """Choose the codes of a weight, or take them from the cache, and append them to the file. Inputs are None where
        importance is known."""
        expression = self._module.weights[name]
        scheme = quantized(stored_scheme(expression))
        steps = 2 if self._is_two_sided(name) else 1  # sketched, and rounded

        @once
        def prepared() -> list[RoundRows]:
            nonlocal steps
            sketch = None
            if self._sketches is not None and self._is_two_sided(name):
                sketch = self._sketches.take(name)
                steps -= sketch is not None
            found = self._roundings(name, expression, scheme, exact, x, sketch)
            self._files.check()  # inputs are those of the whole model, and jobs look at the matrix alone
            return found

        jobs = self._jobs(name, prepared)
        parts = _parts_of(expression, scheme)
        with contextlib.closing(self._executor.results(jobs, self._files, {})) as results:
            rows = (b"".join(pieces) for pieces in results)
            data = joined(rows, jobs, [width * size for _, width, size in parts])
        self.rounded[name] = self._append(name, data, expression, scheme, parts)
        self._advance(_size(expression) * steps)

    def _jobs(self, name: str, prepared: Callable[[], list[RoundRows]]) -> list[RoundingJob]:
        """Return the jobs of a matrix, or of each matrix of a stack that has importance of its own."""
        given = _heard((name, self._importance[name])) if self._is_known(name) else (name, *self._all_chosen)
        key = blake3(f"{self._key} {self._chosen[name]} {given}".encode()).hexdigest()
        expression, first = self._module.weights[name], 0
        most_rows = MOST_ROWS if self._is_two_sided(name) else ROUND_ROWS
        found: list[RoundingJob] = []
        for index, rows in enumerate(part.shape[0] for part in self._ranges(name)):
            of_range = once(partial(_item, prepared, index))
            found += rounding_jobs(key, name, expression, of_range, (first, first + rows), most_rows)
            first += rows
        return found

    def _ranges(self, name: str) -> tuple[Expression, ...]:
        """Return what of a matrix is rounded alike: all, or each matrix of a stack."""
        expression = self._module.weights[name]
        return expression.parts if self._is_known(name) and isinstance(expression, Stacked) else (expression,)

    def _is_two_sided(self, name: str) -> bool:
        return name in self._chosen and ROUNDINGS[self._chosen[name]].is_two_sided

    def _is_missing(self, name: str) -> bool:
        """Whether codes are still to be chosen."""
        return not all(map(self._executor.has, self._jobs(name, list)))

    def _roundings(
        self,
        name: str,
        expression: Expression,
        scheme: Quantized,
        exact: Floats | None,
        x: Floats | None,
        sketch: Sketch | None,
    ) -> list[RoundRows]:
        """Return how each of `_ranges` is rounded."""
        try:
            if exact is None or x is None:
                pairs = zip(self._ranges(name), self._importance[name], strict=True)
                return [by_importance(heard, scheme) for _, heard in pairs]
            prepare = ROUNDINGS[self._chosen[name]].prepare
            assert prepare is not None
            return [prepare(scheme, exact, x, sketch, self._workers)]
        except QuantizeError as error:
            raise QuantizeError(f"calibrate: {name}: {error}") from error

    def _append(
        self, name: str, data: bytes, expression: Expression, scheme: Quantized, described: _Parts
    ) -> Rounded:
        rows, offset = expression.shape[0], self._file.tell()
        parts: list[Source] = []
        for dtype, width, size in described:
            parts.append(Source(self._file.name, name, dtype, (rows, width), offset, rows * width * size))
            offset += rows * width * size
        expected = sum(part.size_bytes for part in parts)
        assert len(data) == expected, (name, len(data), expected)
        self._file.write(data + bytes(-len(data) % ALIGNMENT))
        self._file.flush()
        zero = next((part for part in parts[2:] if part.dtype == "u8"), None)
        outer = next((part for part in parts[2:] if part.dtype == "f32"), None)
        return Rounded(parts[0], parts[1], zero, scheme, outer)


def _item(prepared: Callable[[], list[RoundRows]], index: int) -> RoundRows:
    return prepared()[index]


_Parts = list[tuple[str, int, int]]
"""Of each array of a rounded matrix its dtype, what it has for a row, and the bytes of one of these."""


def _parts_of(expression: Expression, scheme: Quantized) -> _Parts:
    """Return the arrays of a rounded matrix: codes, scales, zero points and outer scales, where there are some."""
    columns = expression.shape[1]
    nearest = quantize_rows(np.zeros((1, columns), np.float32), scheme)
    groups, item = nearest.scale.shape[1], nearest.scale.dtype.itemsize
    parts = [("u8", columns, 1), ("f32" if nearest.scale.dtype == np.float32 else "f16", groups, item)]
    if nearest.zero is not None:
        parts.append(("u8", groups, 1))
    if nearest.outer is not None:
        parts.append(("f32", 1, 4))
    return parts


def _read(source: Source, start: int, stop: int) -> NDArray[Any]:
    dtype, width = np.dtype(_NUMPY[source.dtype]), source.shape[1]
    offset = source.offset + start * width * dtype.itemsize
    return np.fromfile(source.path, dtype, (stop - start) * width, offset=offset).reshape(stop - start, width)


def _paths(module: Module) -> list[str]:
    return sorted({source.path for weight in module.weights.values() for source in sources(weight)})


def _key(module: Module, windows: Windows | None, digests: Mapping[str, str]) -> str:
    """What stands for all that the codes depend on; `digests` are those of files by path."""
    weights = [(name, expression_digest(weight, digests)) for name, weight in module.weights.items()]
    text = (() if windows is None else (windows.key,)) + prefix_digest(module)
    parts = ("calibrate", VERSION, gptq.DAMPING, print_graph(module.graph), weights, *text)
    return blake3(repr(parts).encode()).hexdigest()
