"""Emit weights: evaluates expressions piece by piece on several threads, in order and in bounded memory.

numpy and compiled packers release the interpreter lock in their loops, so threads of one process are enough; another
executor (a process pool, a cluster) can take their place, because a piece is a pure function of its expression. Results
are taken in order and at most two a worker are in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future

from pyc.compiler.evaluate import PackRows, store_panels
from pyc.compiler.storage import pieces
from pyc.compiler.weights import Expression
from pyc.runtime.errors import QuantizeError


def emit_weight(
    name: str, expression: Expression, pool: Executor, workers: int, pack: PackRows = store_panels
) -> Iterator[memoryview]:
    """Yield the bytes of a stored weight in order; `pack` quantizes and packs rows.

    Raises IngestError and QuantizeError; a QuantizeError names the weight.
    """
    return _in_order(pieces(expression, pack), pool, 2 * workers, name)


def _in_order(
    tasks: Iterable[Callable[[], memoryview]],
    pool: Executor,
    ahead: int,
    name: str,
) -> Iterator[memoryview]:
    waiting: deque[Future[memoryview]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(task))
            if len(waiting) >= ahead:
                yield _taken(waiting.popleft(), name)
        while waiting:
            yield _taken(waiting.popleft(), name)
    finally:
        for future in waiting:
            future.cancel()


def _taken(future: Future[memoryview], name: str) -> memoryview:
    try:
        return future.result()
    except QuantizeError as error:
        raise QuantizeError(f"quantize: {name}: {error}") from error
