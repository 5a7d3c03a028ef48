"""Linear layers on the emulated GPU against float64.

What results may err by, of the sum of |x w| over the inputs: 2^-18 for activations that are two bf16, 2^-18 more for
each side of what two bf16 leave of a weight in f32 or f16, and 2^-24 for each of the additions in f32 on the way, of
which a matrix instruction is one.
"""

from functools import cache

import ml_dtypes
import numpy as np
from cuda_emulation import same_in_every_order
from cuda_matrices import ROUNDING, bf16, int8, stored_matrix
from mxfp8_reference import mxfp8

from pyc.backends.cuda.kernels.linear_spec import LinearSpec
from pyc.backends.cuda.kernels.matrix import matrix_format
from pyc.compiler.schemes import SCHEMES

SPLIT = 2.0**-18
OUTPUTS, INPUTS = 40, 384
"""Of matrices of every scheme: less than whole blocks of outputs, and more than a tile of inputs."""


@cache
def matrix(name, outputs, inputs):
    rng = np.random.default_rng(outputs * inputs)
    return stored_matrix(rng.standard_normal((outputs, inputs), np.float32) / 8, name)


def spec_of(name, rows, outputs, inputs, **options):
    return LinearSpec(rows, outputs, inputs, matrix_format(SCHEMES[name]), **options)


ROUNDED = {"F32": np.asarray, "BF16": bf16, "INT8": int8, "MXFP8": mxfp8}
"""What activations are rounded to."""


def float8_rows(x):
    """Each row by the least power of two with which none of it is above 448, to the nearest e4m3."""
    largest = np.abs(x).max(1, keepdims=True).astype(np.float64)
    power = np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1) / 448)))
    return (x / power).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * power


def check(stored, spec, launches, seeds=(0,)):
    """Run a linear layer and compare it with float64; results are the same bits in every order of threads."""
    arrays = arrays_of(stored, spec)
    shape = (spec.rows, spec.outputs)
    found = same_in_every_order(launches, arrays, {"result": (shape, np.float32)}, seeds)["result"]
    expected, bound = expected_of(stored, spec, arrays)
    assert np.isfinite(found).all()
    assert (np.abs(found - expected) <= bound).all(), np.max(np.abs(found - expected) / bound)


def arrays_of(stored, spec):
    """What a layer is given: activations of several magnitudes, its matrix, its bias."""
    rng = np.random.default_rng(spec.rows)
    x = rng.standard_normal((spec.rows, spec.inputs), np.float32) * np.exp2(rng.integers(-9, 9, (spec.rows, 1)))
    arrays = {"x": x.astype(np.float32), **stored.arrays}
    return arrays | ({"bias": rng.standard_normal(spec.outputs, np.float32)} if spec.has_bias else {})


def expected_of(stored, spec, arrays):
    """The result in float64, and how far from it one may be."""
    bias = arrays.get("bias", np.zeros(spec.outputs, np.float32))
    rounded = float8_rows if spec.activations == "fp8" else ROUNDED[spec.rounding]
    exact = rounded(arrays["x"]).astype(np.float64)
    expected = exact @ stored.values.T + bias
    magnitude = np.abs(exact) @ np.abs(stored.values).T
    additions = 6 * -(-spec.inputs // 16) + 8 + 4
    is_wide = spec.matrix.kind in ("F16", "F32")
    bound = SPLIT * (spec.splits + 2 * is_wide) * magnitude + additions * ROUNDING * (magnitude + np.abs(bias))
    return expected, bound
