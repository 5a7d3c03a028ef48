"""Who one is to an OCI registry by `docker login` or `podman login`: their files, and the credential helpers in them.

`$REGISTRY_AUTH_FILE`, else `$DOCKER_CONFIG/config.json` or `~/.docker/config.json`. A helper is a program
`docker-credential-NAME` in the PATH (Docker's protocol of credential helpers): it is asked with `get` and the
registry's host, and answers a user and a secret as JSON. `credHelpers` names one for a host, `credsStore` one for all
others; where it has nothing for a host, the entry in `auths` counts.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import shutil
from pathlib import Path

import msgspec

from pyc.runtime.errors import FetchError
from pyc.runtime.host.asked_program import NoAnswerError, ask
from pyc.runtime.host.home import user_home
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.sources.address import Address
from pyc.runtime.sources.credentials import basic
from pyc.runtime.text.printable import printable

logger = logging.getLogger(__name__)

MOST_BYTES = 4 << 20
HELPER_S = 60.0
"""How long a helper may take: those of clouds ask a server, those of desktops may ask the user."""
MOST_SECRET_BYTES = 1 << 16
_NOT_FOUND = "credentials not found in native keychain"
_helper_name = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def logged_in(address: Address) -> str | None:
    """The header Authorization for a registry by what a login wrote. Raises FetchError for a file that is no JSON.

    A helper that is not there or fails is told, and costs no more: many registries let anybody read."""
    for path in _files():
        try:
            if not path.is_file():
                continue
            logins = json.loads(path.read_bytes()[:MOST_BYTES])
            helper = (logins.get("credHelpers") or {}).get(address.authority) or logins.get("credsStore")
            text = ((logins.get("auths") or {}).get(address.authority) or {}).get("auth") or ""
            is_login = bool(text) and ":" in base64.b64decode(text, validate=True).decode()
        except unless_signalled(OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            reason = type(error).__name__
            raise FetchError(f"{path}: is no file of logins ({reason}); log in again, or move it") from error
        try:
            if helper and (header := _from_helper(path, helper, address)):
                return header
        except _HelperError as error:
            logger.warning("%s; asking %s without it", error, address.authority)
        if is_login:
            return f"Basic {text}"
    return None


def _files() -> list[Path]:
    home = user_home()
    named = os.environ.get("REGISTRY_AUTH_FILE")
    folder = os.environ.get("DOCKER_CONFIG")
    places = [Path(named)] if named else []
    return places + ([Path(folder) / "config.json"] if folder else [home / ".docker" / "config.json"] if home else [])


class _HelperError(Exception):
    """What is wrong with a helper."""


class _Credentials(msgspec.Struct, frozen=True, rename="pascal"):
    username: str
    secret: str


def _from_helper(path: Path, name: object, address: Address) -> str | None:
    """What a helper answers; None where it knows no login for this registry."""
    if not isinstance(name, str) or not _helper_name.fullmatch(name):
        shown = f"{str(name)[:100]!a}"
        raise _HelperError(f"{path}: names the credential helper {shown}, expected a name such as ecr-login")
    program = f"docker-credential-{name}"
    where = f"the credential helper {program}, which {path} names,"
    found = shutil.which(program)
    if found is None:
        raise _HelperError(f"{where} is no program in PATH")
    try:
        ran = ask([found, "get"], address.authority.encode(), HELPER_S, MOST_SECRET_BYTES)
    except NoAnswerError as error:
        raise _HelperError(f"{where} {error}") from error
    if ran.code:
        said = printable(ran.printed.decode(errors="replace").strip().partition("\n")[0] or ran.said)[:200]
        if _NOT_FOUND in said:
            return None
        raise _HelperError(f"{where} ended with exit code {ran.code}{f': {said}' if said else ''}")
    try:
        answer = msgspec.json.decode(ran.printed, type=_Credentials)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _HelperError(f"{where} answers no JSON with Username and Secret") from error
    if not answer.username and not answer.secret:
        return None
    if answer.username == "<token>":
        raise _HelperError(
            f"{where} has an identity token, which pyc does not exchange; log in with a user and an access token"
        )
    return basic(answer.username, answer.secret)
