"""An artifact in an OCI registry: `oci://host/repository:tag`, or `@sha256:digest` in the place of the tag.

The manifest says which layer is the artifact; that is a file behind a web server, read by ranges as any other, so that
a machine takes what it needs of it. Signatures and digests are the artifact's own: a registry is not believed.

Who one is: as for URLs (`credentials`), else what `docker login` or `podman login` wrote. Where the registry sends one
to its token service, these go there too, over https, or for a registry on this machine to this machine.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import ssl
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pyc.runtime.errors import ArtifactError, FetchError
from pyc.runtime.host.home import user_home
from pyc.runtime.sources import response as answers
from pyc.runtime.sources.address import Address, parse_address, redirected
from pyc.runtime.sources.connection import connect, tls_context
from pyc.runtime.sources.credentials import authorization, is_private
from pyc.runtime.sources.http import MOST_REDIRECTS, HttpSource
from pyc.runtime.sources.places import shown_url
from pyc.runtime.sources.protocol import PATIENT
from pyc.runtime.sources.response import TryAgainError

MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json")
FILE_PATH = "org.cncf.model.filepath"
TITLE = "org.opencontainers.image.title"
SUFFIX = ".pyca"
MOST_BYTES = 4 << 20
TRIES = 3
_name = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:]+\](?::[0-9]{1,5})?)/"
    r"(?P<repository>[a-z0-9]+(?:(?:[._]|__|-+|/)[a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_challenge = re.compile(r'([a-z_]+)="([^"\\]*)"')


class _Descriptor(msgspec.Struct, frozen=True):
    digest: str
    size: int
    media_type: str = msgspec.field(name="mediaType", default="")
    annotations: dict[str, str] = {}


class _Manifest(msgspec.Struct, frozen=True):
    layers: tuple[_Descriptor, ...] = ()
    manifests: tuple[_Descriptor, ...] = ()


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
        raise FetchError(f"{shown_url(url)}: expected oci://host/repository:tag, or @sha256:digest in place of the tag")
    plain = is_private(parse_address(f"https://{found['host']}").host)
    base = f"{'http' if plain else 'https'}://{found['host']}"
    return Reference(base, found["repository"], found["digest"] or found["tag"] or "latest")


def open_registry(url: str) -> HttpSource:
    """Return the artifact that a name in a registry means, as a source. Raises FetchError, MissingArtifactError for a
    name that the registry lacks, and ArtifactError for a manifest that holds no artifact."""
    reference = parse_reference(url)
    session = _Session(reference)
    layer = session.artifact()
    return HttpSource(reference.url("blobs", layer.digest), PATIENT, authorize=session.authorize)


class _Session:
    """What one asks of a registry; `authorize` gives the header for it, anew each time that it is called."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._header: str | None = None
        self._challenge = ""
        self._context: ssl.SSLContext | None = None

    def authorize(self, refused: bool) -> str | None:
        """The header Authorization; a new one where the last was refused."""
        if refused and self._challenge:
            self._header = self._answer_to(self._challenge)
        return self._header

    def artifact(self) -> _Descriptor:
        """The layer that is an artifact. Raises FetchError, MissingArtifactError and ArtifactError."""
        where = self._reference.url("manifests", self._reference.version)
        manifest = self._manifest(self._reference.version)
        if not manifest.layers and manifest.manifests:
            manifest = self._manifest(manifest.manifests[0].digest)
        found = [layer for layer in manifest.layers if _path(layer).endswith(SUFFIX)]
        if len(found) != 1:
            raise ArtifactError(
                f"{where}: its manifest has {len(found)} files *{SUFFIX}, expected one, as `pyc bundle --format oci` "
                "makes it"
            )
        if not re.fullmatch(r"sha256:[0-9a-f]{64}", found[0].digest):
            raise ArtifactError(f"{where}: the digest of {SUFFIX} is {found[0].digest[:80]!a}, expected sha256:...")
        return found[0]

    def _manifest(self, version: str) -> _Manifest:
        url = self._reference.url("manifests", version)
        data = self._document(url, ", ".join(MANIFEST_TYPES), can_log_in=True)
        if version.startswith("sha256:") and hashlib.sha256(data).hexdigest() != version[7:]:
            raise ArtifactError(f"{url}: its SHA-256 is not the one it was asked for by")
        try:
            return msgspec.json.decode(data, type=_Manifest)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ArtifactError(f"{url}: no manifest of OCI: {str(error)[:200]}") from error

    def _document(self, url: str, accept: str, *, can_log_in: bool) -> bytes:
        """What a GET answers, with patience. Raises FetchError and MissingArtifactError."""
        address = parse_address(url)
        for attempt in range(1, TRIES + 1):
            try:
                return self._get(address, accept, can_log_in=can_log_in)
            except (TryAgainError, OSError, http.client.HTTPException) as error:
                if attempt == TRIES:
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    answers.fail(address, reason[:200], attempt)
        raise AssertionError

    def _get(self, address: Address, accept: str, *, can_log_in: bool) -> bytes:
        origin = address.origin
        for _ in range(MOST_REDIRECTS + 1):
            if address.scheme == "https" and self._context is None:
                self._context = tls_context()
            connection = connect(address, self._context if address.scheme == "https" else None, PATIENT)
            try:
                headers = {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": "pyc"}
                header = self._header if can_log_in else self._own(address)
                if header is not None and address.origin == origin:
                    headers["Authorization"] = header
                response = connection.ask(address, headers)
                location = response.getheader("Location")
                if response.status in answers.REDIRECTS and location:
                    address = redirected(address, location)
                    continue
                if response.status == 401 and can_log_in:
                    challenge = response.getheader("WWW-Authenticate", "")
                    if challenge and challenge != self._challenge:
                        self._challenge = challenge
                        self._header = self._answer_to(challenge)
                        return self._get(address, accept, can_log_in=True)
                answers.check_status(response, address, None)
                data = response.read(MOST_BYTES + 1)
                if len(data) > MOST_BYTES:
                    raise FetchError(f"{address}: answers more than {MOST_BYTES} bytes, which no manifest has")
                return data
            finally:
                connection.close()
        raise FetchError(f"{address}: more than {MOST_REDIRECTS} redirects")

    def _answer_to(self, challenge: str) -> str | None:
        """The header that a challenge asks for: one's own for Basic, a token of the service that Bearer names."""
        kind, _, rest = challenge.partition(" ")
        registry = parse_address(self._reference.base + "/")
        if kind.lower() != "bearer":
            return self._own(registry)
        fields = dict(_challenge.findall(rest))
        realm = parse_address(fields.get("realm", ""))
        if realm.scheme != "https" and not (is_private(realm.host) and is_private(registry.host)):
            raise FetchError(f"{registry}: its token service {realm} is not encrypted")
        query = {name: fields[name] for name in ("service", "scope") if fields.get(name)}
        url = f"{realm.scheme}://{realm.authority}{realm.target}"
        separator = "&" if "?" in realm.target else "?"
        data = self._document(url + separator + urllib.parse.urlencode(query), "application/json", can_log_in=False)
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
        registry = parse_address(self._reference.base + "/")
        return authorization(registry) or _logged_in(registry) or authorization(address)


def _path(layer: _Descriptor) -> str:
    return layer.annotations.get(FILE_PATH) or layer.annotations.get(TITLE) or ""


def _logged_in(address: Address) -> str | None:
    """What a login wrote for this registry: $REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json, ~/.docker/config.json.

    Raises FetchError for a file that is no JSON.
    """
    home = user_home()
    named = os.environ.get("REGISTRY_AUTH_FILE")
    folder = os.environ.get("DOCKER_CONFIG")
    places = [Path(named)] if named else []
    places += [Path(folder) / "config.json"] if folder else [home / ".docker" / "config.json"] if home else []
    for path in places:
        if not path.is_file():
            continue
        try:
            entry = json.loads(path.read_bytes()[:MOST_BYTES]).get("auths", {}).get(address.authority, {})
            text = entry.get("auth") or ""
            if text and ":" in base64.b64decode(text, validate=True).decode():
                return f"Basic {text}"
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            reason = type(error).__name__
            raise FetchError(f"{path}: is no file of logins ({reason}); log in again, or move it") from error
    return None

