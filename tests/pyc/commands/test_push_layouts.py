"""`pyc push` of an OCI image layout: what is an artifact in it is judged as a file is, before anything is sent."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from registry_double import Registry, serving
from remote_artifacts import QUICK

from pyc.passes.bundle import push as pushing
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.artifact.trust.signature_file import add_signature


@pytest.fixture
def double(monkeypatch, tmp_path):
    """A registry that asks for nobody's name."""
    for name in ("PYC_HTTP_TOKEN", "NETRC", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYC_CHUNK_CACHE", "off")
    monkeypatch.setattr(pushing, "PATIENT", QUICK)
    with serving() as found:
        yield found


def addressed(found: Registry) -> str:
    return f"oci://{found.host}/models/demo:v1"


@pytest.fixture
def layout(pyc, make_artifact, tmp_path):
    """A bundle of a signed artifact as an OCI image layout."""
    assert pyc("bundle", make_artifact(), "-o", tmp_path / "layout", "--format", "oci", "--no-wheels")[0] == 0
    return tmp_path / "layout"


def layers_of(layout: Path) -> dict[str, str]:
    """The digests of the layers, by their names."""
    index = json.loads((layout / "index.json").read_text())
    manifest = layout / "blobs" / "sha256" / index["manifests"][0]["digest"].partition(":")[2]
    layers = json.loads(manifest.read_text())["layers"]
    return {each["annotations"]["org.cncf.model.filepath"]: each["digest"].partition(":")[2] for each in layers}


def write_layout_of(folder: Path, files: dict[str, bytes]) -> Path:
    """Write a layout as another tool does, with these files as its layers."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data), "mediaType": "application/octet-stream"}

    layers = [{**put(data), "annotations": {"org.opencontainers.image.title": name}} for name, data in files.items()]
    manifest = put(json.dumps({"schemaVersion": 2, "config": put(b"{}"), "layers": layers}).encode())
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    return folder


def test_the_artifact_of_a_layout_is_judged_as_a_file_is(pyc, layout, double, tmp_path, monkeypatch):
    other = pyc("keygen", "--name", "other")[1].strip()
    code, out, err = pyc("push", layout, addressed(double), "--trust", other)
    assert (code, out) == (12, "") and f"{layout}/model.pyca: signed by key" in err and not double.asked
    digest = json.loads(pyc("verify", tmp_path / "model.pyca", "--json")[1])["digest"]
    assert pyc("trust", "revoke", digest)[0] == 0
    code, out, err = pyc("push", layout, addressed(double))
    assert (code, out) == (12, "") and "was revoked" in err and not double.asked
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "elsewhere"))
    assert pyc("push", layout, addressed(double))[0] == 12
    assert not double.asked
    code, out, err = pyc("push", layout, addressed(double), "--allow-unsigned")
    assert (code, err) == (0, "") and "signed by key" in out and "trusted" not in out


def test_rules_know_the_artifact_of_a_layout_by_its_name_in_there(pyc, make_artifact, double, tmp_path, key_home):
    """And its further signatures are those of the layer beside it."""
    artifact = make_artifact()
    with open_artifact(artifact) as opened:
        add_signature(artifact, signing_key("qa").sign(opened.prelude.pack()))
    files = {"prod-7.pyca": artifact.read_bytes(), "prod-7.pyca.sig": Path(f"{artifact}.sig").read_bytes()}
    whole = write_layout_of(tmp_path / "whole", files)
    alone = write_layout_of(tmp_path / "alone", {"prod-7.pyca": files["prod-7.pyca"]})
    (key_home / "policy.toml").write_text("[[rule]]\nartifacts = 'prod-*.pyca'\nthreshold = 2\n")
    code, out, err = pyc("push", alone, addressed(double))
    assert (code, out) == (12, "") and "1 of the 2 signatures that it needs for 'prod-*.pyca'" in err
    assert "sign the artifact and bundle it again, or have a rule of the policy fit the name 'prod-7.pyca'" in err
    assert "pyc sign" not in err
    bad = write_layout_of(tmp_path / "bad", {**files, "prod-7.pyca.sig": b"no signature"})
    assert pyc("push", bad, addressed(double))[0] == 15
    assert not double.asked
    code, out, err = pyc("push", whole, addressed(double))
    assert (code, err) == (0, "") and "signed by trusted keys" in out
    (key_home / "policy.toml").write_text("[[rule]]\nthreshold = 2\n")
    assert pyc("verify", addressed(double))[0] == 0


def test_an_unsigned_artifact_in_a_layout_whatever_it_is_called(pyc, make_artifact, double, tmp_path):
    data = make_artifact(signed=False).read_bytes()
    for name in ("model.pyca", "weights.bin"):
        layout = write_layout_of(tmp_path / "layouts" / name, {"notes": b"", name: data})
        code, out, err = pyc("push", layout, addressed(double))
        assert (code, out) == (11, "") and f"{layout}/{name}: not signed" in err and err.count("\n") == 1
    assert not double.asked
    code, out, _ = pyc("push", layout, addressed(double), "--allow-unsigned")
    assert code == 0 and "not signed" in out


def test_a_damaged_artifact_in_a_layout_that_is_whole(pyc, make_artifact, double, tmp_path):
    data = bytearray(make_artifact().read_bytes())
    data[-1] ^= 1
    layout = write_layout_of(tmp_path / "layout", {"model.pyca": bytes(data)})
    for options in ((), ("--allow-unsigned",)):
        code, out, err = pyc("push", layout, addressed(double), *options)
        assert (code, out) == (8, "") and "altered" in err and err.count("\n") == 1
    assert not double.asked


def test_each_artifact_of_a_layout_is_judged(pyc, make_artifact, double, tmp_path):
    files = {"a.pyca": make_artifact().read_bytes()}
    files["b.pyca"] = make_artifact(signed=False).read_bytes()
    layout = write_layout_of(tmp_path / "layout", files)
    code, out, err = pyc("push", layout, addressed(double))
    assert (code, out) == (11, "") and f"{layout}/b.pyca: not signed" in err and not double.asked
    code, out, _ = pyc("push", layout, addressed(double), "--allow-unsigned")
    assert code == 0 and "a.pyca signed by key" in out and "b.pyca not signed" in out
    same = write_layout_of(tmp_path / "same", {f"{name[0]}/m.pyca": data for name, data in files.items()})
    out = pyc("push", same, addressed(double), "--allow-unsigned")[1]
    assert "m.pyca signed by key" in out and "m.pyca not signed" in out


def test_a_layout_without_an_artifact(pyc, double, tmp_path):
    """Somebody else's image."""
    layout = write_layout_of(tmp_path / "layout", {"usr.tar.gz": b"\x1f\x8b and more", "empty": b""})
    key = pyc("keygen")[1].strip()
    code, out, err = pyc("push", layout, addressed(double), "--trust", key)
    assert (code, out) == (8, "") and "has no artifact of pyc among its layers" in err and err.count("\n") == 1
    assert not double.asked
    code, out, err = pyc("push", layout, addressed(double))
    assert (code, err) == (0, "") and "no artifact of pyc in it, so no signature was asked for" in out


@pytest.mark.parametrize("name", ["model.pyca", "run.sh"])
def test_what_is_no_file_in_a_layout(name, pyc, layout, double):
    blob = layout / "blobs" / "sha256" / layers_of(layout)[name]
    blob.unlink()
    os.mkfifo(blob)
    code, out, err = pyc("push", layout, addressed(double))
    assert (code, out) == (8, "") and f"{blob}: cannot be read: not a regular file" in err
    assert not double.asked
