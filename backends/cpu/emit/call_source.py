"""Lists of calls as C: templates/cpu/calls.c.j2, which runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyc.backends.cpu.emit.call_list import DTYPES, CallList
from pyc.backends.cpu.isa import oldest_isa
from pyc.backends.cpu.toolchain.objects import ObjectCompiler
from pyc.templates.rendering import render

TEMPLATE = "cpu/calls.c.j2"
MAX_RANK = 5
"""Most dimensions of a tensor, as parameters are described to the runtime."""


@dataclass(frozen=True, slots=True)
class TensorContext:
    """A tensor as the template sees it."""

    offset: int
    shape: tuple[int, ...]
    kind: int
    bits: int


@dataclass(frozen=True, slots=True)
class FunctionContext:
    """A function as the template sees it: each call is the kernel's number, how many arguments, and which tensors."""

    symbol: str
    parameters: int
    workspace_bytes: int
    tensors: tuple[TensorContext, ...]
    calls: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class CallsContext:
    """All that the template sees; a kernel's symbol is its name behind `prefix`."""

    prefix: str
    kernels: tuple[str, ...]
    most_arguments: int
    most_dimensions: int
    functions: tuple[FunctionContext, ...]


def calls_source(functions: Sequence[CallList], prefix: str) -> str:
    """Return the C source of `functions`, whose kernels are functions called `prefix` and the kernel's name."""
    kernels = tuple(dict.fromkeys(call.kernel for function in functions for call in function.calls))
    contexts = tuple(_function(function, kernels) for function in functions)
    most = max((len(call) - 2 for function in contexts for call in function.calls), default=1)
    return render(TEMPLATE, {"context": CallsContext(prefix, kernels, most, MAX_RANK, contexts)})


def compile_calls(functions: Sequence[CallList], prefix: str, arch: str, compiler: ObjectCompiler) -> bytes:
    """Return the ELF object of `functions` for every CPU of `arch`; raises LowerError when the compiler does."""
    return compiler.compile_object(calls_source(functions, prefix), oldest_isa(arch), {})


def _function(function: CallList, kernels: tuple[str, ...]) -> FunctionContext:
    numbers = {tensor: index for index, (tensor, _) in enumerate(function.tensors())}
    indices = {kernel: index for index, kernel in enumerate(kernels)}
    calls = []
    for call in function.calls:
        tensors = [numbers[tensor] for tensor in (*call.operands, *call.results)]
        calls.append((indices[call.kernel], len(tensors), *tensors))
    described = []
    for tensor, offset in function.tensors():
        assert len(tensor.shape) <= MAX_RANK, tensor
        described.append(TensorContext(offset, tensor.shape, *DTYPES[tensor.dtype]))
    parameters = len(function.parameters) + 1  # and the result
    return FunctionContext(function.symbol, parameters, function.workspace_bytes, tuple(described), tuple(calls))
