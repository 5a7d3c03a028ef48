"""What is different in the programs and files of a second artifact: all that a header says of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from blake3 import blake3

from pyc.passes.comparison.changes import Change, by_name, changes_of, order_changes
from pyc.runtime.artifact.format import Blob, Chunk, Function, Header, Program, Span


def program_changes(before: Header, after: Header) -> tuple[Change, ...]:
    """Return the changes of programs: of one that both have what is different in it, be it the weights of a function or
    the order in which it takes them; and whether they stand in another order."""
    first, second = _by_name(before), _by_name(after)
    found: list[Change] = []
    for name in [*first, *(name for name in second if name not in first)]:
        one, two = first.get(name), second.get(name)
        if one is None or two is None:
            there = (_summary(before, one) if one else None), (_summary(after, two) if two else None)
            found.append(Change(name, *there))
        else:
            found += changes_of(_parts(name, before, one), _parts(name, after, two))
            found += _function_changes(name, one, two)
    return (*found, *order_changes("order of programs", list(first), list(second)))


def file_changes(before: Header, after: Header) -> tuple[Change, ...]:
    """Return the changes of the files that are no program's code."""
    return changes_of(_files(before), _files(after))


def chunks_of(header: Header, span: Span) -> tuple[Chunk, ...]:
    """Return the chunks of a tensor or a blob."""
    return header.chunks[span.first_chunk : span.first_chunk + span.chunk_count]


def _by_name(header: Header) -> dict[str, Program]:
    return by_name((f"{each.backend} {each.isa} {each.arch}", each) for each in header.programs)


def _parts(name: str, header: Header, program: Program) -> dict[str, str]:
    return {
        name: _summary(header, program),
        f"{name}: device": program.device,
        f"{name}: system": program.system,
        f"{name}: library": program.library,
        f"{name}: features": ", ".join(program.features),
        f"{name}: abi": ", ".join(f"{tool.name} {tool.version}" for tool in program.abi),
    }


def _function_changes(name: str, before: Program, after: Program) -> Iterator[Change]:
    first, second = (
        {f"{each.name} of {each.tokens} tokens": _function_parts(each) for each in program.functions}
        for program in (before, after)
    )
    for function in [*first, *(function for function in second if function not in first)]:
        where = f"{name}: {function}"
        one, two = first.get(function), second.get(function)
        if one is None or two is None:
            yield Change(where, *("; ".join(each.values()) if each else None for each in (one, two)))
        else:
            for change in changes_of(one, two):
                yield replace(change, name=f"{where}: {change.name}")
    yield from order_changes(f"{name}: order of functions", list(first), list(second))


def _function_parts(function: Function) -> dict[str, str]:
    inputs, weights = (", ".join(names) for names in (function.inputs, function.weights))
    return {"symbol": function.symbol, "inputs": inputs, "weights": weights}


def _summary(header: Header, program: Program) -> str:
    buckets = sorted({function.tokens for function in program.functions})
    code = next((_content(header, blob) for blob in header.blobs if blob.name == program.library), "")
    return f"{len(program.functions)} functions for {', '.join(map(str, buckets))} tokens, code {code}"


def _files(header: Header) -> dict[str, str]:
    libraries = {program.library for program in header.programs}
    return by_name((blob.name, _content(header, blob)) for blob in header.blobs if blob.name not in libraries)


def _content(header: Header, blob: Blob) -> str:
    """A blob's size and a name for its bytes: of the digest of its chunk, or of those of its chunks."""
    digests = "".join(chunk.blake3 for chunk in chunks_of(header, blob.span))
    name = blake3(digests.encode()).hexdigest()[:12] if len(digests) > 64 else digests[:12]
    return f"{blob.raw_bytes:,} bytes, {name}"
