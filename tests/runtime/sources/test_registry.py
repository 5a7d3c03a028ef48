"""runtime/sources/registry.py: artifacts in OCI registries, and who is told one's password."""

import base64
import contextlib
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pyc.runtime.errors import ArtifactError, FetchError, MissingArtifactError
from pyc.runtime.sources.places import Remote, open_place
from pyc.runtime.sources.registry import Reference, parse_reference

DATA = bytes(range(256)) * 4000
ACCEPTED = "application/vnd.oci.image.manifest.v1+json"


def sha256(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def manifest(*names, digest=None):
    layers = [
        {"digest": digest or sha256(DATA), "size": len(DATA), "annotations": {"org.cncf.model.filepath": name}}
        for name in names
    ]
    return json.dumps({"schemaVersion": 2, "layers": layers}).encode()


@dataclass
class Registry:
    """`asked` are paths and their Authorization; tokens expire after so many requests for blobs."""

    host: str = ""
    documents: dict[str, bytes] = field(default_factory=dict)
    token: str = ""
    user: str = ""
    realm: str = ""
    blobs_per_token: int = 0
    tokens: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry

    def log_message(self, format, *arguments):  # noqa: A002 -- the name of the base class
        pass

    def do_GET(self):
        state, path = self.registry, self.path
        given = self.headers.get("Authorization", "")
        state.asked.append((path, given))
        if path.startswith("/token"):
            if state.user and given != "Basic " + base64.b64encode(state.user.encode()).decode():
                return self.answer(401, b"")
            state.tokens += 1
            state.token = f"T{state.tokens}"
            return self.answer(200, json.dumps({"token": state.token}).encode())
        if state.realm and (not state.token or given != f"Bearer {state.token}"):
            return self.answer(401, b"", {"WWW-Authenticate": state.realm})
        blobs = sum("/blobs/" in asked for asked, _ in state.asked)
        if "/blobs/" in path and state.blobs_per_token and blobs % state.blobs_per_token == 0:
            state.token = ""
        data = state.documents.get(path)
        if data is None:
            return self.answer(404, b"{}")
        wanted = self.headers.get("Range", "")
        if not wanted:
            return self.answer(200, data)
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        last = min(last, len(data) - 1)
        return self.answer(206, data[first : last + 1], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def answer(self, status, data, headers=None):
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(data)


@pytest.fixture
def registry(monkeypatch, tmp_path):
    for name in ("PYC_HTTP_TOKEN", "NETRC", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    state = Registry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"registry": state}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.host = f"127.0.0.1:{server.server_address[1]}"
    state.documents = {
        "/v2/models/demo/manifests/v1": manifest("README.md", "model.pyca"),
        f"/v2/models/demo/blobs/{sha256(DATA)}": DATA,
    }
    yield state
    server.shutdown()
    server.server_close()


def read(registry, name="models/demo:v1"):
    source = open_place(Remote(f"oci://{registry.host}/{name}"), "mmap")
    try:
        target = memoryview(bytearray(1000))
        source.read_into(700_000, target)
        assert bytes(target) == DATA[700_000:701_000]
        assert source.size_bytes == len(DATA)
    finally:
        source.close()


def test_names():
    digest = sha256(b"")
    for text, expected in {
        "oci://a.example/m": Reference("https://a.example", "m", "latest"),
        "oci://a.example:5000/x/y_z/m:v1.2": Reference("https://a.example:5000", "x/y_z/m", "v1.2"),
        f"oci://a.example/m:v1@{digest}": Reference("https://a.example", "m", digest),
        "oci://localhost:5000/m": Reference("http://localhost:5000", "m", "latest"),
        "oci://127.0.0.1/m": Reference("http://127.0.0.1", "m", "latest"),
        "oci://[::1]:5000/m": Reference("http://[::1]:5000", "m", "latest"),
    }.items():
        assert parse_reference(text) == expected
    for text in ("oci://a", "oci:///m", "oci://a/M", "oci://a/m:", "oci://u:p@a/m", "oci://a/m@sha256:5", "oci://a/../m"):
        with pytest.raises(FetchError, match="expected oci://host/repository:tag") as caught:
            parse_reference(text)
        assert ":p@" not in str(caught.value)


def test_a_layer_is_read_by_ranges(registry):
    read(registry)
    paths = [path for path, _ in registry.asked]
    assert paths[0] == "/v2/models/demo/manifests/v1" and all("/blobs/" in path for path in paths[1:])


def test_an_index_leads_to_a_manifest_by_its_digest(registry):
    text = registry.documents.pop("/v2/models/demo/manifests/v1")
    registry.documents[f"/v2/models/demo/manifests/{sha256(text)}"] = text
    index = json.dumps({"manifests": [{"digest": sha256(text), "size": len(text)}]}).encode()
    registry.documents["/v2/models/demo/manifests/latest"] = index
    read(registry, "models/demo")
    read(registry, f"models/demo@{sha256(text)}")
    registry.documents[f"/v2/models/demo/manifests/{sha256(text)}"] = text + b" "
    with pytest.raises(ArtifactError, match="its SHA-256 is not the one"):
        read(registry, "models/demo")


def test_a_token_is_fetched_and_renewed(registry):
    registry.realm = f'Bearer realm="http://{registry.host}/token",service="s",scope="repository:models/demo:pull"'
    registry.blobs_per_token = 1
    read(registry)
    read(registry)
    assert registry.tokens >= 3
    assert "/token?service=s&scope=repository%3Amodels%2Fdemo%3Apull" in [path for path, _ in registry.asked]


def test_logins(registry, tmp_path, monkeypatch):
    registry.realm = f'Bearer realm="http://{registry.host}/token"'
    registry.user = "ada:secret"
    with pytest.raises(FetchError, match=r"access refused \(401\)"):
        read(registry)
    (tmp_path / ".docker").mkdir()
    login = {"auths": {registry.host: {"auth": base64.b64encode(b"ada:secret").decode()}}}
    (tmp_path / ".docker" / "config.json").write_text(json.dumps(login))
    read(registry)
    blobs = [given for path, given in registry.asked if "/blobs/" in path]
    assert blobs and all(given.startswith("Bearer T") for given in blobs)  # never the password
    (tmp_path / ".docker" / "config.json").write_text("[]")
    with pytest.raises(FetchError, match="is no file of logins"):
        read(registry)


def test_basic(registry, monkeypatch):
    monkeypatch.setenv("PYC_HTTP_TOKEN", f"{registry.host}=T1")
    registry.realm, registry.token = 'Basic realm="x"', "T1"
    read(registry)


@pytest.mark.parametrize(
    ("realm", "message"),
    [
        ('Bearer realm="http://registry.example/token"', "its token service .* is not encrypted"),
        ("Bearer", "expected https://host/path"),
        ('Bearer realm="ftp://x/"', "expected https://host/path"),
        ("Nonsense", r"access refused \(401\)"),
    ],
)
def test_a_challenge_that_is_no_good(realm, message, registry):
    registry.realm = realm
    with pytest.raises(FetchError, match=message):
        read(registry)


@pytest.mark.parametrize(
    ("document", "error", "message"),
    [
        (manifest("README.md"), ArtifactError, "has 0 files .*pyca, expected one"),
        (manifest("a.pyca", "b.pyca"), ArtifactError, "has 2 files"),
        (manifest("a.pyca", digest="sha256:../../x"), ArtifactError, "expected sha256"),
        (b"no JSON", ArtifactError, "no manifest of OCI"),
        (b'{"layers": [{"digest": 5}]}', ArtifactError, "no manifest of OCI"),
        (b"[" * 100_000, ArtifactError, "no manifest of OCI"),
        (b" " * (5 << 20), FetchError, "answers more than 4194304 bytes"),
        (None, MissingArtifactError, "no such file"),
    ],
)
def test_a_manifest_that_is_no_good(document, error, message, registry):
    del registry.documents["/v2/models/demo/manifests/v1"]
    if document is not None:
        registry.documents["/v2/models/demo/manifests/v1"] = document
    with pytest.raises(error, match=message):
        read(registry)
