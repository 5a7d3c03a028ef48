"""What a backend is: everything that one kind of device needs of a build.

The common pipeline (`passes.pipeline`) knows no layout and no device. A backend's passes run on its result, and know of
no other backend; then it says what its weights are in the artifact and compiles what has become of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.ir import Module
from pyc.compiler.manager import Pass
from pyc.compiler.operators import Operator
from pyc.compiler.storage import WHOLE, Piece, Span, StoredTensor
from pyc.compiler.weights import Expression
from pyc.runtime.artifact.format import Function, KvDtype, ModelInfo, Tool


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
    """What runs on one kind of machine, `isa`, and its entry points: a shared library for CPUs."""

    isa: str
    arch: str
    features: tuple[str, ...]
    library: bytes
    functions: tuple[Function, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a backend takes, as measured: of the `build`'s process, of `compilers` beside it, and of a `run`'s
    process whatever the model is; None: that is not known.

    Keys and values are of `cache_dtype`, None: of the header's; `heads_apart`, those of a head are in a piece of memory
    for its whole context.
    """

    build_bytes: int
    compilers_bytes: int
    run_bytes: int | None
    cache_dtype: KvDtype | None = None
    heads_apart: bool = False

    def cache_of(self, info: ModelInfo) -> ModelInfo:
        """Return the model with its cache as this backend has it."""
        if info.kv_cache is None or self.cache_dtype is None:
            return info
        return structs.replace(info, kv_cache=structs.replace(info.kv_cache, dtype=self.cache_dtype))


class Backend(Protocol):
    """Lowers and compiles modules for one kind of device. It serves one build: close it afterwards."""

    @property
    def name(self) -> str:
        """What recipes and headers call it."""
        ...

    @property
    def operators(self) -> Mapping[str, Operator]:
        """The operators that its passes put in the place of logical ones."""
        ...

    @property
    def cache_block_tokens(self) -> int | None:
        """Positions of a block of the key-value cache; None: any number."""
        ...

    @property
    def suffix(self) -> str:
        """What names of compiled programs end in, such as ".so"."""
        ...

    @property
    def memory(self) -> Memory:
        """What it takes beside what weights, values and keys and values do."""
        ...

    def held_bytes(self, weight: StoredTensor) -> int:
        """Return the bytes that a run holds of a weight beside those of the artifact."""
        ...

    def passes(self) -> tuple[Pass, ...]:
        """Return what it rewrites a module of logical operators by, in order.

        One of them provides "packed": it wraps matrices in `Packed`, whatever the others do.
        """
        ...

    def stored(self, expression: Expression) -> StoredTensor:
        """Return what a weight of a lowered module is in the artifact; raises QuantizeError."""
        ...

    def pieces(self, expression: Expression, files: SourceFiles, span: Span = WHOLE) -> Iterator[Piece]:
        """Yield the tasks whose results, in order, are the bytes of that, or of a `span` of its first dimension.

        Several threads run them at once, or other machines: they are pure functions of the expression.
        """
        ...

    def fastest_first(self, isas: tuple[str, ...]) -> tuple[str, ...]:
        """Return the variants that a target names in the order in which a runtime would choose; raises LowerError."""
        ...

    def check(self, module: Module, buckets: Buckets) -> None:
        """Raise LowerError for a module of which `compile` would find that this device lacks something, in moments."""
        ...

    def compile(self, module: Module, buckets: Buckets, isas: tuple[str, ...]) -> Iterator[CompiledProgram]:
        """Yield the program for each variant, in order; raises LowerError."""
        ...

    def cache_values(self, module: Module, isa: str) -> str:
        """Return what the key-value cache of a program holds: f32, f16, bf16 or int8."""
        ...

    def tools(self) -> tuple[Tool, ...]:
        """Return the compilers used, with versions: they are part of a program's identity."""
        ...

    def sources_digest(self) -> str:
        """Return what stands for the code that generates programs: it is the rest of their identity."""
        ...

    def stop(self) -> None:
        """End the compilers that run, from another thread: what waits for them gets an error."""
        ...

    def close(self) -> None:
        """Remove what only this build used."""
        ...
