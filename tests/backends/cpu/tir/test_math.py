"""backends/cpu/tir/math.py: the error bounds that its head states, over compiled code.

Every function is evaluated on 60,000 points and compared with float64: `exp` relative, the others absolute or
relative as their use in an activation asks.
"""

import math

import numpy as np
import pytest

from pyc.backends.cpu.isa import ISAS
from pyc.runtime.executors.cpu.features import cpu_features

COUNT = 60_000


def compiled(name):
    """A function f32 array -> f32 array of a function of math, or of an activation."""
    import tvm
    from tvm.script import tirx as T

    from pyc.backends.cpu.tir import math as tir_math

    def value(x):
        return getattr(tir_math, name)(x) if hasattr(tir_math, name) else tir_math.activate(name, x)

    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((COUNT,), "float32"), y: T.Buffer((COUNT,), "float32")):
        T.func_attr({"global_symbol": "kernel"})
        for i in range(COUNT):
            y[i] = value(x[i])

    isa = max((isa for isa in ISAS.values() if set(isa.features) <= cpu_features()), key=lambda isa: isa.rank)
    attributes = {"kind": "llvm", "mtriple": isa.llvm_triple, "mcpu": isa.llvm_cpu, "mattr": list(isa.llvm_attributes)}
    library = tvm.compile(tvm.IRModule({"kernel": kernel}), tvm.target.Target(attributes))

    def run(points):
        given = tvm.runtime.tensor(points.astype(np.float32))
        result = tvm.runtime.tensor(np.zeros(COUNT, np.float32))
        library["kernel"](given, result)
        return result.numpy()

    return run


def points(low, high):
    return np.linspace(low, high, COUNT).astype(np.float32)


def exact(name, x):
    wide = x.astype(np.float64)
    match name:
        case "exp":
            return np.exp(wide)
        case "erf":
            return np.array([math.erf(value) for value in wide])
        case "sigmoid":
            return 1 / (1 + np.exp(-wide))
        case "tanh":
            return np.tanh(wide)
        case "silu":
            return wide / (1 + np.exp(-wide))
        case "gelu":
            return wide * 0.5 * (1 + np.array([math.erf(value / math.sqrt(2)) for value in wide]))
        case "gelu_tanh":
            return wide * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
        case "relu":
            return np.maximum(wide, 0)
    raise AssertionError(name)


def test_exp_is_within_its_relative_error():
    x = points(-86.9, 87.9)
    wanted = exact("exp", x)
    assert np.abs(compiled("exp")(x) / wanted - 1).max() <= 2.1e-7


BOUNDS = {
    "erf": (6, 5e-7),
    "sigmoid": (30, 3e-7),
    "tanh": (12, 5e-7),
    "silu": (20, 3e-6),
    "gelu": (8, 2e-6),
    "gelu_tanh": (8, 2e-6),
    "relu": (20, 0),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_others_are_within_their_absolute_error(name):
    reach, bound = BOUNDS[name]
    x = points(-reach, reach)
    assert np.abs(compiled(name)(x) - exact(name, x)).max() <= bound


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_tanh", "relu"])
def test_large_values_stay_finite(name):
    x = np.resize(np.array([-3e38, -1e6, -200, -100, 100, 200, 1e6, 3e38], np.float32), COUNT)
    moderate = np.abs(x) < 1e7
    got = compiled(name)(x)[moderate]
    assert np.isfinite(got).all()
    assert np.abs(got - np.maximum(x, 0)[moderate]).max() <= 1e-30
