"""backends/torch_tensorrt/weights.py: what torch holds is, bit for bit, what a scheme stands for."""

import ml_dtypes
import numpy as np
import pytest
import torch

from pyc.backends.torch_tensorrt import weights as weights_module
from pyc.backends.torch_tensorrt.weights import CodedWeight, DenseWeight, Float8Weight, load_weight
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.quantization import dequantize_rows, quantize_rows
from pyc.compiler.schemes import SCHEMES, Dense, Int4Group
from pyc.compiler.weights import Stacked, Stored
from pyc.runtime.errors import IngestError, QuantizeError

QUANTIZED = {name: scheme for name, scheme in SCHEMES.items() if not isinstance(scheme, Dense)}


def drawn(rows, columns):
    return np.random.default_rng(rows + columns).normal(size=(rows, columns)).astype(np.float32)


def load(expression):
    with SourceFiles() as files:
        return load_weight("w", expression, files)


def check_coded(values, scheme, expression):
    loaded = load(expression)
    assert isinstance(loaded, CodedWeight | Float8Weight)
    wanted = dequantize_rows(quantize_rows(values, scheme), scheme)
    assert np.array_equal(loaded.values().numpy(), wanted)
    ids = torch.tensor([[0, 2], [len(values) - 1, 2]])
    assert np.array_equal(loaded.rows(ids).numpy(), wanted[ids.numpy()])
    return loaded


@pytest.mark.parametrize("scheme", QUANTIZED)
def test_codes_stand_for_what_the_scheme_makes_of_a_matrix(scheme, source):
    values = drawn(7, 256)
    loaded = check_coded(values, QUANTIZED[scheme], Stored(source(values), QUANTIZED[scheme]))
    assert loaded.codes.nbytes == values.size // (2 if isinstance(QUANTIZED[scheme], Int4Group) else 1)
    assert loaded.codes.nbytes + loaded.scales.nbytes < values.nbytes / 3


@pytest.mark.parametrize("columns", [150, 45, 33, 1])
@pytest.mark.parametrize("scheme", ["int8", "int8-g32", "fp8", "fp8-b128"])
def test_the_last_group_of_a_row_may_be_short(scheme, columns, source):
    values = drawn(5, columns)
    check_coded(values, QUANTIZED[scheme], Stored(source(values), QUANTIZED[scheme]))


@pytest.mark.parametrize("scheme", ["int8", "int4-g32-asym", "fp8-e5m2"])
def test_a_stack_is_one_matrix_however_few_rows_are_evaluated_at_a_time(scheme, source, monkeypatch):
    parts = [drawn(5, 64), drawn(3, 64)]
    stack = Stacked(tuple(Stored(source(part), QUANTIZED[scheme]) for part in parts))
    whole = check_coded(np.concatenate(parts), QUANTIZED[scheme], stack)
    monkeypatch.setattr(weights_module, "PIECE_WEIGHTS", 128)
    in_pieces = load(stack)
    assert all(torch.equal(a, b) for a, b in zip(whole.buffers(), in_pieces.buffers(), strict=True))


@pytest.mark.parametrize(("dtype", "bytes_"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_floats_stay_as_short_as_they_are(dtype, bytes_, source):
    kinds = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
    values = drawn(6, 20)
    loaded = load(Stored(source(values, dtype), Dense(dtype)))
    assert isinstance(loaded, DenseWeight)
    assert loaded.stored.nbytes == values.size * bytes_
    wanted = values.astype(kinds[dtype]).astype(np.float32)
    assert np.array_equal(loaded.values().numpy(), wanted)
    assert np.array_equal(loaded.rows(torch.tensor([[5], [1]])).numpy(), wanted[[[5], [1]]])


def test_a_vector(source):
    values = drawn(1, 9)[0]
    assert np.array_equal(load(Stored(source(values), Dense("f32"))).values().numpy(), values)


def test_damaged_weights_are_named(source):
    values = drawn(4, 32)
    values[2, 3] = np.nan
    with pytest.raises(IngestError, match=r"NaN or infinity"):
        load(Stored(source(values), Dense("f32")))
    with pytest.raises(QuantizeError, match=r"^quantize: w: .*f16"):
        load(Stored(source(drawn(4, 32) * 1e6), Dense("f16")))
