"""What a compiled library says that it was compiled for, which the header that comes with it has to say too.

A signature covers the header and the code, but a builder's mistake signs both: rows, heads or a vocabulary other than
the code's make it read and write outside its memory. So a library carries this description (`SYMBOL`, UTF-8 with a NUL
behind it), and nothing is allocated before the header has been found to agree in every field. Weights are in it by the
digest of their names, types and shapes, in the order in which a function takes them.

A change of what is described is a new version of the step convention (executors/protocol.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pyc.runtime.artifact.format import Function, Header, ModelInfo, Program
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.recursion import refuse_deep_caller

SYMBOL = "pyc_description"
Shaped = tuple[str, tuple[int, ...]]
"""A tensor's dtype, by its name in the header, and its shape."""

_Value = dict[str, "_Value"] | list["_Value"] | str | int | bool | None


def describe_program(
    model: ModelInfo,
    target: tuple[str, str, Sequence[str]],
    functions: Iterable[Function],
    tensors: Mapping[str, Shaped],
) -> bytes:
    """Return the description, canonical JSON, of functions that are compiled for `target`: arch, isa and features.

    `tensors` has all that the functions read.
    """
    arch, isa, features = target
    described = {
        f"{function.name}, {function.tokens} tokens": {
            "symbol": function.symbol,
            "inputs": function.inputs,
            "weights": _digest(function.weights, tensors),
        }
        for function in functions
    }
    document = {"arch": arch, "isa": isa, "features": features, "model": model, "functions": described}
    return msgspec.json.encode(document, order="sorted")


def check_description(found: bytes, header: Header, program: Program) -> None:
    """Raise ArtifactError unless `found`, the description in the library of `program`, is what the header says."""
    tensors = {tensor.name: (str(tensor.dtype), tensor.shape) for tensor in header.tensors}
    target = (program.arch, program.isa, program.features)
    expected = describe_program(header.model, target, program.functions, tensors)
    if found == expected:
        return
    try:
        compiled: _Value = msgspec.json.decode(found)
    except (ValueError, RecursionError) as error:
        refuse_deep_caller(error)
        raise ArtifactError(f"{program.library}: its description is not valid; build the artifact again") from error
    where, said, needed = _difference("", msgspec.json.decode(expected), compiled) or ("format", "other", "other")
    raise ArtifactError(
        f"{program.library}: {where}: the header says {said}, the code was compiled for {needed}; "
        "build the artifact again"
    )


def _digest(weights: Sequence[str], tensors: Mapping[str, Shaped]) -> str:
    """The digest of a function's weights, in order: their names, dtypes and shapes."""
    rows = [(name, *tensors[name]) for name in weights]
    return hashlib.sha256(msgspec.json.encode(rows)).hexdigest()[:32]


def _difference(where: str, said: _Value, compiled: _Value) -> tuple[str, str, str] | None:
    """The first value in which two documents differ: where it is, and both."""
    if isinstance(said, dict) and isinstance(compiled, dict):
        for name in sorted({*said, *compiled}):
            found = _difference(f"{where}.{name}".lstrip("."), said.get(name), compiled.get(name))
            if found:
                return found
        return None
    return None if said == compiled and type(said) is type(compiled) else (where, _shown(said), _shown(compiled))


def _shown(value: _Value) -> str:
    """A value in few words, without control characters."""
    text = ascii(msgspec.json.encode(value).decode())[1:-1] if isinstance(value, (list, dict)) else ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
