"""Which packages beside pyc's own a bundle carries: those of every program that may be the first that runs there."""

import pytest

from pyc.passes.bundle.make import extras_for
from pyc.runtime.artifact.format import Program


def program(backend: str, *features: str) -> Program:
    return Program(backend, "any", "x86_64", "linux", backend, features, "library", (), ())


ANY_CPU, V3, AMX = program("cpu"), program("cpu", "avx2", "fma"), program("cpu", "amx_tile")
ANY_ARM, DOTPROD = program("cpu", "asimd"), program("cpu", "asimd", "asimddp")
ONNX, CUDA = program("onnx"), program("cuda", "sm_90")


@pytest.mark.parametrize(
    ("programs", "extras"),
    [
        ((AMX, V3, ANY_CPU), ()),
        ((AMX, V3, ANY_CPU, ONNX), ()),
        ((CUDA, ANY_CPU, ONNX), ()),
        ((ONNX,), ("onnx",)),
        ((ONNX, ANY_CPU), ("onnx",)),
        ((CUDA, ONNX, ANY_CPU), ("onnx",)),
        ((AMX, ONNX), ("onnx",)),
        ((AMX, V3, ONNX), ("onnx",)),
        ((V3,), ()),
        ((DOTPROD, ANY_ARM, ONNX), ()),
        ((DOTPROD, ONNX), ("onnx",)),
    ],
)
def test_onnxruntime_is_carried_where_it_may_be_needed(programs, extras):
    assert extras_for(programs) == extras
