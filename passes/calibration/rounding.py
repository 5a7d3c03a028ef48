"""How a calibration rounds a matrix, by the recipe's `algorithm`.

| algorithm | channels are scaled by | codes are chosen by |
|---|---|---|
| imatrix | | nearest, scales by the mean squares of inputs |
| gptq | | GPTQ and coordinate descent, scales by GPTQ's own errors |
| awq | AWQ | nearest, scales by the squared error of products |
| awq-gptq | AWQ | GPTQ |
| smoothquant | SmoothQuant | nearest |
| smoothquant-gptq | SmoothQuant | GPTQ |
| yaqa | | two-sided rounding; GPTQ of matrices without a sketch |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from pyc.compiler import gptq, scale_search, two_sided
from pyc.compiler.coordinate_descent import descend
from pyc.compiler.group_gptq import is_grouped, round_groups
from pyc.compiler.quantization import QuantizedRows
from pyc.compiler.recipe.types import Algorithm
from pyc.compiler.scales import Floats
from pyc.compiler.schemes import Quantized
from pyc.passes.calibration.output_sketch import Sketch
from pyc.passes.calibration.scale_channels import Method
from pyc.passes.interpretation import tiled_products

RoundRows = Callable[[Floats, Floats | None], QuantizedRows]
"""Rounds rows of a matrix, by scales or factors that are given where rows share them."""

Prepare = Callable[[Quantized, Floats, Floats, Sketch | None, int], RoundRows]
"""Is given a matrix's scheme, its exact inputs [tokens, K], those behind what is rounded already, a sketch where
the algorithm takes one, and how many threads share its products. Raises QuantizeError when they are not finite."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """What an algorithm does first, and then to each matrix. `reads_rounded`: by what earlier rounding has changed;
    `is_two_sided`: by sketches."""

    scaling: Method | None
    prepare: Prepare | None
    reads_rounded: bool = False
    is_two_sided: bool = False


def by_gptq(scheme: Quantized, exact: Floats, x: Floats, sketch: Sketch | None, workers: int) -> RoundRows:
    """Return GPTQ for a matrix, as `Prepare`: with scales that it searches, if it can, and then coordinate descent."""
    group = gptq.group_of_columns(scheme, x.shape[1]) if is_grouped(scheme) else 1
    cross = None if exact is x else tiled_products.cross(exact, x, workers)
    hessian = gptq.prepare(tiled_products.gram(x, workers), cross, group=group)

    def round_rows(rows: Floats, scale: Floats | None) -> QuantizedRows:
        grouped = is_grouped(scheme)
        stored = round_groups(rows, scheme, hessian) if grouped else gptq.round_rows(rows, scheme, hessian, scale)
        return descend(rows, stored, scheme, hessian)

    return round_rows


def by_importance(squares: Floats, scheme: Quantized) -> RoundRows:
    """Return what rounds rows by mean squares f32 [K] of inputs. Raises QuantizeError when they are not finite."""
    metric = scale_search.importance(squares, scheme)
    return lambda rows, scale: scale_search.search_rows(rows, scheme, metric, scale)


def _by_importance(scheme: Quantized, exact: Floats, x: Floats, sketch: Sketch | None, workers: int) -> RoundRows:
    return by_importance((exact * exact).mean(axis=0), scheme)


def _by_products(scheme: Quantized, exact: Floats, x: Floats, sketch: Sketch | None, workers: int) -> RoundRows:
    metric = scale_search.products(tiled_products.gram(exact, workers) / np.float32(len(exact)), scheme)
    return lambda rows, scale: scale_search.search_rows(rows, scheme, metric, scale)


def _two_sided(scheme: Quantized, exact: Floats, x: Floats, sketch: Sketch | None, workers: int) -> RoundRows:
    if sketch is None:
        return by_gptq(scheme, exact, x, None, workers)
    outer = two_sided.factor(sketch[0], two_sided.LEAST_DAMPING, two_sided.OWN_DAMPING)
    inner = two_sided.factor(sketch[1], two_sided.DAMPING)
    products = tiled_products.gram(x, workers), tiled_products.cross(exact, x, workers)
    given_way = gptq.given_way(*products, two_sided.GIVING_WAY_DAMPING)
    return lambda rows, scale: two_sided.round_two_sided(rows + rows @ given_way, scheme, outer, inner, scale)


ROUNDINGS: Mapping[Algorithm, Rounding] = {
    "imatrix": Rounding(None, _by_importance),
    "gptq": Rounding(None, by_gptq, reads_rounded=True),
    "awq": Rounding("awq", _by_products),
    "awq-gptq": Rounding("awq", by_gptq, reads_rounded=True),
    "smoothquant": Rounding("smoothquant", None),
    "smoothquant-gptq": Rounding("smoothquant", by_gptq, reads_rounded=True),
    "yaqa": Rounding(None, _two_sided, reads_rounded=True, is_two_sided=True),
}
"""Every algorithm that calibrates."""


def scaling_algorithms(algorithms: Iterable[Algorithm]) -> tuple[Algorithm, ...]:
    """Return those that scale channels by weights, which makes another graph."""
    return tuple(name for name in algorithms if name != "rtn" and ROUNDINGS[name].scaling is not None)
