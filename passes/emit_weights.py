"""Emit weights: evaluates expressions piece by piece on several threads, in order and in bounded memory.

numpy and compiled packers release the interpreter lock in their loops, so threads of one process are enough; another
executor (a process pool, a cluster) can take their place, because a piece is a pure function of its expression. Results
are taken in order and at most two a worker are in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor

from pyc.compiler.awaited import Awaited
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.storage import Piece
from pyc.compiler.weights import Expression, sources
from pyc.runtime.errors import QuantizeError


def emit_weight(
    name: str,
    expression: Expression,
    pool: Executor,
    workers: int,
    files: SourceFiles,
    pieces: Callable[[Expression, SourceFiles], Iterable[Piece]],
) -> Iterator[memoryview]:
    """Yield the bytes of a stored weight in order; `pieces` gives the tasks that compute them (`Backend.pieces`).

    Raises IngestError and QuantizeError; a QuantizeError names the weight. That a source file changed is known by the
    end at the latest: whoever took every piece has the weight of the files as they were opened.
    """
    yield from _in_order(pieces(expression, files), pool, 2 * workers, name)
    files.check(dict.fromkeys(source.path for source in sources(expression)))


def _in_order(
    tasks: Iterable[Callable[[], memoryview]],
    pool: Executor,
    ahead: int,
    name: str,
) -> Iterator[memoryview]:
    waiting: deque[Awaited[memoryview]] = deque()
    try:
        for task in tasks:
            waiting.append(Awaited(pool, task))
            if len(waiting) >= ahead:
                yield _taken(waiting.popleft(), name)
        while waiting:
            yield _taken(waiting.popleft(), name)
    finally:
        for awaited in waiting:
            awaited.cancel()


def _taken(awaited: Awaited[memoryview], name: str) -> memoryview:
    try:
        return awaited.result()
    except QuantizeError as error:
        raise QuantizeError(f"quantize: {name}: {error}") from error
