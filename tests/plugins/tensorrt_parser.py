"""What TensorRT's ONNX parser and builder refuse, as far as their documents and sources say; see `tensorrt_double`."""

import ctypes

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16))
NUMBERS = FLOATS | {TensorProto.INT32, TensorProto.INT64}
VALUES = NUMBERS | {TensorProto.BOOL}
_OF_FLOATS = "Cos Gelu LayerNormalization MatMul Pow Sigmoid Sin Softmax"
_OF_NUMBERS = "Add Div GreaterOrEqual Less LessOrEqual Max Mul Range ReduceL2 ReduceSum Relu Sub"
_OF_VALUES = "Concat Gather Identity Reshape Shape Slice Split Squeeze Transpose Unsqueeze Where"
_NEWER = "Attention RMSNormalization RotaryEmbedding"
"""The change log names these, and no types."""
OPERATORS = {
    **dict.fromkeys(_OF_FLOATS.split(), FLOATS),
    **dict.fromkeys(_OF_NUMBERS.split(), NUMBERS),
    **dict.fromkeys(_OF_VALUES.split(), VALUES),
    **dict.fromkeys(_NEWER.split(), FLOATS),
    "And": frozenset((TensorProto.BOOL,)),
    "Cast": VALUES | {TensorProto.UINT8},
    "DequantizeLinear": frozenset((TensorProto.INT8, TensorProto.INT4, TensorProto.FLOAT8E4M3FN)),
}
"""The types that an operator's first input may have, of Where its second: docs/operators.md of onnx-tensorrt 10.1."""
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
    types = types_of(model)
    for node in model.graph.node:
        if node.domain or node.op_type not in OPERATORS:
            yield f"No importer registered for op: {node.op_type}", node
            continue
        found = types.get(node.input[node.op_type == "Where"])
        if found is not None and found not in OPERATORS[node.op_type]:
            yield f"{node.op_type} does not support {TensorProto.DataType.Name(found)}", node
        if node.op_type in ("ReduceSum", "ReduceL2", "Squeeze") and node.input[1:] and node.input[1] not in weights:
            yield "axes must be an initializer", node
        if node.op_type == "DequantizeLinear":
            for why in dequantizing(node, weights):
                yield why, node


def types_of(model):
    """The element types of values, as ONNX infers them."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except onnx.shape_inference.InferenceError:
        graph = model.graph
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return found | {tensor.name: tensor.data_type for tensor in model.graph.initializer}


def dequantizing(node, weights):
    codes, scale = weights[node.input[0]], numpy_helper.to_array(weights[node.input[1]])
    if len(node.input) > 2:
        yield "TensorRT only supports symmetric quantization. The zero point must be all zeros."
    if codes.data_type not in (TensorProto.INT8, TensorProto.INT4, TensorProto.FLOAT8E4M3FN):
        yield "the type of the input is not supported"
    if codes.data_type == TensorProto.FLOAT8E4M3FN and scale.ndim:
        yield "this double takes FP8 by a scale for the whole tensor alone, as all versions document it"
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
