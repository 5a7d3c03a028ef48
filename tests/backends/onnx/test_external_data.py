"""backends/onnx/external_data.py: bytes of initializers as ONNX's own reader of tensors sees them."""

import io

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from pyc.backends.onnx.external_data import ALIGNMENT, contents, write_external_data
from pyc.backends.onnx.writer import Reference

RANDOM = np.random.default_rng(0)


def read_back(array, dtype, element_type, shape, row=None):
    data = contents(array, Reference("w", "w", dtype, shape, row))
    tensor = TensorProto(name="w", data_type=element_type, dims=shape, raw_data=data.tobytes())
    return numpy_helper.to_array(tensor)


def test_signed_codes_of_four_bits():
    codes = RANDOM.integers(0, 16, (3, 32), np.uint8)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).reshape(3, 1, 16)
    found = read_back(packed, "i4", TensorProto.INT4, (3, 32))
    assert np.array_equal(found.astype(np.int8), codes.astype(np.int8) - 8)


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_zero_points_lose_the_padding_of_their_rows(blocks):
    points = RANDOM.integers(0, 16, (3, blocks), np.uint8)
    even = np.pad(points, ((0, 0), (0, blocks % 2)))
    found = read_back(even[:, 0::2] | even[:, 1::2] << 4, "u4", TensorProto.UINT4, (3, blocks))
    assert np.array_equal(found.astype(np.uint8), points)


def test_signed_codes_of_eight_bits():
    codes = RANDOM.integers(1, 256, (2, 2, 32), np.uint8)
    found = read_back(codes, "i8", TensorProto.INT8, (2, 64))
    assert np.array_equal(found, (codes.astype(np.int16) - 128).reshape(2, 64))


def test_bf16_is_widened():
    values = RANDOM.normal(size=(4, 3)).astype(ml_dtypes.bfloat16)
    found = read_back(values.view(np.uint16), "f32", TensorProto.FLOAT, (4, 3))
    assert np.array_equal(found, values.astype(np.float32))


def test_one_row():
    table = RANDOM.normal(size=(2, 5)).astype(np.float32)
    assert np.array_equal(read_back(table, "f32", TensorProto.FLOAT, (5,), row=1), table[1])


def test_every_weight_begins_at_a_page_and_the_model_says_where():
    shapes = {"a": (3, 5), "b": (1025,), "c": (2,)}
    arrays = {name: RANDOM.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    model = onnx.ModelProto()
    for name in arrays:
        model.graph.initializer.add(name=name, data_location=TensorProto.EXTERNAL)
    file = io.BytesIO()
    references = [Reference(name, name, "f32", array.shape) for name, array in arrays.items()]
    write_external_data(model, references, arrays.__getitem__, file, "w.data")
    for initializer in model.graph.initializer:
        place = {entry.key: entry.value for entry in initializer.external_data}
        assert place["location"] == "w.data"
        offset, length = int(place["offset"]), int(place["length"])
        assert offset % ALIGNMENT == 0
        found = np.frombuffer(file.getvalue()[offset : offset + length], np.float32)
        assert np.array_equal(found, arrays[initializer.name].reshape(-1))


def test_a_table_that_is_head_too_lies_there_once():
    """Of 8-bit floating point a graph has two initializers: codes to take rows from, and numbers."""
    codes = RANDOM.integers(0, 120, (4, 6), np.uint8)
    references = [Reference("w", "w", "u8", (4, 6)), Reference("w: e4m3", "w", "e4m3", (4, 6))]
    model = onnx.ModelProto()
    for reference in references:
        model.graph.initializer.add(name=reference.name, data_location=TensorProto.EXTERNAL)
    file = io.BytesIO()
    write_external_data(model, references, lambda name: codes, file, "weights")
    assert file.getvalue() == codes.tobytes()
    places = [{entry.key: entry.value for entry in each.external_data} for each in model.graph.initializer]
    assert places[0] == places[1] == {"location": "weights", "offset": "0", "length": "24"}
