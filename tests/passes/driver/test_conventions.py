"""Programs that this pyc does not call as they expect are found by what they record."""

import pytest

from pyc.backends.registry import BACKENDS
from pyc.passes.driver.conventions import CONVENTIONS, other_conventions
from pyc.runtime.artifact.format import Program, Tool


def program(backend, *tools):
    abi = tuple(Tool(*tool) for tool in tools)
    return Program(backend, "cpu", "x86_64", "linux", "x86-64", (), "code", abi, ())


def test_every_backend_has_one():
    assert set(CONVENTIONS) == set(BACKENDS)
    assert not other_conventions(program(name, CONVENTIONS[name]) for name in BACKENDS)


@pytest.mark.parametrize(
    ("backend", "tools", "told"),
    [
        ("cpu", [("zig", "1"), ("pyc-step", "0")], f"(pyc-step 0); this one has pyc-step {CONVENTIONS['cpu'][1]}"),
        ("cpu", [("zig", "1")], "(pyc-step 1); this one has"),
        ("cuda", [("pyc-cuda", "0"), ("pyc-module", "1")], "(pyc-cuda 0); this one has pyc-cuda"),
        ("tvm", [("zig", "1"), ("pyc-step", "7")], "(pyc-step 7); this one has no backend tvm"),
        ("tvm", [], "(unknown); this one has no backend tvm"),
    ],
)
def test_a_program_that_is_called_otherwise(backend, tools, told):
    (found,) = other_conventions([program("onnx", CONVENTIONS["onnx"]), program(backend, *tools)])
    assert found.told().startswith(f"its program {backend} x86_64 x86-64 is of another pyc ") and told in found.told()
