"""The source of kernels over a matrix, and what they call their arrays."""

from __future__ import annotations

from struct import pack

from pyc.backends.cuda.kernels.linear_spec import LinearSpec
from pyc.backends.cuda.kernels.matrix import MatrixFormat
from pyc.backends.cuda.kernels.rows import FUNCTIONS
from pyc.backends.cuda.kernels.wrapper import DEPENDENT_LAUNCH, LET_OTHERS_BEGIN, SHARED_ARRAY, WAIT
from pyc.templates.rendering import render

_POINTERS = {
    "x": f"const float* {SHARED_ARRAY} x",
    "ids": f"const int* {SHARED_ARRAY} ids",
    "weight": "const unsigned char* __restrict__ codes",
    "weight.codes": "const unsigned char* __restrict__ codes",
    "weight.scales": "const unsigned char* __restrict__ scales",
    "weight.zeros": "const unsigned char* __restrict__ zeros",
    "weight.factors": "const float* __restrict__ factors",
    "bias": "const float* __restrict__ bias",
    "result": f"float* {SHARED_ARRAY} result",
    "rounded": f"unsigned char* {SHARED_ARRAY} rounded",
    "row_scales": f"float* {SHARED_ARRAY} row_scales",
    "squares": f"const float* {SHARED_ARRAY} squares",
    "addend": f"const float* {SHARED_ARRAY} addend",
    "gain": "const float* __restrict__ gain",
    "scaled": f"float* {SHARED_ARRAY} scaled",
    "total_squares": f"float* {SHARED_ARRAY} total_squares",
    "partial": f"float* {SHARED_ARRAY} partial",
    "arrivals": f"unsigned int* {SHARED_ARRAY} arrivals",
}


def matrix_source(
    *,
    header: str,
    symbol: str,
    matrix: str = "",
    bounds: tuple[int, int],
    arguments: tuple[str, ...],
    call: str,
    begin: tuple[str, ...] = (LET_OTHERS_BEGIN, WAIT),
) -> str:
    """Return a kernel that makes `call`, in which M is the type `matrix`, and before that what `begin` says."""
    return render(
        "cuda/matrix.cu.j2",
        {
            "headers": (DEPENDENT_LAUNCH, header),
            "begin": begin,
            "symbol": symbol,
            "matrix": matrix,
            "bounds": ", ".join(map(str, bounds)),
            "parameters": ", ".join(_POINTERS[name] for name in arguments),
            "call": call,
        },
    )


def arguments_of(spec: LinearSpec) -> tuple[str, ...]:
    """Return the arrays of a layer that is a kernel of its own."""
    return ("x", *spec.matrix.parts, *(("bias",) if spec.has_bias else ()), "result")


def parts_of(matrix: MatrixFormat) -> str:
    """Return the arguments of the functions that take any matrix."""
    names = {"scales": matrix.scale != "NO_SCALE", "zeros": matrix.has_zeros, "factors": matrix.has_factors}
    return ", ".join(("codes", *(name if is_there else "nullptr" for name, is_there in names.items())))


def matrix_type(spec: LinearSpec, together: int) -> str:
    """Return the type of the matrix; with a gate, of tiles in which `together` rows of each half alternate."""
    name = spec.matrix.type_name
    return f"pyc::Paired<{name}, {spec.outputs // 2}, {together}>" if spec.epilogue.gate else name


def gate_type(spec: LinearSpec) -> str:
    """Return the type of the epilogue's gate."""
    return f"pyc::{FUNCTIONS[spec.epilogue.gate]}" if spec.epilogue.gate else "pyc::NoGate"


def bias_of(spec: LinearSpec) -> str:
    """Return the argument that is the bias."""
    return "bias" if spec.has_bias else "nullptr"


def symbol_of(kind: str, spec: LinearSpec) -> str:
    """Return the name of a kernel."""
    tail = {"F32": "", "INT8": "_x_int8", "MXFP8": "_x_mxfp8", "BF16": "_x_bf16"}[spec.rounding]
    tail += "_bias" if spec.has_bias else ""
    epilogue = spec.epilogue
    tail += f"_normed{epilogue.partials}_{pack('>f', epilogue.epsilon).hex()}" if epilogue.partials else ""
    tail += f"_{epilogue.gate}" if epilogue.gate else ""
    tail += epilogue.rounded.tail if epilogue.rounded else ""
    tail += ("_added_scaled" if epilogue.has_gain else "_added") if epilogue.adds else ""
    return f"{kind}_{spec.matrix.name}_r{spec.rows}_n{spec.outputs}_k{spec.inputs}{tail}"


def flag(value: bool) -> str:
    """Return C's text of a truth value."""
    return "true" if value else "false"
