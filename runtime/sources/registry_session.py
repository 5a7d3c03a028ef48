"""Requests to an OCI registry, by whoever one is to it.

Who one is: as for URLs (`credentials`), else by `docker login` or `podman login` (`logins`). Where the registry names a
token service, these go there too, over https, or for a registry on this machine to this machine. A header
`Authorization` goes to the host that it is for, also not on with a redirect.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import re
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from pyc.runtime.errors import FetchError
from pyc.runtime.sources import response as answers
from pyc.runtime.sources.address import PORTS, Address, parse_address, redirected
from pyc.runtime.sources.connection import connect, tls_context
from pyc.runtime.sources.credentials import authorization, is_private
from pyc.runtime.sources.http import MOST_REDIRECTS
from pyc.runtime.sources.logins import MOST_BYTES, logged_in
from pyc.runtime.sources.places import scheme_of, shown_url
from pyc.runtime.sources.protocol import PATIENT, RefusedError, Retries
from pyc.runtime.sources.response import TryAgainError
from pyc.runtime.text.printable import printable

logger = logging.getLogger(__name__)

BROKEN = (TryAgainError, OSError, http.client.HTTPException)
"""What may go away by itself."""
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_KEPT_METHOD = frozenset({307, 308})
_name = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:]+\](?::[0-9]{1,5})?)/"
    r"(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*)"
    rf"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?(?:@(?P<digest>{DIGEST.pattern}))?"
)
_Result = TypeVar("_Result")
_challenge_part = re.compile(r'([A-Za-z0-9_-]+)[ \t]*=[ \t]*(?:"([^"\\]*)"|([^\s,"]+))|([A-Za-z0-9_-]+)')


@dataclass(frozen=True, slots=True)
class Reference:
    """What a name in a registry means: `version` is a tag or a digest."""

    base: str
    repository: str
    version: str

    def url(self, kind: str, version: str) -> str:
        """The URL of a manifest or a blob."""
        return f"{self.base}/v2/{self.repository}/{kind}/{version}"


def parse_reference(url: str) -> Reference:
    """Read `oci://host/repository:tag@digest`. Raises FetchError."""
    found = _name.fullmatch(url.partition("://")[2])
    if found is None or (":" in found["repository"]):
        raise FetchError(
            f"{shown_url(url)}: expected oci://host/repository:tag, or @sha256:digest in place of the tag, without a "
            "user (docker login, or PYC_HTTP_TOKEN) and without ?"
        )
    plain = is_private(parse_address(f"https://{found['host']}").host)
    base = f"{'http' if plain else 'https'}://{found['host']}"
    return Reference(base, found["repository"], found["digest"] or found["tag"] or "latest")


@dataclass(frozen=True, slots=True)
class Answer:
    """A response whose body, of at most MOST_BYTES, was read; `address` is who answered at last."""

    status: int
    reason: str
    headers: Mapping[str, str]
    data: bytes
    address: Address

    def check(self) -> None:
        """Return for 200. Raises TryAgainError, FetchError and MissingArtifactError."""
        try:
            answers.check_status(self, self.address, None)
        except RefusedError as error:
            raise RefusedError(
                f"{self.address}: access refused ({self.status}); log in with docker login {self.address.authority}, "
                "or name a user in a netrc file"
            ) from error

    @property
    def complaint(self) -> str:
        """What the registry says is wrong, in a line that may be shown: the status, and the first of its errors."""
        try:
            first = msgspec.json.decode(self.data, type=_Complaints).errors[0]
            said = f": {first.code} {first.message}"
        except (msgspec.DecodeError, UnicodeDecodeError, IndexError, RecursionError):
            said = ""
        return printable(f"{self.status} {self.reason}{said}")[:300].rstrip()

    def getheader(self, name: str, default: str = "") -> str:
        """A header's value."""
        return self.headers.get(name.lower(), default)


class _Complaint(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""


class _Complaints(msgspec.Struct, frozen=True):
    errors: tuple[_Complaint, ...] = ()


@dataclass(frozen=True, slots=True)
class _Login:
    """A header Authorization and the only origin that it is sent to, wherever uploads lie or redirects lead."""

    origin: tuple[str, str, int]
    header: str | None


class RegistrySession:
    """What one asks of a registry; `authorize` gives the header for it, anew each time that it is called."""

    def __init__(self, reference: Reference, patience: Retries = PATIENT) -> None:
        self.reference = reference
        self._patience = patience
        self._registry = parse_address(reference.base + "/")
        self._header: str | None = None
        self._challenge = ""
        self._context: ssl.SSLContext | None = None

    def authorize(self, refused: bool) -> str | None:
        """The header Authorization; a new one where the last was refused."""
        if refused and self._challenge:
            self._header = self._answer_to(self._challenge)
        return self._header

    def document(self, url: str, accept: str) -> bytes:
        """What a GET answers, with patience. Raises FetchError and MissingArtifactError."""
        address = parse_address(url)
        return patiently(address, lambda: self._checked(self.ask("GET", address, {"Accept": accept})), self._patience)

    def ask(
        self,
        method: str,
        address: Address,
        headers: Mapping[str, str],
        body: Callable[[], Iterable[bytes]] = tuple,
        patience: Retries | None = None,
    ) -> Answer:
        """Ask once, whatever the status of the answer, logging in where the registry wants it; `body` is called for
        each time that it is sent. Raises what is in BROKEN, and FetchError."""
        patience = patience or self._patience
        mine = _Login(self._registry.origin, self._header)
        answer = self._exchange(method, address, headers, body, mine, patience)
        challenge = answer.getheader("www-authenticate")
        if answer.status != 401 or not challenge or answer.address.origin != self._registry.origin:
            return answer
        self._challenge = challenge
        header = self._answer_to(challenge)
        if header is None or header == self._header:
            return answer
        self._header = header
        return self._exchange(method, address, headers, body, _Login(self._registry.origin, header), patience)

    def _exchange(
        self,
        method: str,
        address: Address,
        headers: Mapping[str, str],
        body: Callable[[], Iterable[bytes]],
        login: _Login,
        patience: Retries,
    ) -> Answer:
        for _ in range(MOST_REDIRECTS + 1):
            if address.scheme == "https" and self._context is None:
                self._context = tls_context()
            connection = connect(address, self._context if address.scheme == "https" else None, patience)
            try:
                sent = {"Accept-Encoding": "identity", "User-Agent": "pyc", **headers}
                if login.header is not None and address.origin == login.origin:
                    sent["Authorization"] = login.header
                response = connection.ask(address, sent, method, body())
                location = response.getheader("Location")
                follows = answers.REDIRECTS if method in ("GET", "HEAD") else _KEPT_METHOD
                if response.status in follows and location:
                    address = redirected(address, location)
                    continue
                data = response.read(MOST_BYTES + 1)
                if len(data) > MOST_BYTES:
                    raise FetchError(f"{address}: answers more than {MOST_BYTES} bytes, which no manifest has")
                named: dict[str, str] = {}
                for name, value in response.getheaders():  # one that is there twice is a list in two parts
                    before = named.get(name.lower())
                    named[name.lower()] = value if before is None else f"{before}, {value}"
                return Answer(response.status, response.reason, named, data, address)
            finally:
                connection.close()
        raise FetchError(f"{address}: more than {MOST_REDIRECTS} redirects")

    def _checked(self, answer: Answer) -> bytes:
        answer.check()
        return answer.data

    def _answer_to(self, challenge: str) -> str | None:
        """The header that a challenge asks for: one's own for Basic, a token of the service that Bearer names."""
        registry = self._registry
        fields = next((fields for kind, fields in _challenges(challenge) if kind == "bearer"), None)
        if fields is None:
            return self._own(registry)
        named = fields.get("realm", "")
        if scheme_of(named) not in PORTS:
            shown = shown_url(named) if "://" in named else named
            raise FetchError(f"{registry}: its token service is {shown[:200]!a}, expected https://host/path")
        realm = parse_address(named)
        if realm.scheme != "https" and not (is_private(realm.host) and is_private(registry.host)):
            raise FetchError(f"{registry}: its token service {realm} is not encrypted")
        query = {name: fields[name] for name in ("service", "scope") if fields.get(name)}
        separator = "&" if "?" in realm.target else "?"
        service = parse_address(
            f"{realm.scheme}://{realm.authority}{realm.target}{separator}{urllib.parse.urlencode(query)}"
        )
        headers = {"Accept": "application/json"}
        mine = _Login(service.origin, self._own(service))
        data = patiently(
            service,
            lambda: self._checked(self._exchange("GET", service, headers, tuple, mine, self._patience)),
            self._patience,
        )
        try:
            found = json.loads(data)
            token = found.get("token") or found.get("access_token")
        except (ValueError, AttributeError, RecursionError):
            token = None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise FetchError(f"{realm}: answers no token")
        return f"Bearer {token}"

    def _own(self, address: Address) -> str | None:
        """Who one is to the registry: for itself, and for the token service that it names."""
        return authorization(self._registry) or logged_in(self._registry) or authorization(address)


def patiently(
    address: Address,
    attempt: Callable[[], _Result],
    patience: Retries,
    moved_bytes: Callable[[], int] = lambda: 0,
    question: str = "is the server there, and the network?",
) -> _Result:
    """What `attempt` returns, tried as often as `patience` says, with waits between; `moved_bytes` is how many have
    been moved so far. Raises FetchError for `address` after that, with a `question` to begin with."""
    failures, before = 0, moved_bytes()
    while True:
        began_s = time.monotonic()
        try:
            return attempt()
        except BROKEN as error:
            failures = 1 if moved_bytes() - before >= patience.progress_bytes else failures + 1
            before = moved_bytes()
            if failures >= patience.tries:
                answers.fail(address, error, failures, question)
            asked_s = error.after_s if isinstance(error, TryAgainError) else 0.0
            level = patience.level(max(time.monotonic() - began_s, asked_s))
            logger.log(level, "%s: %s; trying again", address, answers.reason_of(error))
            time.sleep(max(patience.wait_s(failures, random.random()), asked_s))


def _challenges(header: str) -> list[tuple[str, dict[str, str]]]:
    """The challenges of a header WWW-Authenticate: the scheme of each, in lower case, and its parameters."""
    found: list[tuple[str, dict[str, str]]] = []
    for name, quoted, plain, scheme in _challenge_part.findall(header):
        if scheme:
            found.append((scheme.lower(), {}))
        elif found:
            found[-1][1].setdefault(name.lower(), quoted or plain)
    return found
