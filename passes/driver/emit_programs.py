"""Emit programs: the lowered module to a library for each instruction set of each target, cached by content.

They are compiled on a thread of their own, while weights are evaluated on others: compilers are processes, or code
that releases the interpreter lock.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterable, Iterator
from functools import partial
from threading import Event
from types import TracebackType
from typing import Protocol, Self

import msgspec
from blake3 import blake3

from pyc.backends.protocol import Backend, Buckets, CompiledProgram
from pyc.compiler.awaited import Awaited, Workers
from pyc.compiler.files.cache import Cache
from pyc.compiler.recipe.types import Recipe
from pyc.compiler.text import print_graph
from pyc.passes.driver.module_identity import identity_of, identity_text
from pyc.passes.lower import Lowered, Part
from pyc.runtime.artifact.format import Function, ModelInfo, Program, Tool
from pyc.runtime.errors import MissingExtraError
from pyc.runtime.executors.protocol import CACHE_VALUES
from pyc.runtime.host.extras import install_line

COMPILERS = ("apache-tvm", "apache-tvm-ffi", "ziglang")
"""Distributions of every build whose versions decide what programs are."""


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


def check_parts(lowered: Lowered, recipe: Recipe) -> None:
    """Raise LowerError, before anything is hashed or compiled, for what a target's device lacks."""
    buckets = buckets_of(recipe, lowered.common.info)
    for part in lowered.parts:
        part.backend.check(part.module, buckets)


class ProgramSource(Protocol):
    """Where an artifact's programs come from: a context that ends whatever works for them, and closes the backends."""

    def check(self) -> None:
        """Raise LowerError if a program has failed by now."""
        ...

    def programs(self) -> list[Emitted]:
        """Return the programs, for each target the fastest instruction set first; raises LowerError."""
        ...

    def tools(self) -> tuple[Tool, ...]:
        """Return the distributions that compiled them, with their versions."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


Emitted = tuple[Program, dict[str, bytes]]
"""A program and the blobs that it needs, by name."""


def compilers_of(backends: Iterable[Backend]) -> tuple[Tool, ...]:
    """Return the compilers that every build has, and those of its backends, with their versions.

    Raises PackageNotFoundError and MissingExtraError for one that is not installed.
    """
    used = {name: importlib.metadata.version(name) for name in COMPILERS}
    for backend in backends:
        used |= {tool.name: tool.version for tool in backend.tools() if not tool.name.startswith("pyc-")}
    return tuple(Tool(name, version) for name, version in used.items())


def require_compilers(purpose: str, otherwise: str) -> None:
    """Raise MissingExtraError where compilers that every build has are not installed: `purpose` says what is compiled,
    and `otherwise` what else one can do than to install them."""
    try:
        compilers_of(())
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError(
            f"{purpose}, and {error.name} is not installed; {otherwise}, or install the compilers, "
            f"{install_line('compiler')}"
        ) from error


class ProgramCompiler:
    """Compiles the programs of a module in the background, from its making on; leaving the context ends it.

    It closes the backends then.
    """

    def __init__(self, lowered: Lowered, recipe: Recipe, cache: Cache) -> None:
        self._stopped = Event()
        self._backends = [part.backend for part in lowered.parts]
        self._tools = compilers_of(self._backends)
        self._pool = Workers(1, "pyc-compile")
        self._programs = Awaited(self._pool, partial(self._work, lowered, recipe, cache))

    def check(self) -> None:
        """Raise LowerError if a program has failed by now."""
        if self._programs.done():
            self._programs.result()

    def programs(self) -> list[Emitted]:
        """Return the programs, the fastest instruction set first, once all are there; raises LowerError."""
        return self._programs.result()

    def tools(self) -> tuple[Tool, ...]:
        """Return the compilers that are installed."""
        return self._tools

    def _work(self, lowered: Lowered, recipe: Recipe, cache: Cache) -> list[Emitted]:
        found = []
        for emitted in emit_programs(lowered, recipe, cache):
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
        with contextlib.ExitStack() as last:  # each of these, whatever interrupts another
            for backend in self._backends:
                last.callback(backend.close)
            last.callback(self._pool.shutdown, cancel_futures=True)
            if error is not None:
                for backend in self._backends:
                    last.callback(backend.stop)


def emit_programs(lowered: Lowered, recipe: Recipe, cache: Cache) -> Iterator[Emitted]:
    """Yield every program, the fastest instruction set first, with the blobs it needs; raises LowerError."""
    buckets = buckets_of(recipe, lowered.common.info)
    for target in recipe.targets:
        part = lowered.part(target.backend)
        backend = part.backend
        isas = backend.fastest_first(target.isa)
        keys = {isa: _key(part, buckets, isa) for isa in isas}
        found = {isa: _cached(cache, keys[isa], isa, target.arch) for isa in isas}
        fresh = backend.compile(part.module, buckets, tuple(isa for isa in isas if found[isa] is None))
        for isa in isas:
            compiled = found[isa]
            if compiled is None:
                compiled = next(fresh)
                entry = _Entry(compiled.functions, compiled.features, compiled.library)
                cache.put(keys[isa], msgspec.msgpack.encode(entry))
            library = f"{backend.name}/{isa}{backend.suffix}"
            program = Program(
                backend=backend.name,
                device=target.device,
                arch=target.arch,
                system="linux",
                isa=isa,
                features=compiled.features,
                library=library,
                abi=(*backend.tools(), *own_tools(part, buckets, isa)),
                functions=compiled.functions,
            )
            yield program, {library: compiled.library}


def own_tools(part: Part, buckets: Buckets, isa: str) -> tuple[Tool, ...]:
    """Return what a program's `abi` has beside compilers: what it was compiled from, and, for a module with virtual
    tokens, how these are written to the cache."""
    module = identity_of(identity_text(part, buckets))
    if part.module.prefix is None:
        return (module,)
    return Tool(CACHE_VALUES, part.backend.cache_values(part.module, isa)), module


def _cached(cache: Cache, key: str, isa: str, arch: str) -> CompiledProgram | None:
    data = cache.get(key)
    if data is None:
        return None
    entry = msgspec.msgpack.decode(data, type=_Entry)
    return CompiledProgram(isa, arch, entry.features, entry.library, entry.functions)


def _key(part: Part, buckets: Buckets, isa: str) -> str:
    """Return the digest of all that a program depends on; weights count by type, not by value."""
    module, backend = part.module, part.backend
    types = [(name, repr(backend.stored(weight))) for name, weight in module.weights.items()]
    parts = (
        print_graph(module.graph),
        types,
        repr(module.info),
        repr(buckets),
        isa,
        tuple((tool.name, tool.version) for tool in backend.tools()),
        backend.sources_digest(),
    )
    return blake3(repr(parts).encode()).hexdigest()
