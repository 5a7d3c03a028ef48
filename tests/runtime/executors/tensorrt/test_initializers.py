"""runtime/executors/tensorrt/initializers.py: what TensorRT multiplies by is what codes, scales and points mean."""

import numpy as np
import pytest

from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.tensorrt.initializers import contents
from pyc.runtime.executors.tensorrt.program import Initializer

RANDOM = np.random.default_rng(0)
ROWS, BLOCKS, BLOCK = 3, 5, 32


def made(form, dtype, shape, tensors, row=None):
    given = {str(index): tensor for index, tensor in enumerate(tensors)}
    return contents(Initializer("w", form, tuple(given), dtype, shape, row), given)


def packed(codes):
    return codes[..., 0::2] | codes[..., 1::2] << 4


def halves(data, shape):
    """Signed numbers of four bits, as ONNX has them: two in a byte, the first the lower."""
    both = np.stack([data & 15, data >> 4], axis=1).reshape(shape).astype(np.int8)
    return np.where(both > 7, both - 16, both)


def int4_values(codes, scales, points=None):
    """What the three initializers of a matrix stand for, f32 [rows, blocks, block]."""
    shape = ROWS, BLOCKS * BLOCK
    given = [packed(codes), scales]
    found = halves(made("int4-codes", "i4", shape, given), codes.shape)
    positive = made("int4-scales", "f32", scales.shape, given[1:]).view(np.float32).reshape(scales.shape)
    assert (positive > 0).all(), "TensorRT takes no other scales"
    parts = [scales] if points is None else [scales, points]
    offsets = made("int4-offsets", "f32", scales.shape, parts).view(np.float32).reshape(scales.shape)
    return found * positive[..., None] + offsets[..., None]


def test_symmetric_int4_with_scales_of_both_signs():
    codes = RANDOM.integers(0, 16, (ROWS, BLOCKS, BLOCK), np.uint8)
    codes[0, 0, :2] = 0, 15
    scales = np.exp2(RANDOM.integers(-9, 3, (ROWS, BLOCKS))).astype(np.float32) * np.float32(1.125)
    scales[:, ::2] *= -1
    expected = scales[..., None] * (codes.astype(np.float32) - 8)
    assert np.array_equal(int4_values(codes, scales), expected)


def test_a_block_of_zeros():
    codes = RANDOM.integers(0, 16, (ROWS, BLOCKS, BLOCK), np.uint8)
    scales = np.zeros((ROWS, BLOCKS), np.float32)
    assert not int4_values(codes, scales).any()


def test_asymmetric_int4():
    codes, points = (RANDOM.integers(0, 16, (ROWS, BLOCKS, size), np.uint8) for size in (BLOCK, 1))
    scales = np.exp2(RANDOM.integers(-9, 3, (ROWS, BLOCKS))).astype(np.float16)
    stored = packed(np.pad(points[..., 0], ((0, 0), (0, BLOCKS % 2))))
    expected = scales.astype(np.float32)[..., None] * (codes.astype(np.float32) - points)
    assert np.array_equal(int4_values(codes, scales, stored), expected)


def test_int8_loses_the_padding_of_its_last_block_and_has_a_scale_a_row():
    codes = RANDOM.integers(1, 256, (ROWS, 2, 32), np.uint8)
    scales = np.repeat(np.array([[0.5], [0.0], [2.0]], np.float32), 2, axis=1)
    found = made("int8-codes", "i8", (ROWS, 45), [codes]).view(np.int8).reshape(ROWS, 45)
    assert np.array_equal(found, (codes.reshape(ROWS, -1)[:, :45].astype(np.int16) - 128))
    assert made("int8-scales", "f32", (ROWS,), [scales]).view(np.float32).tolist() == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint16])
def test_stored_values_are_widened(dtype):
    values = np.array([[1.5, -2.0], [0.25, 8.0]], np.float32)
    stored = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype is np.uint16 else values.astype(dtype)
    assert np.array_equal(made("stored", "f32", (2, 2), [stored]).view(np.float32).reshape(2, 2), values)
    assert np.array_equal(made("stored", "f32", (2,), [stored], row=1).view(np.float32), values[1])


def test_stored_bytes_are_handed_on():
    stored = np.array([1, 2, 3], np.uint16)
    assert np.array_equal(made("stored", "bf16", (3,), [stored]).view(np.uint16), stored)


@pytest.mark.parametrize(("form", "shape"), [("stored", (3,)), ("int8-codes", (2, 5)), ("int8-scales", (4,))])
def test_a_tensor_of_another_size(form, shape):
    dtype = "i8" if form == "int8-codes" else "f32"
    with pytest.raises(ArtifactError, match=r"0: it is \[2, 2\], the graph expects \["):
        made(form, dtype, shape, [np.zeros((2, 2), np.float32 if dtype == "f32" else np.uint8)])


def test_a_form_of_a_newer_pyc():
    with pytest.raises(ArtifactError, match="w: this pyc does not know the form 'fp8-codes'; install a newer pyc"):
        made("fp8-codes", "f32", (1,), [np.zeros(1, np.float32)])
