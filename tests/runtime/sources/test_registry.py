"""runtime/sources/registry.py: artifacts in OCI registries, and who is told one's password."""

import base64
import hashlib
import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest
from registry_double import serving, sha256

from pyc.runtime.errors import ArtifactError, FetchError, MissingArtifactError
from pyc.runtime.sources.places import Remote, open_place
from pyc.runtime.sources.registry_session import Reference, parse_reference

DATA = bytes(range(256)) * 4000


def manifest(*names, digest=None):
    layers = [
        {"digest": digest or sha256(DATA), "size": len(DATA), "annotations": {"org.cncf.model.filepath": name}}
        for name in names
    ]
    return json.dumps({"schemaVersion": 2, "layers": layers}).encode()


@pytest.fixture(autouse=True)
def waits_s(monkeypatch):
    """How long each pause between two tries is, in seconds; none is waited for."""
    waits = []
    clock = SimpleNamespace(sleep=waits.append, monotonic=time.monotonic)
    monkeypatch.setattr("pyc.runtime.sources.registry_session.time", clock)
    return waits


@pytest.fixture
def registry(monkeypatch, tmp_path):
    for name in ("PYC_HTTP_TOKEN", "NETRC", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving() as state:
        state.documents = {
            "/v2/models/demo/manifests/v1": manifest("README.md", "model.pyca"),
            f"/v2/models/demo/blobs/{sha256(DATA)}": DATA,
        }
        yield state


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


def test_another_file_than_the_manifest_names_is_refused(registry):
    path = f"/v2/models/demo/blobs/{sha256(DATA)}"
    registry.documents[path] = DATA[:-1]
    with pytest.raises(ArtifactError, match=r"has 1023999 bytes, its manifest says 1024000; push it again"):
        read(registry)
    text = json.loads(manifest("model.pyca"))
    text["layers"][0]["annotations"]["pyc.header.sha256"] = DATA[32:64].hex()
    registry.documents["/v2/models/demo/manifests/v1"] = json.dumps(text).encode()
    registry.documents[path] = DATA
    read(registry)
    registry.documents[path] = DATA[:40] + b"\0" + DATA[41:]
    with pytest.raises(ArtifactError, match="another artifact than the manifest names"):
        read(registry)


def test_a_layer_is_read_by_ranges(registry):
    read(registry)
    paths = [path for _, path, _ in registry.asked]
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


@pytest.mark.parametrize("kind", ["sha512", "tag", "capitals", "way"])
def test_an_index_that_names_a_manifest_by_what_is_not_compared_is_refused(kind, registry):
    """What a digest names is what runs, and such a manifest might be another one tomorrow."""
    text = registry.documents["/v2/models/demo/manifests/v1"]
    named = {
        "sha512": f"sha512:{hashlib.sha512(text).hexdigest()}",
        "tag": "v1",
        "capitals": sha256(text).upper(),
        "way": "../../demo/manifests/v1",
    }[kind]
    registry.documents[f"/v2/models/demo/manifests/{named}"] = text
    index = json.dumps({"manifests": [{"digest": named, "size": len(text)}]}).encode()
    registry.documents[f"/v2/models/demo/manifests/{sha256(index)}"] = index
    with pytest.raises(ArtifactError, match=r"the manifest that its index names is .*, expected sha256:"):
        read(registry, f"models/demo@{sha256(index)}")


def test_a_token_is_fetched_and_renewed(registry):
    registry.realm = f'Bearer realm="http://{registry.host}/token",service="s",scope="repository:models/demo:pull"'
    registry.blobs_per_token = 1
    read(registry)
    read(registry)
    assert registry.tokens >= 3
    assert "/token?service=s&scope=repository%3Amodels%2Fdemo%3Apull" in [path for _, path, _ in registry.asked]


def test_logins(registry, tmp_path, monkeypatch):
    registry.realm = f'Bearer realm="http://{registry.host}/token"'
    registry.user = "ada:secret"
    with pytest.raises(FetchError, match=r"access refused \(401\); log in with docker login "):
        read(registry)
    (tmp_path / ".docker").mkdir()
    login = {"auths": {registry.host: {"auth": base64.b64encode(b"ada:secret").decode()}}}
    (tmp_path / ".docker" / "config.json").write_text(json.dumps(login))
    read(registry)
    blobs = [given for _, path, given in registry.asked if "/blobs/" in path]
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


@pytest.mark.parametrize("retry_after", ["", "7", "100000", "date", "soon", "-1"])
def test_a_busy_registry_is_waited_for(retry_after, registry, waits_s):
    """5 tries, each wait longer than the last, and as long as the registry asks, up to 30 s."""
    if retry_after == "date":
        retry_after = format_datetime(datetime.now(UTC) + timedelta(seconds=8, microseconds=999_000), usegmt=True)
    registry.retry_after = retry_after
    registry.plan = lambda number, method, path: "busy"
    with pytest.raises(FetchError, match=r"answers 503 .* gave up after 5 tries"):
        read(registry)
    assert len(registry.asked) == 5
    asked_s = {"7": 7, "100000": 30}.get(retry_after, 7 if "GMT" in retry_after else 0)
    for failures, wait_s in enumerate(waits_s, 1):
        own_s = 0.25 * 2 ** (failures - 1)
        assert max(asked_s, own_s / 2) <= wait_s <= max(asked_s + 2 * ("GMT" in retry_after), own_s)
    registry.asked.clear()
    registry.plan = lambda number, method, path: "busy" if number < 4 else ""
    read(registry)


def test_several_challenges(registry, tmp_path):
    """In one header, or in one each: the token service is the Bearer's, whatever stands behind it."""
    registry.user = "ada:secret"
    (tmp_path / ".docker").mkdir()
    login = {"auths": {registry.host: {"auth": base64.b64encode(b"ada:secret").decode()}}}
    (tmp_path / ".docker" / "config.json").write_text(json.dumps(login))
    bearer = f'Bearer realm="http://{registry.host}/token",service="a, Basic realm=b"'
    for realm in (f'{bearer}, Basic realm="registry"', f'Basic realm="registry", {bearer}', [bearer, "Basic realm=x"]):
        registry.realm, registry.token = realm, ""
        read(registry)
        assert "/token?service=a%2C+Basic+realm%3Db" in [path for _, path, _ in registry.asked]
        registry.asked.clear()


def test_a_registry_that_gives_no_parts(registry):
    registry.plan = lambda number, method, path: "whole" if "/blobs/" in path else ""
    with pytest.raises(FetchError, match="gives no parts of a file"):
        read(registry)


def test_a_manifest_of_another_tool_that_is_asked_for_by_its_digest(registry):
    """It does not say which header the artifact has, so that all bytes are hashed before one is believed."""
    text = registry.documents.pop("/v2/models/demo/manifests/v1")
    registry.documents[f"/v2/models/demo/manifests/{sha256(text)}"] = text
    read(registry, f"models/demo@{sha256(text)}")
    registry.documents[f"/v2/models/demo/blobs/{sha256(DATA)}"] = DATA[:-1] + b"?"
    with pytest.raises(ArtifactError, match="another file than the manifest names"):
        read(registry, f"models/demo@{sha256(text)}")
