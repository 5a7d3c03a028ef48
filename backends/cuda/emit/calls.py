"""What each operation of a lowered module becomes: launches, and the arrays that their arguments are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pyc.backends.cuda.kernels.attention import (
    AppendAttentionSpec,
    CachedAttentionSpec,
    QkvAppendSpec,
    SpanAttentionSpec,
    lower_append_attention,
    lower_cached_attention,
    lower_qkv_append,
    lower_span_attention,
)
from pyc.backends.cuda.kernels.kernel import Lowered
from pyc.backends.cuda.kernels.linear import EmbeddingSpec, lower_embedding, lower_linear
from pyc.backends.cuda.kernels.linear_spec import Epilogue, LinearSpec
from pyc.backends.cuda.kernels.matrix import matrix_format
from pyc.backends.cuda.kernels.rounded_rows import AnyRows, Float8Rows
from pyc.backends.cuda.kernels.rows import (
    ActivationSpec,
    AddRowSpec,
    AddSpec,
    ConcatSpec,
    GatedPairSpec,
    GatedSpec,
    NormSpec,
    PoolSpec,
    RopeAnglesSpec,
    SelectRowSpec,
    SliceSpec,
    lower_activation,
    lower_add,
    lower_add_row,
    lower_concat,
    lower_gated,
    lower_gated_pair,
    lower_norm,
    lower_pool,
    lower_rope_angles,
    lower_select_row,
    lower_slice,
)
from pyc.compiler.ir import Operation
from pyc.compiler.schemes import activations_of
from pyc.compiler.storage import StoredTensor
from pyc.runtime.artifact.format import ModelInfo
from pyc.runtime.errors import LowerError

_PARTS = ("codes", "scales", "zeros", "factors")
"""What kernels call the parts of a quantized matrix, in the order of an operation's weights."""
CACHE = "cache"
"""The argument that is the cache of the operation's layer."""


@dataclass(frozen=True, slots=True)
class Context:
    """What calls depend on beside the operation: shapes of values at one number of rows, weights, the model."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    weights: Mapping[str, StoredTensor]
    info: ModelInfo
    has_warpgroups: bool = False
    """Whether kernels are for GPUs whose warpgroups multiply."""
    is_split: bool = True
    """Whether a matrix of the function multiplies activations in f32, as two numbers: then attention does so, too."""
    rounded: Mapping[str, AnyRows] = field(default_factory=dict)
    """Values that are not f32, but rows as the GEMMs that read them take them."""


@dataclass(frozen=True, slots=True)
class Call:
    """Launches, and which value or weight each of their arguments is; those in `written` they write."""

    lowered: Lowered
    arrays: Mapping[str, str]
    written: frozenset[str] = frozenset({"result"})


def cache_of(layer: int) -> str:
    """Return what the cache of a layer is called among values."""
    return f"{CACHE} {layer}"


def call_of(operation: Operation, context: Context) -> Call:
    """Return what an operation becomes. Raises LowerError for one that no kernel exists for."""
    make = _CALLS.get(operation.kind)
    if make is None:
        raise LowerError(
            f"backend cuda: {operation.result.name}: no kernel exists for {operation.kind}; build for another backend"
        )
    return make(operation, context)


def _named(operation: Operation, operands: tuple[str, ...], weights: tuple[str, ...] = ()) -> dict[str, str]:
    """Return operands and present weights by the names of arguments, and the result."""
    found = dict(zip(operands, operation.operands, strict=True))
    found |= {name: weight for name, weight in zip(weights, operation.weights, strict=True) if weight}
    return found | {"result": operation.result.name}


def _rows(operation: Operation, context: Context) -> tuple[int, int]:
    """Rows and features of the first operand."""
    rows, features = context.shapes[operation.operands[0]]
    return rows, features


def _norm(operation: Operation, context: Context) -> Call:
    rows, features = _rows(operation, context)
    adds = operation.kind.startswith("add_")
    kind = operation.kind.removeprefix("add_").removesuffix("_norm")
    has_gain = bool(operation.weights[0])
    rounded = context.rounded.get(operation.result.name)
    spec = NormSpec(kind, rows, features, operation.number("epsilon"), has_gain, adds, rounded)
    weights = ("gain", "bias")[: len(operation.weights)]
    arrays = _named(operation, ("x", "addend")[: len(operation.operands)], weights)
    if not adds:
        return Call(lower_norm(spec), arrays)
    return Call(lower_norm(spec), {**arrays, "total": operation.also[0].name}, frozenset({"result", "total"}))


def _add(operation: Operation, context: Context) -> Call:
    return Call(lower_add(AddSpec(*_rows(operation, context))), _named(operation, ("x", "addend")))


def _add_row(operation: Operation, context: Context) -> Call:
    spec = AddRowSpec(*_rows(operation, context), index=operation.integer("index"))
    return Call(lower_add_row(spec), _named(operation, ("x",), ("table",)))


def _concat(operation: Operation, context: Context) -> Call:
    rows, left = _rows(operation, context)
    right = context.shapes[operation.operands[1]][1]
    return Call(lower_concat(ConcatSpec(rows, left, right)), _named(operation, ("left", "right")))


def _slice(operation: Operation, context: Context) -> Call:
    spec = SliceSpec(*_rows(operation, context), operation.integer("start"), operation.integer("stop"))
    return Call(lower_slice(spec), _named(operation, ("x",)))


def _activation(operation: Operation, context: Context) -> Call:
    spec = ActivationSpec(*_rows(operation, context), operation.text("function"))
    return Call(lower_activation(spec), _named(operation, ("x",)))


def _gated(operation: Operation, context: Context) -> Call:
    spec = GatedSpec(*_rows(operation, context), operation.text("function"))
    return Call(lower_gated(spec), _named(operation, ("gate", "up")))


def _gated_pair(operation: Operation, context: Context) -> Call:
    rows, features = context.shapes[operation.result.name]
    rounded = context.rounded.get(operation.result.name)
    spec = GatedPairSpec(rows, features, operation.text("function"), rounded)
    return Call(lower_gated_pair(spec), _named(operation, ("x",)))


def _select_row(operation: Operation, context: Context) -> Call:
    rows, *features = context.shapes[operation.operands[0]]
    dtype = context.dtypes[operation.operands[0]]
    return Call(
        lower_select_row(SelectRowSpec(rows, features[0] if features else 1, dtype)), _named(operation, ("x", "row"))
    )


def _rope_angles(operation: Operation, context: Context) -> Call:
    rows, rotary = context.shapes[operation.result.name]
    attributes = dict(operation.attributes)
    spec = RopeAnglesSpec(
        rows,
        rotary,
        scale=operation.number("scale"),
        base=operation.number("base"),
        factor=operation.number("factor"),
        original_context=operation.number("original_context"),
        dynamic=bool(attributes["dynamic"]),
    )
    return Call(lower_rope_angles(spec), _named(operation, ("positions",), ("inverse_frequencies",)))


def _matrix_arrays(operation: Operation, *operands: str) -> dict[str, str]:
    if "scheme" in dict(operation.attributes):
        names = tuple(f"weight.{part}" for part in _PARTS)
    else:
        names = ("weight",)
    rest = ("bias",)[: len(operation.weights) - len(names)]
    return _named(operation, operands, (*names, *rest))


def is_linear(operation: Operation) -> bool:
    """Whether an operation is a linear layer, fused or not."""
    return operation.kind in ("linear", "coded_linear", "fused_linear")


def linear_spec(operation: Operation, context: Context) -> LinearSpec:
    """Return what a linear layer multiplies, and its epilogue."""
    rows, inputs = _rows(operation, context)
    outputs = context.shapes[operation.result.name][1]
    scheme = context.weights[operation.weights[0]].scheme
    epilogue = _epilogue(operation, context)
    has_bias = bool(operation.weights[-1 - epilogue.has_gain])
    outputs *= 2 if epilogue.gate else 1
    return LinearSpec(rows, outputs, inputs, matrix_format(scheme), has_bias, activations_of(scheme), epilogue)


def _epilogue(operation: Operation, context: Context) -> Epilogue:
    if operation.kind != "fused_linear":
        return Epilogue()
    attributes = dict(operation.attributes)
    rounded = context.rounded.get(operation.result.name)
    assert not isinstance(rounded, Float8Rows), "a scale of a row is that of all its outputs"
    return Epilogue(
        operation.text("gate"),
        rounded,
        operation.integer("partials"),
        operation.number("epsilon"),
        bool(attributes["adds"]),
        bool(attributes["has_gain"]),
    )


def _linear(operation: Operation, context: Context) -> Call:
    spec = linear_spec(operation, context)
    epilogue, weights = spec.epilogue, operation.weights
    is_rounded = operation.operands[0] in context.rounded
    lowered = lower_linear(spec, has_warpgroups=context.has_warpgroups, is_rounded=is_rounded)
    layer = replace(operation, weights=weights[: len(weights) - epilogue.has_gain])
    operands = ("x", *(("squares",) if epilogue.partials else ()), *(("addend",) if epilogue.adds else ()))
    arrays = _matrix_arrays(layer, *operands) | ({"gain": weights[-1]} if epilogue.has_gain else {})
    written = ("result", "total_squares", "scaled")[: len(operation.results)]
    arrays |= dict(zip(written, (value.name for value in operation.results), strict=True))
    return Call(lowered, arrays, frozenset(written))


def _embedding(operation: Operation, context: Context) -> Call:
    rows, features = context.shapes[operation.result.name]
    stored = context.weights[operation.weights[0]]
    spec = EmbeddingSpec(rows, stored.rows, features, matrix_format(stored.scheme))
    return Call(lower_embedding(spec), _matrix_arrays(operation, "ids"))


def _append_spec(operation: Operation, context: Context) -> QkvAppendSpec:
    cache = context.info.kv_cache
    assert cache is not None
    return QkvAppendSpec(
        rows=context.shapes[operation.operands[0]][0],
        heads=operation.integer("heads"),
        kv_heads=operation.integer("kv_heads"),
        head_dim=operation.integer("head_dim"),
        rotary=context.shapes[operation.operands[1]][1],
        epsilon=operation.number("epsilon"),
        has_q_gain=bool(operation.weights[0]),
        has_k_gain=bool(operation.weights[1]),
        cache_dtype=cache.dtype,
        block_tokens=cache.block_tokens,
        table_blocks=context.shapes[operation.operands[4]][1],
    )


def _attention_spec(operation: Operation, context: Context) -> CachedAttentionSpec:
    cache = context.info.kv_cache
    assert cache is not None
    return CachedAttentionSpec(
        rows=context.shapes[operation.operands[0]][0],
        heads=operation.integer("heads"),
        kv_heads=operation.integer("kv_heads"),
        head_dim=operation.integer("head_dim"),
        scale=operation.number("scale"),
        window=operation.integer("window"),
        cache_dtype=cache.dtype,
        block_tokens=cache.block_tokens,
        table_blocks=context.shapes[operation.operands[-1]][1],
        sequences=context.info.max_sequences,
        is_split=context.is_split,
    )


_APPENDED = ("qkv", "angles", "positions", "sequences", "block_table")


def _with_cache(operation: Operation, arrays: Mapping[str, str]) -> dict[str, str]:
    return {**arrays, CACHE: cache_of(operation.integer("layer"))}


def _qkv_append(operation: Operation, context: Context) -> Call:
    arrays = _named(operation, _APPENDED, ("q_gain", "k_gain"))
    lowered = lower_qkv_append(_append_spec(operation, context))
    return Call(lowered, _with_cache(operation, arrays), frozenset({"result", CACHE}))


def _append_attention(operation: Operation, context: Context) -> Call:
    arrays = _named(operation, _APPENDED, ("q_gain", "k_gain"))
    spec = AppendAttentionSpec(_append_spec(operation, context), _attention_spec(operation, context))
    return Call(lower_append_attention(spec), _with_cache(operation, arrays), frozenset({"result", CACHE}))


def _cached_attention(operation: Operation, context: Context) -> Call:
    arrays = _named(operation, ("q", "positions", "sequences", "block_table"))
    return Call(lower_cached_attention(_attention_spec(operation, context)), _with_cache(operation, arrays))


def _span_attention(operation: Operation, context: Context) -> Call:
    spec = SpanAttentionSpec(
        rows=context.shapes[operation.operands[0]][0],
        heads=operation.integer("heads"),
        head_dim=operation.integer("head_dim"),
        scale=operation.number("scale"),
    )
    return Call(lower_span_attention(spec), _named(operation, ("qkv", "span_start", "span_end")))


def _pool(operation: Operation, context: Context) -> Call:
    rows, features = _rows(operation, context)
    sequences = context.shapes[operation.operands[1]][0]
    normalize = bool(dict(operation.attributes)["normalize"])
    spec = PoolSpec(rows, sequences, features, operation.text("mode"), normalize)
    return Call(lower_pool(spec), _named(operation, ("x", "seq_start", "seq_end")))


_CALLS: Mapping[str, Callable[[Operation, Context], Call]] = {
    "activation": _activation,
    "add": _add,
    "add_layer_norm": _norm,
    "add_rms_norm": _norm,
    "add_row": _add_row,
    "append_attention": _append_attention,
    "cached_attention": _cached_attention,
    "coded_embedding": _embedding,
    "coded_linear": _linear,
    "concat": _concat,
    "embedding": _embedding,
    "fused_linear": _linear,
    "gated": _gated,
    "gated_pair": _gated_pair,
    "layer_norm": _norm,
    "linear": _linear,
    "pool": _pool,
    "qkv_append": _qkv_append,
    "qkv_span_attention": _span_attention,
    "rms_norm": _norm,
    "rope_angles": _rope_angles,
    "select_row": _select_row,
    "slice": _slice,
}
