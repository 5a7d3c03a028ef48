"""Matrices of every scheme as CUDA's kernels take them, and what linear layers over them are in float64."""

from dataclasses import dataclass, replace

import numpy as np

from pyc.backends.cuda.kernels.kernel import Lowered
from pyc.backends.cuda.kernels.matrix import matrix_format
from pyc.backends.cuda.layouts import laid_out, layouts_of
from pyc.backends.cuda.toolchain.nvrtc import program_text
from pyc.compiler.quantization import cast_rows, dequantize_rows, quantize_rows
from pyc.compiler.schemes import SCHEMES, Dense

STORED = [name for name in SCHEMES if name != "none"]
"""Every scheme that a matrix can be stored by."""

ROUNDING = 2.0**-24
"""Of a sum or product in f32, to nearest."""


ARGUMENTS = {"zero_points": "zeros"}
"""What kernels call parts of a matrix that have another name in the artifact."""


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix [N, K]: the arrays that it lies in by name, and its values f64."""

    format: object
    arrays: dict
    values: np.ndarray


def stored_matrix(rows, name):
    """Return f32 `rows` [N, K] as the scheme called `name` stores them."""
    scheme = SCHEMES[name]
    form = matrix_format(scheme)
    if isinstance(scheme, Dense):
        array = cast_rows(rows, scheme.dtype)
        values = (array.astype(np.uint32) << 16).view(np.float32) if scheme.dtype == "bf16" else array
        return StoredMatrix(form, {"weight": array}, values.astype(np.float64))
    stored = quantize_rows(rows, scheme)
    laid = {part: laid_out(stored, scheme, layout) for part, layout in layouts_of(scheme).items()}
    arrays = {f"weight.{ARGUMENTS.get(part, part)}": array for part, array in laid.items()}
    assert tuple(arrays) == form.parts
    wide = replace(stored, scale=stored.scale.astype(np.float64))
    return StoredMatrix(form, arrays, _values(wide, dequantize_rows(stored, scheme)))


def _values(stored, rounded):
    """The values f64: those that f32 rounds to `rounded`, by dividing out the scales and multiplying again."""
    groups = np.asarray(stored.scale, np.float64)
    if stored.outer is not None:
        groups = groups * stored.outer.astype(np.float64)
    span = -(-rounded.shape[1] // groups.shape[1]) if groups.shape[1] > 1 else rounded.shape[1]
    by_column = np.repeat(groups, span, axis=1)[:, : rounded.shape[1]]
    divisor = np.where(by_column == 0, 1, by_column)
    return np.where(by_column == 0, 0, _nearest_code(rounded / divisor) * by_column)


def _nearest_code(values):
    """Codes are multiples of 2^-16: numbers of e5m2, the finest of all, of which tests have none below."""
    return np.rint(values * 65536) / 65536


def bf16(x):
    """Return f32 numbers rounded to bf16, ties to even, as f32."""
    return (cast_rows(np.asarray(x, np.float32), "bf16").astype(np.uint32) << 16).view(np.float32)


def int8(x):
    """Return f32 numbers [rows, K] rounded to int8 by blocks of 32, as f64."""
    blocks = np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    codes = np.rint(blocks * (np.float32(127) / largest)).astype(np.float64)
    return (codes * (largest / np.float32(127))).reshape(len(x), -1)[:, : x.shape[1]]


def in_one_program(lowered):
    """Return each of `lowered` with kernels whose source is that of all: they are compiled at once."""
    sources = dict.fromkeys(step.kernel.source for each in lowered for step in each.steps)
    text = program_text(list(sources))

    def joined(each):
        steps = tuple(replace(step, kernel=replace(step.kernel, source=text)) for step in each.steps)
        return Lowered(steps, each.scratch)

    return [joined(each) for each in lowered]
