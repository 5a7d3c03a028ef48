"""Looks for matrices whose weights are too small for the scales of their scheme, and says so once.

Scales of f16, and of a byte with a row's power of two, end at 2^-24: below it what they multiply is coarse, and then
zero (`compiler.quantization`). Schemes with scales of f32, and floating point of 8 or 16 bits but f16, are as exact for
a small matrix as for a large one. A few rows of each matrix are read, and only small ones rounded: as they are, and
times a power of two that brings them near 1, which changes the error of scales alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from pyc.compiler.evaluate import Floats, is_rounded
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.quantization import store_rows
from pyc.compiler.schemes import Dense, Scheme
from pyc.compiler.weights import Expression, Stored
from pyc.passes.interpretation.interpret_text import stored_values
from pyc.passes.interpretation.sampled_rows import is_cheap, some_rows
from pyc.runtime.errors import IngestError, QuantizeError

logger = logging.getLogger(__name__)

LARGE = 2.0**-7
"""No scheme loses precision where a weight is that large."""

WORSE = 2.0
"""Errors so many times what they are without the limits of scales are worth a word."""

LEAST_ERROR = 2.0**-8
"""Relative to the weights; int8 errs as much."""

@dataclass(frozen=True, slots=True)
class _Small:
    name: str
    scheme: str
    largest: float
    times: float


def warn_of_small_weights(module: Module, files: SourceFiles) -> None:
    """Log one warning where matrices of a module, stored but not stacked, lose precision to the limits of scales."""
    weights = module.weights.items()
    found = [small for name, weight in weights if (small := _small(name, weight, files)) is not None]
    if not found:
        return
    first, others = found[0], f" and {len(found) - 1} more matrices" if len(found) > 1 else ""
    logger.warning(
        "%s%s: weights of at most %.2g are too small for the scales of %s: rounding errs %.2g times as much as it does "
        "for larger ones; store them as int8, fp8 or bf16, by an override",
        first.name, others, first.largest, first.scheme, first.times,
    )  # fmt: skip


def _small(name: str, weight: Expression, files: SourceFiles) -> _Small | None:
    if not isinstance(weight, Stored) or len(weight.shape) != 2 or is_rounded(weight) or not is_cheap(weight.base):
        return None
    scheme = weight.scheme
    if isinstance(scheme, Dense) and scheme.dtype != "f16":
        return None
    try:
        rows = some_rows(weight.base, files)
        largest = float(np.abs(rows).max(initial=0))
        if not 0 < largest < LARGE:
            return None
        error, without = (_error(each, scheme) for each in (rows, np.ldexp(rows, -int(np.frexp(largest)[1]))))
    except (IngestError, QuantizeError):  # a build says so, and reads it all
        return None
    if error <= max(WORSE * without, LEAST_ERROR):
        return None
    return _Small(name, scheme.name, largest, error / max(without, 2.0**-12))


def _error(rows: Floats, scheme: Scheme) -> float:
    """Return the root of the mean square of what rounding changes, relative to that of the rows."""
    lost = stored_values(store_rows(rows, scheme), scheme).astype(np.float64) - rows
    return float(np.sqrt(np.square(lost).mean() / np.square(rows, dtype=np.float64).mean()))
