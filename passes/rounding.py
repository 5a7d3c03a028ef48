"""How a calibration rounds a matrix, by the recipe's `algorithm`.

| algorithm | channels are scaled by | codes are chosen by |
|---|---|---|
| imatrix | | nearest, scales by the mean squares of inputs |
| gptq | | GPTQ |
| awq | AWQ | nearest, scales by the squared error of products |
| awq-gptq | AWQ | GPTQ |
| smoothquant | SmoothQuant | nearest |
| smoothquant-gptq | SmoothQuant | GPTQ |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pyc.compiler import gptq, scale_search
from pyc.compiler.quantization import QuantizedRows
from pyc.compiler.recipe.types import Algorithm
from pyc.compiler.scales import Floats
from pyc.compiler.schemes import Quantized
from pyc.passes.scale_channels import Method

RoundRows = Callable[[Floats, Floats | None], QuantizedRows]
"""Rounds rows of a matrix, by scales or factors that are given where rows share them."""

Prepare = Callable[[str, Quantized, Floats, Floats], RoundRows]
"""Is given a matrix's name and scheme, its exact inputs [tokens, K], and those behind what is rounded already. Raises
QuantizeError when they are not finite."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """What an algorithm does first, and then to each matrix. `reads_rounded`: by what earlier rounding has changed."""

    scaling: Method | None
    prepare: Prepare | None
    reads_rounded: bool = False


def _by_gptq(name: str, scheme: Quantized, exact: Floats, x: Floats) -> RoundRows:
    hessian = gptq.prepare(x.T @ x, exact.T @ x)
    return lambda rows, scale: gptq.round_rows(rows, scheme, hessian, scale)


def _by_importance(name: str, scheme: Quantized, exact: Floats, x: Floats) -> RoundRows:
    metric = scale_search.importance((exact * exact).mean(axis=0), scheme)
    return lambda rows, scale: scale_search.search_rows(rows, scheme, metric, scale)


def _by_products(name: str, scheme: Quantized, exact: Floats, x: Floats) -> RoundRows:
    metric = scale_search.products(exact.T @ exact / np.float32(len(exact)), scheme)
    return lambda rows, scale: scale_search.search_rows(rows, scheme, metric, scale)


ROUNDINGS: Mapping[Algorithm, Rounding] = {
    "imatrix": Rounding(None, _by_importance),
    "gptq": Rounding(None, _by_gptq, reads_rounded=True),
    "awq": Rounding("awq", _by_products),
    "awq-gptq": Rounding("awq", _by_gptq, reads_rounded=True),
    "smoothquant": Rounding("smoothquant", None),
    "smoothquant-gptq": Rounding("smoothquant", _by_gptq, reads_rounded=True),
}
"""Every algorithm that calibrates."""
