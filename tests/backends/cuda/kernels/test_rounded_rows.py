"""Norms and gates that write rows as GEMMs read them: the bits that round_rows makes of their f32."""

from dataclasses import replace

import numpy as np
import pytest
from cuda_emulation import run_kernel
from cuda_linear import spec_of

from pyc.backends.cuda.kernels.kernel import Lowered
from pyc.backends.cuda.kernels.linear import lower_linear, rounded_for
from pyc.backends.cuda.kernels.rows import GatedPairSpec, NormSpec, lower_gated_pair, lower_norm

ROWS, FEATURES = 12, 192
READERS = [
    ("bf16", "bf16"),
    ("fp8", "bf16"),
    ("int4-g32", "bf16"),
    ("bf16", "f32"),
    ("int8", "f32"),
    ("int4-g64", "f32"),
    ("fp8", "fp8"),
]
"""Matrices that read in the order of each distance, and activations of one part and two."""


@pytest.mark.parametrize(("scheme", "activations"), READERS)
@pytest.mark.parametrize("kind", ["rms", "add_rms", "gated"])
def test_the_same_bits_as_rounding_behind(kind, scheme, activations):
    linear = spec_of(scheme, ROWS, 40, FEATURES, activations=activations)
    rounded = rounded_for(linear, has_warpgroups=True)
    rng = np.random.default_rng(FEATURES)
    arrays = {"x": rng.standard_normal((ROWS, 2 * FEATURES if kind == "gated" else FEATURES), np.float32)}
    if kind == "gated":
        spec, lower = GatedPairSpec(ROWS, FEATURES, "silu"), lower_gated_pair
    else:
        spec, lower = NormSpec("rms", ROWS, FEATURES, 1e-5, True, kind == "add_rms"), lower_norm
        arrays["gain"] = rng.standard_normal(FEATURES, np.float32)
    made = {"result": ((ROWS, FEATURES), np.float32)}
    if kind == "add_rms":
        arrays["addend"] = rng.standard_normal((ROWS, FEATURES), np.float32)
        made["total"] = ((ROWS, FEATURES), np.float32)
    plain = run_kernel(lower(spec), arrays, made)["result"]
    rounding = Lowered(lower_linear(linear, has_warpgroups=True).steps[:1])
    bits = ((rounded.size_bytes(ROWS, FEATURES),), np.uint8)
    expected = run_kernel(rounding, {"x": plain}, {"rounded": bits})["rounded"]
    found = run_kernel(lower(replace(spec, rounded=rounded)), arrays, {**made, "result": bits})["result"]
    np.testing.assert_array_equal(found, expected)


def test_a_gemm_reads_rounded_rows_without_a_launch_before():
    linear = spec_of("fp8", ROWS, 40, FEATURES, activations="bf16")
    rounding, multiplying = lower_linear(linear, has_warpgroups=True).steps
    (alone,) = lower_linear(linear, has_warpgroups=True, is_rounded=True).steps
    assert alone.kernel == multiplying.kernel
    assert (multiplying.arguments[0], alone.arguments[0]) == (rounding.arguments[-1], "x")


@pytest.mark.parametrize(
    ("scheme", "rows", "features", "activations"),
    [("bf16", 8, 192, "bf16"), ("fp8", 12, 192, "mxfp8"), ("bf16", 12, 200, "bf16")],
    ids=["a GEMV", "mxfp8", "no whole tiles"],
)
def test_rows_that_no_other_kernel_writes(scheme, rows, features, activations):
    spec = spec_of(scheme, rows, 40, features, activations=activations)
    assert rounded_for(spec, has_warpgroups=True) is None
