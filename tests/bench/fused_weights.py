"""Time to evaluate the 168 adapted matrices of a model of Qwen3-0.6B's shapes, for each kind of adapter.

    OPENBLAS_NUM_THREADS=1 python tests/bench/fused_weights.py [KIND ...]

Matrices are bf16 files in the page cache, factors f32 of rank 16, each matrix with files of its own; two threads take
matrices in turn, as a build's do. `plain` is without an adapter. Prints seconds of the best and worst of three runs,
and the peak of memory that Python allocated.
"""

import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line sets it

import numpy as np

from pyc.compiler.evaluate import evaluate_rows
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.weights import (
    Added,
    Directed,
    Expression,
    Hadamard,
    Kronecker,
    LowRank,
    MatMul,
    Mixed,
    Rotated,
    Rotations,
    ScaledRows,
    Source,
)

SHAPES = [(2048, 1024), (1024, 1024), (1024, 1024), (1024, 2048), (3072, 1024), (1024, 3072)]
"""Of q, k, v, o, up and down: six of each of 28 layers."""
LAYERS = 28
RANK = 16
ROWS = 256


class Files:
    """Makes sources of random values in a folder: files of their own for each matrix, 0.7 GB in all."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._rng = folder, np.random.default_rng(0)
        self.layer = self.matrix = 0

    def source(self, *shape: int, dtype: str = "f32", part: int = 0) -> Source:
        """Return a tensor of a file, which is written when it is not there."""
        path = self._folder / f"{self.layer}-{self.matrix}-{part}-{dtype}-{'x'.join(map(str, shape))}"
        if not path.exists():
            values = np.float32(0.02) * self._rng.standard_normal(shape, np.float32)
            (values if dtype == "f32" else (values.view(np.uint32) >> 16).astype(np.uint16)).tofile(path)
        return Source(str(path), path.name, dtype, shape, 0, path.stat().st_size)


def expression(kind: str, files: Files, out: int, inputs: int) -> Expression:
    """Return a weight with an adapter of a kind."""
    base = files.source(out, inputs, dtype="bf16")
    a, b = files.source(RANK, inputs), files.source(out, RANK)
    c, d = files.source(RANK, inputs, part=1), files.source(out, RANK, part=1)
    low_rank = LowRank(base, a, b, 2.0)
    match kind:
        case "plain":
            return base
        case "lora":
            return low_rank
        case "dora":
            return Directed(low_rank, files.source(out))
        case "loha":
            return Added(base, Hadamard(MatMul(b, a), MatMul(d, c)), 1.0)
        case "lokr":
            return Added(base, Kronecker(files.source(32, 32), files.source(out // 32, inputs // 32)), 1.0)
        case "oft":
            return Rotated(base, Rotations(files.source(inputs // 32, 496), inputs // 32, 32, 5, 0.0), 0)
        case "boft":
            for factor in range(2):
                generators = files.source(inputs // 4, 4, 4, part=factor)
                base = Rotated(base, Rotations(generators, inputs // 4, 4, 0, 0.0), inputs // 4 >> factor)
            return ScaledRows(base, files.source(out))
        case "ties":
            parts = [Mixed(halves, (1.0, 0.5), 0.5, (), "total") for halves in ((a, c), (b, d))]
            return LowRank(base, parts[0], parts[1], 1.0)
    raise SystemExit(f"no kind {kind}")


def adapted(kind: str, files: Files) -> Iterator[Expression]:
    """Yield the weights of every layer."""
    for files.layer in range(LAYERS):
        for files.matrix, shape in enumerate(SHAPES):
            yield expression(kind, files, *shape)


def evaluate(weight: Expression, files: SourceFiles) -> None:
    """Evaluate a weight as a build does, some rows at a time."""
    for start in range(0, weight.shape[0], ROWS):
        evaluate_rows(weight, start, min(start + ROWS, weight.shape[0]), files)


def run(weights: list[Expression]) -> float:
    """Return the seconds that two threads take."""
    started = time.perf_counter()
    with SourceFiles() as opened, ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda weight: evaluate(weight, opened), weights))
    return time.perf_counter() - started


def main(kinds: list[str]) -> None:
    """Print a line for each kind."""
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        for kind in kinds or ["plain", "lora", "dora", "loha", "lokr", "oft", "boft", "ties"]:
            weights = list(adapted(kind, files))
            seconds = sorted(run(weights) for _ in range(3))
            tracemalloc.start()
            run(weights[: len(SHAPES)])
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            spent = f"{seconds[0]:5.2f} to {seconds[2]:5.2f} s"
            print(f"{kind:6} {len(weights)} matrices {spent}, peak {peak / 1e6:.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
