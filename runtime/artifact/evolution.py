"""The header of an artifact of another minor version, read as one of this version (docs/artifact-format.md, Versions).

What a reader may pass over has a place: fields that it does not know in the records of `_OPEN`, in a file of a newer
minor version. Everywhere else, and in files of its own version, an unknown field is an error. A writer whose readers
must understand a field names a feature for it in `requires`; a reader that does not know the feature refuses the file.
"""

from __future__ import annotations

import json
from typing import NoReturn

import msgspec

from pyc.runtime.artifact.format import (
    FEATURES,
    MAX_INTEGER,
    MINOR,
    Function,
    Generation,
    Header,
    PassRecord,
    Program,
    Provenance,
    Record,
    SourceFile,
)
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.recursion import refuse_deep_caller

_OPEN: dict[str, type[Record]] = {
    "": Header,
    "programs": Program,
    "programs.functions": Function,
    "generation": Generation,
    "provenance": Provenance,
    "provenance.sources": SourceFile,
    "provenance.passes": PassRecord,
}
"""The records, by where they stand, in which a newer minor version may have fields for readers that know them. Those of
the model and of where bytes lie are closed: to pass over a part of these is to misread the rest."""


class _Needs(msgspec.Struct):
    """What a header of any version says that its reader has to know."""

    requires: tuple[str, ...] = ()


_needs = msgspec.json.Decoder(_Needs)


def refuse_unknown_features(text: bytes) -> None:
    """Raise ArtifactError when the header names a feature that this reader lacks, before the rest is looked at.

    A header that cannot be read at all passes: what is wrong with it, its decoding says.
    """
    try:
        needed = _needs.decode(text).requires
    except (ValueError, RecursionError) as error:
        refuse_deep_caller(error)
        return
    unknown = [ascii(name[:60]) for name in needed if name not in FEATURES]
    if unknown:
        raise ArtifactError(
            f"needs {', '.join(unknown[:4])}{' and more' if len(unknown) > 4 else ''}, which this pyc does not know; "
            "install a newer pyc, or build the artifact again with this one"
        )


def as_current(text: bytes, minor: int) -> bytes:
    """Return the header `text`, which is of version `minor`, as this version would write it.

    It has to be canonical. Raises ValueError and RecursionError.
    """
    document = json.loads(text.decode(), parse_int=_integer, parse_float=_refuse, parse_constant=_refuse)
    if _canonical(document) != text:
        raise ValueError("not in canonical form: re-encoding it gives other bytes")
    return _canonical(_known(document, "") if minor > MINOR else _from_1_0(document))


def _known(value: object, where: str) -> object:
    """The value without the fields that this version does not know, where those are allowed."""
    if where not in _OPEN:
        return value
    if isinstance(value, list):
        return [_known(item, where) for item in value]
    if isinstance(value, dict):
        fields = _OPEN[where].__struct_fields__
        return {name: _known(value[name], f"{where}.{name}".lstrip(".")) for name in value if name in fields}
    return value


def _from_1_0(document: object) -> object:
    """Version 1.1 added `requires`, and dropped the second library of a program, which nothing read."""
    if not isinstance(document, dict) or "requires" in document:
        raise ValueError("version 1.0 has no field `requires`")
    programs = document.get("programs")
    for program in programs if isinstance(programs, list) else ():
        if not isinstance(program, dict) or "runtime_library" not in program:
            raise ValueError("a program of version 1.0 has the field `runtime_library`")
        del program["runtime_library"]
    return {**document, "requires": []}


def _canonical(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _integer(digits: str) -> int:
    """The integer, within the limits of the format, which hold for fields that nobody here knows too."""
    value = int(digits) if len(digits) < 20 else MAX_INTEGER + 1
    if abs(value) > MAX_INTEGER:
        raise ValueError(f"an integer of {len(digits)} digits: none is above {MAX_INTEGER}")
    return value


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"{number[:60]!a}: numbers are integers")
