"""Rounding a matrix as jobs: rows do not depend on each other once it is known what they are rounded by.

What that is (the factor of X'X, say) is made once a matrix, when the first of its jobs is to be done, and they share
it. Two-sided rounding lets rows make up for each other, so that a matrix is one job there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from pyc.compiler.evaluate import evaluate_rows, evaluate_stored, stored_scheme, unstored
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.operands import sources as weight_sources
from pyc.compiler.quantization import QuantizedRows
from pyc.compiler.scales import Floats
from pyc.compiler.schemes import Float8, LookupGroup
from pyc.compiler.storage import Piece
from pyc.compiler.weights import Expression, Source
from pyc.passes.calibration.rounding import RoundRows
from pyc.passes.jobs.job import BackendOf, Bytes

ROUND_ROWS = 4096
"""Rows of a job: fewer cost more calls for each column, more leave workers idle."""


@dataclass(frozen=True, slots=True)
class RoundingJob:
    """Rows [start, stop) of a matrix, to be rounded by what `shared` returns, a `RoundRows`.

    Its bytes are codes, scales, zero points and outer scales of the rows, one array behind another.
    """

    key: str
    name: str
    expression: Expression
    start: int
    stop: int
    shared: Callable[[], object] | None

    @property
    def sources(self) -> tuple[Source, ...]:
        """The tensors that the matrix is made of."""
        return weight_sources(self.expression)

    @property
    def counts(self) -> bool:
        """No: codes are packed before they are a part of an artifact."""
        return False

    def without_shared(self) -> RoundingJob:
        """Return what is sent of it."""
        return replace(self, shared=None)

    def pieces(self, files: SourceFiles, backend_of: BackendOf, shared: object) -> Iterator[Piece]:
        """Yield the one task."""
        assert callable(shared)
        yield partial(_rounded, self, files, shared)


def rounding_jobs(
    key: str,
    name: str,
    expression: Expression,
    prepared: Callable[[], RoundRows],
    rows: tuple[int, int],
    most_rows: int = ROUND_ROWS,
) -> tuple[RoundingJob, ...]:
    """Return the jobs of rows [start, stop) of a matrix, of `most_rows` at most; `key` stands for all that `prepared`
    returns."""
    spans = [(start, min(start + most_rows, rows[1])) for start in range(*rows, most_rows)]
    return tuple(
        RoundingJob(blake3(f"{key} [{start}, {stop})".encode()).hexdigest(), name, expression, start, stop, prepared)
        for start, stop in spans
    )


def joined(results: Iterable[Bytes], jobs: Sequence[RoundingJob], row_bytes: Sequence[int]) -> bytes:
    """Return the arrays of all jobs of a matrix, one behind another, by what each array has for a row."""
    columns: list[list[memoryview]] = [[] for _ in row_bytes]
    for data, job in zip(results, jobs, strict=True):
        view, offset = memoryview(data), 0
        for column, width in zip(columns, row_bytes, strict=True):
            column.append(view[offset : offset + width * (job.stop - job.start)])
            offset += width * (job.stop - job.start)
        assert offset == len(view), (job.name, offset, len(view))
    return b"".join(part for column in columns for part in column)


def _rounded(job: RoundingJob, files: SourceFiles, round_rows: RoundRows) -> memoryview:
    base, start, stop = unstored(job.expression), job.start, job.stop
    rows = round_rows(evaluate_rows(base, start, stop, files), _scale(job.expression, start, stop, files))
    arrays: list[NDArray[Any]] = [rows.codes, rows.scale]
    arrays += [part for part in (rows.zero, rows.outer) if part is not None]
    return memoryview(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))


def _scale(expression: Expression, start: int, stop: int, files: SourceFiles) -> Floats | None:
    """Return the scales that rows share with others, which are those of nearest rounding; None: they have their own."""
    scheme = stored_scheme(expression)
    if isinstance(scheme, Float8) and scheme.scaling != "row":
        stored = evaluate_stored(expression, start, stop, files)
        assert isinstance(stored, QuantizedRows)
        return stored.scale.astype(np.float32)
    if isinstance(scheme, LookupGroup) and scheme.scales == "e4m3":
        stored = evaluate_stored(expression, start, stop, files)
        assert isinstance(stored, QuantizedRows)
        return stored.outer
    return None
