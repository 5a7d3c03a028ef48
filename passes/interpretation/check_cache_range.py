"""Looks for keys and values that a cache of f16 does not hold, and says so once.

A product of a row with what a norm gives, whose mean square is that of its gain, is about as large as the row times
the gain is long. f16 holds
numbers from 2^-24 to 65504: far below they are zero, beyond infinite, whatever the checkpoint's dtype held. Keys that
have a norm of their own are near 1, and a bias is what they are at least.
"""

from __future__ import annotations

import logging

import numpy as np

from pyc.compiler.evaluate import Floats, evaluate_rows
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.weights import Expression, Stored
from pyc.passes.interpretation.sampled_rows import is_cheap, some_rows
from pyc.runtime.errors import IngestError, QuantizeError

logger = logging.getLogger(__name__)

LEAST, MOST = 2.0**-20, 2.0**13
"""Lengths of rows whose products are all but surely within f16: 16 times its least, an eighth of its most."""
_KINDS = {"k_proj": "keys", "v_proj": "values"}


def warn_of_cache_range(module: Module, files: SourceFiles) -> None:
    """Log one warning where keys or values of a layer are beyond what its cache, of f16, holds."""
    cache = module.info.kv_cache
    if cache is None or cache.dtype != "f16":
        return
    found = [found for name in module.weights if (found := _beyond(name, module, files)) is not None]
    if not found:
        return
    (name, kind, size), others = found[0], f" and {len(found) - 1} more matrices" if len(found) > 1 else ""
    logger.warning(
        "%s%s: %s of about %.2g, and kv_cache: f16 holds numbers from 6e-08 to 65504; set quantize.kv_cache: f32, or "
        "int8",
        name, others, kind, size,
    )  # fmt: skip


def _beyond(name: str, module: Module, files: SourceFiles) -> tuple[str, str, float] | None:
    projection = next((each for each in _KINDS if name.endswith(f".{each}.weight")), None)
    if projection is None or (projection == "k_proj" and name.replace("k_proj", "k_norm") in module.weights):
        return None
    matrix, bias = _base(module.weights[name]), module.weights.get(name.removesuffix("weight") + "bias")
    gain = module.weights.get(f"{name.rpartition('.self_attn.')[0]}.input_layernorm.weight")
    if not is_cheap(matrix):
        return None
    try:
        rows = some_rows(matrix, files).astype(np.float64)
        if gain is not None:  # which is folded into the matrix where that costs no rounding
            rows *= _vector(gain, files)
        size = float(np.sqrt(np.square(rows).sum(-1)).max(initial=0))
        if bias is not None:
            size = max(size, float(np.abs(_vector(bias, files)).max(initial=0)))
    except (IngestError, QuantizeError):  # a build says so, and reads it all
        return None
    return (name, _KINDS[projection], size) if 0 < size < LEAST or size > MOST else None


def _vector(expression: Expression, files: SourceFiles) -> Floats:
    return evaluate_rows(_base(expression), 0, expression.shape[0], files)


def _base(expression: Expression) -> Expression:
    return expression.base if isinstance(expression, Stored) else expression
