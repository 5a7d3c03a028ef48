"""Scalar functions as TIR expressions that LLVM vectorizes: no call leaves the kernel.

exp(x) = 2^n * p(r), n = round(x / ln 2), r = x - n ln 2 in [-0.347, 0.347], ln 2 split in two parts so that r is
exact; p is the Taylor polynomial of degree 7 (truncation 2.5e-9). Relative error at most 2e-7 over [-87.3, 88.7],
outside of which the argument is clamped.

erf(x) = sign(x) (1 - (a1 t + ... + a5 t^5) exp(-x^2)), t = 1 / (1 + 0.3275911 |x|)
(Abramowitz and Stegun 7.1.26); absolute error at most 5e-7 in f32.
"""

from __future__ import annotations

from tvm.ir import Expr as PrimExpr
from tvm.script import tirx as T

_TAYLOR = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0)
_ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)


def _f32(value: float) -> PrimExpr:
    return T.float32(value)


def exp(x: PrimExpr) -> PrimExpr:
    """e^x of an f32 expression (scalar)."""
    clamped = T.max(T.min(x, _f32(88.0)), _f32(-87.0))
    n = T.floor(clamped * _f32(1.4426950408889634) + _f32(0.5))
    r = clamped - n * _f32(0.693359375) + n * _f32(2.12194440e-4)
    p = _f32(_TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        p = p * r + _f32(coefficient)
    power = T.reinterpret("float32", T.shift_left(T.cast(n, "int32") + 127, T.int32(23)))
    return p * power


def sigmoid(x: PrimExpr) -> PrimExpr:
    """1 / (1 + e^-x)."""
    return _f32(1.0) / (_f32(1.0) + exp(_f32(0.0) - x))


def tanh(x: PrimExpr) -> PrimExpr:
    """1 - 2 / (e^2x + 1)."""
    return _f32(1.0) - _f32(2.0) / (exp(_f32(2.0) * x) + _f32(1.0))


def erf(x: PrimExpr) -> PrimExpr:
    """The error function."""
    magnitude = T.abs(x)
    t = _f32(1.0) / (_f32(1.0) + _f32(0.3275911) * magnitude)
    p = _f32(_ERF[0])
    for coefficient in _ERF[1:]:
        p = p * t + _f32(coefficient)
    value = _f32(1.0) - p * t * exp(_f32(0.0) - magnitude * magnitude)
    return T.Select(x < _f32(0.0), _f32(0.0) - value, value)


def activate(function: str, x: PrimExpr) -> PrimExpr:
    """Apply an activation of `compiler.operators.ACTIVATIONS`.

    silu x * sigmoid(x); relu2 max(x, 0)^2; gelu x/2 (1 + erf(x/sqrt 2));
    gelu_tanh x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    """
    match function:
        case "silu":
            return x * sigmoid(x)
        case "relu":
            return T.max(x, _f32(0.0))
        case "relu2":
            return T.max(x, _f32(0.0)) * T.max(x, _f32(0.0))
        case "gelu":
            return _f32(0.5) * x * (_f32(1.0) + erf(x * _f32(0.7071067811865476)))
        case "gelu_tanh":
            inner = _f32(0.7978845608028654) * (x + _f32(0.044715) * x * x * x)
            return _f32(0.5) * x * (_f32(1.0) + tanh(inner))
        case _:
            raise AssertionError(f"no activation is called {function}")
