"""URLs: what of one is asked of whom, and what of it may be shown.

A URL may hold a password before the host and a signature behind the `?`; neither is ever in a message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urljoin, urlsplit

from pyc.runtime.errors import FetchError
from pyc.runtime.sources.places import shown_url
from pyc.runtime.text.printable import printable

PORTS = {"http": 80, "https": 443}
_unsafe = re.compile(r"[\x00-\x20\x7f-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Address:
    """An http(s) URL in parts; `target` is what a request line names. `user` and `password` may be ""."""

    scheme: str
    host: str
    port: int
    target: str
    user: str = ""
    password: str = ""

    @property
    def origin(self) -> tuple[str, str, int]:
        """Who is asked: credentials go to no other."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if PORTS[self.scheme] == self.port else f"{host}:{self.port}"

    def __str__(self) -> str:
        """As it may be shown: without credentials and without what follows `?`."""
        return printable(f"{self.scheme}://{self.authority}{self.target.partition('?')[0]}")


def parse_address(url: str) -> Address:
    """Return the parts of an http(s) URL. Raises FetchError."""
    if len(url) > 1 << 16:
        raise FetchError(f"a URL of {len(url)} characters: expected at most {1 << 16}")
    found = _unsafe.search(url)
    if found:
        raise FetchError(f"{shown_url(url)}: has the character {found[0]!a}; a URL writes it as %xx")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise FetchError(f"{shown_url(url)}: not a valid URL; expected https://host:port/path") from error
    scheme = parts.scheme.lower()
    if scheme not in PORTS or not host:
        raise FetchError(f"{shown_url(url)}: expected https://host/path or http://host/path")
    if port == 0:
        raise FetchError(f"{shown_url(url)}: port 0 is none that a server has; leave it out for {PORTS[scheme]}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(
        scheme, host, port or PORTS[scheme], target, unquote(parts.username or ""), unquote(parts.password or "")
    )


def redirected(current: Address, location: str) -> Address:
    """Return where a redirect leads. Raises FetchError; one from https to http is never followed."""
    base = f"{current.scheme}://{current.authority}{current.target}"
    try:
        address = parse_address(urljoin(base, location))
    except (FetchError, ValueError) as error:
        raise FetchError(f"{current}: redirects to {shown_url(location)[:200]!r}, which is no http(s) URL") from error
    if current.scheme == "https" and address.scheme == "http":
        raise FetchError(f"{current}: redirects to {address}, which is not encrypted; give that URL if you want it")
    return Address(address.scheme, address.host, address.port, address.target)
