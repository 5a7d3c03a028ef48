"""The names by which the rules of a policy know an artifact: the last part of what was asked for.

A path has the name that was given, whatever a symbolic link leads to. What lies on another machine can be written in
several ways, all of which have the name of what is fetched:

    oci://host/team/coder            coder:latest         the tag that is fetched where none is given
    oci://host/coder:7@sha256:...    coder@sha256:...     the digest alone is fetched by
    https://host/a/prod%2D7.pyca     prod-7.pyca          decoded, once, as servers do
    https://host/prod-7.pyca/x/..    prod-7.pyca          without what `.`, `..` and double slashes take away
    s3://bucket/a/prod%2D7.pyca      prod%2D7.pyca        names of objects are literal
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from pyc.runtime.sources.places import OBJECT_STORES, REGISTRY, STANDARD_INPUT, Place, Remote, scheme_of
from pyc.runtime.text.printable import printable


def names_of(place: Place) -> tuple[str, ...]:
    """Return the name of what is read at a place and, where that is another, the last part as it was written.

    Raises FetchError for a malformed name in a registry.
    """
    if not isinstance(place, Remote) or place.address == STANDARD_INPUT:
        return (place.name,)
    return tuple(dict.fromkeys((_remote_name(place.address), place.name)))


def _remote_name(address: str) -> str:
    scheme, rest = scheme_of(address), address.partition("://")[2]
    if scheme == REGISTRY:
        from pyc.runtime.sources.registry_session import parse_reference

        reference = parse_reference(address)
        mark = "@" if reference.version.startswith("sha256:") else ":"
        return f"{reference.repository.rpartition('/')[2]}{mark}{reference.version}"
    if scheme in OBJECT_STORES:
        return _last_part(rest.partition("/")[2])
    return _last_part(unquote(re.split("[?#]", rest)[0].partition("/")[2]))


def _last_part(path: str) -> str:
    """The last part of a path, without what `.`, `..` and double slashes take away."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return printable(parts[-1]) if parts else ""
