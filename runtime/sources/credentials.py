"""Who one is to a server: the user in a URL, $PYC_HTTP_TOKEN, or a netrc file. For one host, never for another.

    PYC_HTTP_TOKEN="models.example.com=TOKEN other.example.com:8443=TOKEN [2001:db8::5]:8443=TOKEN"

A token is sent as `Authorization: Bearer TOKEN` over https, and over http to this machine alone.
"""

from __future__ import annotations

import base64
import ipaddress
import netrc
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pyc.runtime.errors import FetchError
from pyc.runtime.host.home import user_home
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.sources.address import PORTS, Address

VARIABLE = "PYC_HTTP_TOKEN"


def authorization(address: Address) -> str | None:
    """The value of the header Authorization for this address, if there are credentials for it. Raises FetchError."""
    if address.user or address.password:
        return basic(address.user, address.password)
    if not (address.scheme == "https" or is_private(address.host)):
        return None
    if token := _token(address):
        return f"Bearer {token}"
    return _from_netrc(address.host)


def _token(address: Address) -> str | None:
    for entry in os.environ.get(VARIABLE, "").split():
        host, equals, token = entry.partition("=")
        if not equals or not token or not token.isascii() or not token.isprintable():
            raise FetchError(f"{VARIABLE}: expected HOST=TOKEN, several with spaces between them")
        if any(_is_host(name, address) and port == address.port for name, port in _named(host, PORTS[address.scheme])):
            return token
    return None


def _named(text: str, usual_port: int) -> Iterator[tuple[str, int]]:
    """Yield the host and the port that a text names: two where an IPv6 address without brackets is read both ways."""
    name, _, port = text.rpartition(":") if re.search(r":[0-9]{1,5}\Z", text) else (text, "", "")
    yield name, int(port or usual_port)
    if name.count(":") and not text.startswith("["):
        yield text, usual_port


def _is_host(name: str, address: Address) -> bool:
    """Whether a name is that of the host, an IPv6 address in brackets or without, and written out or not."""
    name = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(address.host)
    except ValueError:
        return name.lower() == address.host


def _from_netrc(host: str) -> str | None:
    home = user_home()
    named = os.environ.get("NETRC")
    path = Path(named) if named else home / ".netrc" if home else None
    if path is None:
        return None
    try:
        if not path.is_file():
            return None
        entries = netrc.netrc(str(path)).hosts
    except netrc.NetrcParseError as error:  # whose message may have a password in it
        raise FetchError(
            f"{path}: line {error.lineno} is not as a netrc file has it; mend it, or set NETRC to another file"
        ) from error
    except unless_signalled(OSError, UnicodeDecodeError) as error:
        raise FetchError(f"{path}: cannot be read; mend it, or set NETRC to another file") from error
    name = next((each for each in (host, f"[{host}]") if each in entries), None)  # never `default`, of any host
    if name is None:
        return None
    user, _, password = entries[name]
    return basic(user, password or "")


def basic(user: str, password: str) -> str:
    """The header for a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def is_private(host: str) -> bool:
    """Whether a host is this machine, so that what is said to it is heard by nobody else."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
