"""What a place that a user names is, and its source: a path, a URL, or `-` for standard input."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyc.runtime.errors import FetchError
from pyc.runtime.sources.local import open_file
from pyc.runtime.sources.protocol import Mode, Source
from pyc.runtime.text.printable import printable

OBJECT_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "azure", "adl")
"""The schemes of object stores that `obstore` knows."""
REGISTRY = "oci"
SCHEMES = ("http", "https", REGISTRY, *OBJECT_STORES)
STANDARD_INPUT = "-"
_host_with_port = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^:\[\]]*)(:[0-9]*)?")
_in_text = re.compile(rf"\b({'|'.join(SCHEMES)}):/{{1,2}}([^\s/'\"][^\s'\"]*[^\s'\".,:;])", re.IGNORECASE)
_scheme = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Remote(str):
    """A place that is no file here: a URL, or standard input. Its text is what may be shown."""

    address: str

    def __new__(cls, address: str) -> Remote:
        """`address` is the URL with all that belongs to it, or "-"."""
        made = super().__new__(cls, "standard input" if address == STANDARD_INPUT else shown_url(address))
        made.address = address
        return made

    @property
    def name(self) -> str:
        """The last part, as a path has it."""
        return self.rpartition("/")[2]


Place = Path | Remote


def scheme_of(place: object) -> str:
    """The scheme of a URL in lower case; empty for what is none, as a path."""
    found = _scheme.match(place) if isinstance(place, str) else None
    return found[1].lower() if found else ""


def shown_url(url: str) -> str:
    """Any URL as it may be shown: without credentials and without what follows `?` and `#`.

    A password may have a slash in it, as tokens in base64 do, although a URL would write it otherwise: an authority
    whose port is no number is a user, and the host comes behind a later @. A reference, as a redirect may have it,
    lacks the scheme, and the host.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or re.search("[?#]", scheme):
        scheme, separator, rest = ("", "//", url[2:]) if url.startswith("//") else ("", "", url)
    authority, slash, path = re.split("[?#]", rest)[0].partition("/")
    host = authority.rpartition("@")[2]
    if ":" in host and not _host_with_port.fullmatch(host):
        _, slash, path = path.rpartition("@")[2].partition("/") if "@" in path else ("", "", "")
        host = "..."
    return printable(f"{scheme}{separator}{host}{slash}{path}")


def without_credentials(text: str) -> str:
    """Return text with every URL in it as it may be shown; a path made of one has lost a slash."""
    return _in_text.sub(lambda found: shown_url(f"{found[1]}://{found[2]}"), text)


def place_of(named: str | os.PathLike[str]) -> Place:
    """Return the place that `named` means: text that begins as a URL is one, all else is a path."""
    if isinstance(named, Remote):
        return named
    return Remote(named) if isinstance(named, str) and scheme_of(named) else Path(named)


def address_of(place: Place) -> str:
    """Return what `place_of` makes the same place of; of a URL with all that belongs to it: it is not to be shown."""
    return place.address if isinstance(place, Remote) else os.fspath(place)


def open_place(place: Place, mode: Mode) -> Source:
    """Return the source at a place; `mode` is for files. Raises ArtifactError, and FetchError of other machines."""
    if not isinstance(place, Remote):
        return open_file(place, mode)
    if place.address == STANDARD_INPUT:
        from pyc.runtime.sources.sequential import standard_input

        return standard_input()
    scheme = scheme_of(place.address)
    if scheme in OBJECT_STORES:
        from pyc.runtime.sources.object_store import ObjectSource

        return ObjectSource(place.address)
    if scheme == REGISTRY:
        from pyc.runtime.sources.registry import open_registry

        return open_registry(place.address)
    require_fetchable(place, "a path")
    from pyc.runtime.sources.http import open_http

    return open_http(place.address)


def require_fetchable(place: Remote, otherwise: str) -> None:
    """Raise FetchError for a URL of a scheme that nothing is fetched by; `otherwise` is what else a user may give."""
    scheme = scheme_of(place.address)
    if scheme and scheme not in SCHEMES:
        expected = ", ".join(SCHEMES)
        raise FetchError(f"{place}: nothing is fetched by {scheme}, expected one of {expected}, or {otherwise}")


def open_beside(place: Remote, suffix: str) -> Source | None:
    """Return the source of the file at a URL's path with `suffix`, or of that name in the same manifest of a registry;
    None where there is none. Raises as `open_place` does, MissingArtifactError as well.
    """
    if scheme_of(place.address) == REGISTRY:
        from pyc.runtime.sources.registry import open_beside

        return open_beside(place.address, suffix)
    return open_place(Remote(place.address + suffix), "pread")
