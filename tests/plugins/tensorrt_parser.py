"""What TensorRT's ONNX parser and builder refuse, as far as their documents and sources say; see `tensorrt_double`."""

import ctypes

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

OPERATORS = frozenset(
    (
        "Add", "And", "Cast", "Concat", "Cos", "DequantizeLinear", "Div", "Gather", "Gelu", "GreaterOrEqual",
        "Identity", "LayerNormalization", "Less", "LessOrEqual", "MatMul", "Max", "Mul", "Pow", "Range", "ReduceL2",
        "ReduceSum", "Relu", "Reshape", "Shape", "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Squeeze", "Sub",
        "Transpose", "Unsqueeze", "Where", "Attention", "RMSNormalization", "RotaryEmbedding",
    )
)
MOST_OPSET = 25


def byte_size(tensor):
    count = int(np.prod(tensor.dims))
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4):
        return (count + 1) // 2
    return count * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def filled(model, given):
    """The model with the bytes that lie at the addresses that were given."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for tensor in whole.graph.initializer:
        if tensor.name in given:
            tensor.raw_data = ctypes.string_at(*given[tensor.name])
    return whole


def objections(model):
    """What the parser refuses, with the node that it is about."""
    if model.opset_import[0].version > MOST_OPSET:
        yield f"opset {model.opset_import[0].version} is not supported", None
        return
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for tensor in weights.values():
        if tensor.data_type in (TensorProto.UINT8, TensorProto.UINT4, TensorProto.DOUBLE):
            yield f"{tensor.name}: UINT8, UINT4 and DOUBLE weights are not supported", None
        if not (tensor.raw_data or tensor.float_data or tensor.int64_data or tensor.int32_data):
            yield f"{tensor.name}: the initializer has no data", None
            return
    for node in model.graph.node:
        if node.domain or node.op_type not in OPERATORS:
            yield f"No importer registered for op: {node.op_type}", node
        if node.op_type in ("ReduceSum", "ReduceL2", "Squeeze") and node.input[1:] and node.input[1] not in weights:
            yield "axes must be an initializer", node
        if node.op_type == "DequantizeLinear":
            for why in dequantizing(node, weights):
                yield why, node


def dequantizing(node, weights):
    codes, scale = weights[node.input[0]], numpy_helper.to_array(weights[node.input[1]])
    if len(node.input) > 2:
        yield "TensorRT only supports symmetric quantization. The zero point must be all zeros."
    if codes.data_type not in (TensorProto.INT8, TensorProto.INT4):
        yield "the type of the input is not supported"
    if not (scale > 0).all():
        yield "Scale coefficients must all be positive"
    if scale.ndim == 2 and codes.data_type != TensorProto.INT4:
        yield "block dequantization is supported for FP4, FP8 and INT4"


def contradiction(model, shapes):
    """Why a profile does not fit the inputs; "" where it does. A named dimension has one size at a time."""
    sizes = [{}, {}, {}]
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in shapes:
            if any(dim.dim_param for dim in dims):
                return f"{value.name} is dynamic, and the profile has no shape for it"
            continue
        for known, shape in zip(sizes, shapes[value.name], strict=True):
            if len(shape) != len(dims):
                return f"{value.name} has {len(dims)} dimensions"
            for dim, size in zip(dims, shape, strict=True):
                expected = known.setdefault(dim.dim_param, size) if dim.dim_param else dim.dim_value
                if size != expected or size < 1:
                    return f"{value.name}: {size} where {expected} is expected"
    unknown = set(shapes) - {value.name for value in model.graph.input}
    return f"no input is called {unknown}" if unknown else ""
