"""Emit programs: the lowered module to a library for each instruction set of each target, cached by content.

They are compiled on a thread of their own, while weights are evaluated on others: compilers are processes, or code
that releases the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from types import TracebackType
from typing import Self

import msgspec
from blake3 import blake3

from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.backends.protocol import Buckets, CompiledProgram
from pyc.backends.registry import backend_for, kernel_sources_digest
from pyc.compiler.cache import Cache
from pyc.compiler.ir import Module
from pyc.compiler.recipe_types import ISAS, Recipe
from pyc.compiler.storage import stored_tensor
from pyc.compiler.text import print_graph
from pyc.passes.awaited import Awaited
from pyc.runtime.artifact.format import Function, ModelInfo, Program


class _Entry(msgspec.Struct, frozen=True):
    """A compiled program in the cache."""

    functions: tuple[Function, ...]
    features: tuple[str, ...]
    library: bytes


def buckets_of(recipe: Recipe, info: ModelInfo) -> Buckets:
    """Return the row counts that a recipe asks for, ascending and without repetition.

    Sequences of a decoder that run together take a row each, in a step and of the logits: no padding for `batch`.
    """
    shapes = recipe.shapes
    together = shapes.batch if info.kind == "decoder" else ()
    return Buckets(tuple(sorted({*shapes.tokens, *together})), tuple(sorted({*shapes.logits, *together})))


Emitted = tuple[Program, dict[str, bytes]]
"""A program and the blobs that it needs, by name."""


class ProgramCompiler:
    """Compiles the programs of a module in the background, from its making on; leaving the context ends it."""

    def __init__(self, module: Module, recipe: Recipe, cache: Cache) -> None:
        self._stopped = Event()
        self._toolchain = Toolchain(cache.directory)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="pyc-compile")
        self._programs = Awaited(self._pool, partial(self._work, module, recipe, cache))

    def check(self) -> None:
        """Raise LowerError if a program has failed by now."""
        if self._programs.done():
            self._programs.result()

    def programs(self) -> list[Emitted]:
        """Return the programs, the fastest instruction set first, once all are there; raises LowerError."""
        return self._programs.result()

    def _work(self, module: Module, recipe: Recipe, cache: Cache) -> list[Emitted]:
        found = []
        for emitted in emit_programs(module, recipe, cache, self._toolchain):
            found.append(emitted)
            if self._stopped.is_set():
                break
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()  # no further instruction set is begun
        if error is not None:
            self._toolchain.stop()  # TVM, which works in this process, is waited for
        self._pool.shutdown(cancel_futures=True)
        self._toolchain.close()


def emit_programs(
    module: Module, recipe: Recipe, cache: Cache, toolchain: Toolchain | None = None
) -> Iterator[Emitted]:
    """Yield every program, the fastest instruction set first, with the blobs it needs; raises LowerError."""
    buckets = buckets_of(recipe, module.info)
    for target in recipe.targets:
        backend = backend_for(target.backend, toolchain)
        tools = backend.tools()
        isas = tuple(sorted(target.isa, key=ISAS[target.arch].index, reverse=True))
        versions = tuple((tool.name, tool.version) for tool in tools)
        keys = {isa: _key(module, buckets, isa, versions) for isa in isas}
        found = {isa: _cached(cache, keys[isa], isa, target.arch) for isa in isas}
        fresh = backend.compile(module, buckets, tuple(isa for isa in isas if found[isa] is None))
        for isa in isas:
            compiled = found[isa]
            if compiled is None:
                compiled = next(fresh)
                entry = _Entry(compiled.functions, compiled.features, compiled.library)
                cache.put(keys[isa], msgspec.msgpack.encode(entry))
            library = f"{target.backend}/{isa}.so"
            program = Program(
                backend=target.backend,
                device=target.device,
                arch=target.arch,
                system="linux",
                isa=isa,
                features=compiled.features,
                library=library,
                runtime_library=None,
                abi=tools,
                functions=compiled.functions,
            )
            yield program, {library: compiled.library}


def _cached(cache: Cache, key: str, isa: str, arch: str) -> CompiledProgram | None:
    data = cache.get(key)
    if data is None:
        return None
    entry = msgspec.msgpack.decode(data, type=_Entry)
    return CompiledProgram(isa, arch, entry.features, entry.library, entry.functions)


def _key(module: Module, buckets: Buckets, isa: str, tools: tuple[tuple[str, str], ...]) -> str:
    """Return the digest of all that a program depends on; weights count by type, not by value."""
    types = [(name, repr(stored_tensor(weight))) for name, weight in module.weights.items()]
    parts = (
        print_graph(module.graph),
        types,
        repr(module.info),
        repr(buckets),
        isa,
        tools,
        kernel_sources_digest(),
    )
    return blake3(repr(parts).encode()).hexdigest()
