"""What a backend does: it turns a lowered module into the program of one target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pyc.compiler.ir import Module
from pyc.runtime.artifact.format import Function, Tool


@dataclass(frozen=True, slots=True)
class Buckets:
    """The row counts that functions are compiled for, ascending: `tokens` of a step, `logits` rows of the head."""

    tokens: tuple[int, ...]
    logits: tuple[int, ...]

    def of(self, function: str) -> tuple[int, ...]:
        """Return the buckets of "forward", "embed", "prompt" (those of more than one row) or "logits"."""
        if function == "prompt":
            return tuple(rows for rows in self.tokens if rows > 1)
        return self.logits if function == "logits" else self.tokens


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A shared library for one instruction set, and its entry points."""

    isa: str
    arch: str
    features: tuple[str, ...]
    library: bytes
    functions: tuple[Function, ...]


class Backend(Protocol):
    """Compiles programs."""

    def compile(self, module: Module, buckets: Buckets, isas: tuple[str, ...]) -> Iterator[CompiledProgram]:
        """Yield the program for each instruction set, in order; raises LowerError."""
        ...

    def tools(self) -> tuple[Tool, ...]:
        """Return the compilers used, with versions: they are part of a program's identity."""
        ...
