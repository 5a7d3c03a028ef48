"""The kernels that the functions of libraries call, each made once however many layers and buckets share it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from tvm import tirx

from pyc.backends.cpu.emit.call_list import CallList
from pyc.backends.cpu.kernels.attention import AttentionSpec
from pyc.backends.cpu.kernels.linear import AnySpec, QuantizeSpec
from pyc.backends.cpu.tir import extern
from pyc.backends.cpu.tir.extern import Argument
from pyc.backends.cpu.tir.parts import in_parts
from pyc.backends.cpu.tir.quantized_rows import in_place, into_quantized, of_sum

Factory = Callable[..., tirx.PrimFunc]
Adds = Literal["", "apart", "in place"]
"""Whether a kernel over rows adds first, and whether its sum and its rows take the places of what it adds."""


PARSED = 256
"""TIR kernels that a process keeps: a model has 10 to 30."""


@dataclass
class KernelSet:
    """C kernels by their symbols, and TIR kernels by their names, which begin with `prefix`.

    `callers` are the TIR kernels that run a C kernel. They have nothing for vectors to do.
    """

    prefix: str = ""
    c: dict[str, AnySpec] = field(default_factory=dict)
    tir: dict[str, tirx.PrimFunc] = field(default_factory=dict)
    callers: set[str] = field(default_factory=set)
    _names: dict[tuple[Factory, tuple[object, ...]], str] = field(default_factory=dict)

    def rows(self, factory: Factory, constants: tuple[object, ...]) -> str:
        """Return the name of the kernel `factory(*constants)`."""
        return self._made_once(factory, constants, lambda: _parsed(factory, *constants))

    def quantizing(self, factory: Factory, constants: tuple[object, ...], spec: QuantizeSpec, adds: Adds) -> str:
        """The same for a kernel over rows that are quantized, perhaps of a sum."""

        def make() -> tirx.PrimFunc:
            plain = _parsed(factory, *constants)
            kernel = into_quantized(of_sum(plain) if adds else plain, self._symbol(spec), spec.row_bytes)
            return in_place(kernel) if adds == "in place" else kernel

        return self._made_once(factory, (*constants, spec, adds), make)

    def extern(self, spec: AnySpec, arguments: tuple[Argument, ...], alone: bool, next_weights: Argument | None) -> str:
        """Return the name of the kernel that runs a C kernel, see `extern.kernel`."""
        told_threads = isinstance(spec, AttentionSpec)
        name = self.rows(extern.kernel, (self._symbol(spec), arguments, alone, next_weights, told_threads))
        self.callers.add(name)
        return name

    def _symbol(self, spec: AnySpec) -> str:
        self.c[spec.symbol] = spec
        return spec.symbol

    def _made_once(self, factory: Factory, constants: tuple[object, ...], make: Callable[[], tirx.PrimFunc]) -> str:
        key = factory, constants
        if key not in self._names:
            name = self._names[key] = f"{self.prefix}{factory.__name__}_{len(self._names)}"
            self.tir[name] = in_parts(make()).with_attr("global_symbol", name)
        return self._names[key]


@lru_cache(PARSED, typed=True)
def _parsed(factory: Factory, *constants: object) -> tirx.PrimFunc:
    """What `factory` makes. TVM takes 50 to 100 ms to parse one, and strategies, schemes and models share them."""
    return factory(*constants)


@dataclass
class Variant:
    """The functions of libraries with one `isa.GemmStrategy`, and the kernels that those call."""

    kernels: KernelSet
    functions: list[CallList] = field(default_factory=list)
