"""`pyc push`: the registry has the same bytes or its tag is as it was, and nobody else learns who one is."""

import base64
import hashlib
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from cutting_proxy import cutting
from registry_double import Registry, serving
from remote_artifacts import QUICK, write_artifact

from pyc.passes.bundle import push as pushing
from pyc.passes.bundle import upload
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import signing_key
from pyc.runtime.artifact.trust.signature_file import add_signature
from pyc.runtime.sources import http, registry, registry_session

MANIFEST = "/v2/models/demo/manifests/v1"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PYC_HTTP_TOKEN", "NETRC", "DOCKER_CONFIG", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYC_CHUNK_CACHE", "off")
    for module in (pushing, http, registry):
        monkeypatch.setattr(module, "PATIENT", QUICK)


@pytest.fixture
def double():
    with serving() as found:
        yield found


@pytest.fixture
def docker(tmp_path):
    """Debian's docker-registry, where it is installed: its port and its folder."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("no docker-registry here")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    folder = tmp_path / "registry"
    (tmp_path / "registry.yml").write_text(
        f"version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with open(tmp_path / "registry.log", "w") as log:
        server = subprocess.Popen([program, "serve", tmp_path / "registry.yml"], stdout=log, stderr=log)
    for _ in range(200):
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield port, folder
    server.terminate()
    server.wait(10)


def addressed(found: Registry) -> str:
    return f"oci://{found.host}/models/demo:v1"


@pytest.mark.parametrize("name", ["prod-\udcfc.pyca", "a\nb.pyca", "a\x9b.pyca"])
def test_a_name_that_no_manifest_can_have(pyc, make_artifact, double, tmp_path, name):
    artifact = make_artifact()
    assert pyc("push", artifact, addressed(double))[0] == 0
    there, asked = dict(double.documents), len(double.asked)
    path = artifact.rename(tmp_path / name)
    code, out, err = pyc("push", path, addressed(double))
    assert (code, out) == (8, "") and "undecodable bytes cannot stand in a file name here; rename the file" in err, err
    assert double.documents == there and len(double.asked) == asked
    assert pyc("pull", addressed(double), "-o", tmp_path / "back.pyca")[0] == 0


def test_what_is_pushed_is_pulled(pyc, make_artifact, double, tmp_path):
    artifact = make_artifact()
    code, out, err = pyc("push", artifact, addressed(double))
    assert (code, err) == (0, "")
    digest = "sha256:" + hashlib.sha256(double.documents[MANIFEST]).hexdigest()
    first, second = out.splitlines()
    assert first == f"oci://{double.host}/models/demo@{digest}"
    assert second.startswith("  tag v1, ") and "signed by trusted key" in second
    for name in (addressed(double), first):
        target = tmp_path / f"{len(name)}.pyca"
        assert pyc("pull", name, "-o", target)[0] == 0
        assert target.read_bytes() == artifact.read_bytes()
    layers = json.loads(double.documents[MANIFEST])["layers"]
    assert [layer["annotations"]["org.cncf.model.filepath"] for layer in layers] == ["model.pyca"]


def test_a_second_push_sends_nothing_and_a_new_version_names_the_old(pyc, make_artifact, double):
    artifact = make_artifact()
    first = pyc("push", artifact, addressed(double))[1].splitlines()[0]
    sent = double.received_bytes
    code, out, _ = pyc("push", artifact, addressed(double))
    assert code == 0 and "of them there already" in out and out.splitlines()[0] == first and "before" not in out
    assert double.received_bytes - sent == len(double.documents[MANIFEST])
    make_artifact(version="0.2")
    code, out, _ = pyc("push", artifact, addressed(double))
    assert code == 0 and f"the tag was {first.partition('@')[2]} before" in out
    assert pyc("verify", first)[0] == 0  # the way back


def test_signatures_travel_with_it(pyc, make_artifact, double, tmp_path, key_home):
    artifact = make_artifact()
    assert pyc("push", artifact, addressed(double))[0] == 0
    (key_home / "policy.toml").write_text("[[rule]]\nthreshold = 2\n")
    assert pyc("verify", addressed(double))[0] == 12
    with open_artifact(artifact) as opened:
        add_signature(artifact, signing_key("qa").sign(opened.prelude.pack()))
    assert pyc("push", artifact, addressed(double))[0] == 0
    assert pyc("verify", addressed(double))[0] == 0
    code, out, err = pyc("pull", addressed(double), "-o", tmp_path / "here.pyca")
    assert (code, err) == (0, "") and "signed by trusted keys" in out
    assert pyc("verify", tmp_path / "here.pyca")[0] == 0


def test_a_layout_goes_as_it_is(pyc, make_artifact, double, tmp_path):
    layout = tmp_path / "layout"
    assert pyc("bundle", make_artifact(), "-o", layout, "--format", "oci", "--no-wheels", "--tag", "v1")[0] == 0
    index = json.loads((layout / "index.json").read_text())
    code, out, err = pyc("push", layout, addressed(double))
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith(index["manifests"][0]["digest"])
    assert pyc("verify", addressed(double))[0] == 0
    blobs = {path.name for path in (layout / "blobs" / "sha256").iterdir()}
    assert blobs == {path.rpartition(":")[2] for path in double.documents if "sha256:" in path}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder, blobs: flip(blobs[-1]), "has been altered"),
        (lambda folder, blobs: flip(blobs[0]), "has been altered"),
        (lambda folder, blobs: blobs[-1].unlink(), "cannot be read"),
        (lambda folder, blobs: (folder / "index.json").write_text("{"), "is not of an OCI image layout"),
        (lambda folder, blobs: (folder / "index.json").write_text('{"manifests": []}'), "has 0 manifests"),
        (
            lambda folder, blobs: (folder / "index.json").write_text(
                '{"manifests": [{"digest": "sha256:../../x", "size": 1}]}'
            ),
            "expected sha256",
        ),
    ],
)
def test_a_layout_that_is_not_whole(damage, says, pyc, make_artifact, double, tmp_path):
    layout = tmp_path / "layout"
    assert pyc("bundle", make_artifact(), "-o", layout, "--format", "oci", "--no-wheels")[0] == 0
    manifest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"].partition(":")[2]
    blobs = sorted((layout / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    blobs.insert(0, layout / "blobs" / "sha256" / manifest)
    damage(layout, blobs)
    code, out, err = pyc("push", layout, addressed(double))
    assert (code, out) == (8, "") and says in err and err.count("\n") == 1
    assert not double.asked


def test_what_is_not_whole_or_not_trusted_is_not_sent(pyc, make_artifact, double, tmp_path, monkeypatch):
    code, _, err = pyc("push", make_artifact(signed=False), addressed(double))
    assert code == 11 and "not signed" in err and not double.asked
    artifact = make_artifact()
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setenv("PYC_HOME", str(elsewhere))
    assert pyc("push", artifact, addressed(double))[0] == 12
    flip(artifact)
    assert pyc("push", artifact, addressed(double), "--allow-unsigned")[0] == 8
    assert not double.asked


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["http://127.0.0.1/m:v1"], 2, "expected oci://host/repository:tag"),
        (["oci://127.0.0.1/M"], 14, "expected oci://host/repository:tag"),
        (["oci://127.0.0.1/m@sha256:" + "0" * 64], 14, "names a digest, expected a tag"),
        (["oci://127.0.0.1:1/m:v1"], 14, "gave up after 5 tries"),
        (["oci://127.0.0.1:1/m:v1", "--trust", "x", "--allow-unsigned"], 2, "not both"),
    ],
)
def test_what_cannot_be_pushed_to(arguments, code, says, pyc, make_artifact):
    got, out, err = pyc("push", make_artifact(), *arguments)
    assert (got, out) == (code, "") and says in err
    assert err.count("\n") == 1 or code == 2


def test_no_artifact(pyc, double, tmp_path):
    assert pyc("push", tmp_path / "none.pyca", addressed(double))[0] == 10
    (tmp_path / "folder").mkdir()
    assert pyc("push", tmp_path / "folder", addressed(double))[0] == 8
    assert pyc("push", "a" * 300, addressed(double))[0] == 8
    assert not double.asked


OF_PIECES = ("flip", "stuck", "stale", "beyond", "part", "back")
WRONG = ("busy", "full", "reset", "lost", "forget", "garbage", "huge", "refused", "trailers", *OF_PIECES)
METHODS = {**dict.fromkeys(OF_PIECES, ("PATCH",)), "forget": ("PATCH", "PUT"), "lost": ("POST", "PATCH", "PUT")}


@pytest.mark.parametrize("kind", WRONG)
def test_the_same_bytes_or_one_clean_error(kind, pyc, tmp_path, double, monkeypatch):
    """Each misbehaviour once, often and always: the tag means the old artifact or the new one, and a push after it
    mends all."""
    monkeypatch.setattr(upload, "PIECE_BYTES", 100_000)
    artifact = tmp_path / "m.pyca"
    for seed in range(4):
        noise = random.Random(f"{kind} {seed}")
        double.plan = lambda number, method, path: ""
        double.documents.clear()
        old = write_artifact(artifact, seed=1, tensors=2)
        assert pyc("push", artifact, addressed(double), "--allow-unsigned")[0] == 0
        before = double.documents[MANIFEST]
        data = write_artifact(artifact, seed=2)
        share, struck = (1.0, 0.05, 0.2, 0.4)[seed], []

        def plan(number, method, path, noise=noise, share=share, struck=struck):
            fits = method in METHODS.get(kind, ("HEAD", "GET", "POST", "PATCH", "PUT"))
            if fits and noise.random() < share:
                struck.append(method)
                return kind
            return ""

        double.plan = plan
        code, out, err = pyc("push", artifact, addressed(double), "--allow-unsigned")
        double.plan = lambda number, method, path: ""
        if code:
            assert struck and code in (8, 14), err
            assert out == "" and err.count("\n") == 1 and len(err) < 700, err
            assert "secret" not in err
            if "PUT" not in struck:
                assert double.documents[MANIFEST] == before
        else:
            assert double.documents[MANIFEST] != before
        held = double.blobs()
        assert old in held and (data in held or double.documents[MANIFEST] == before)
        assert pyc("push", artifact, addressed(double), "--allow-unsigned")[0] == 0
        assert data in double.blobs() and double.documents[MANIFEST] != before


def test_it_goes_on_where_it_broke_off(pyc, tmp_path, double, monkeypatch):
    monkeypatch.setattr(upload, "PIECE_BYTES", 200_000)
    artifact = tmp_path / "m.pyca"
    data = write_artifact(artifact)
    breaks = [1, 0, 0, 1, 0]
    double.plan = lambda number, method, path: "reset" if method == "PATCH" and breaks and breaks.pop() else ""
    assert pyc("push", artifact, addressed(double), "--allow-unsigned")[0] == 0
    assert not breaks and data in double.blobs()
    assert double.received_bytes < len(data) + 3000  # nothing twice, beside the config and the manifest


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("stuck", "did not match uploaded content, and said that it has 0 bytes; gave up after 5 tries"),
        ("beyond", "says that it has 1000000000000000000 bytes, and was sent {size}; gave up after 5 tries"),
    ],
)
def test_what_is_not_confirmed_is_sent_five_times(kind, says, pyc, tmp_path, double, monkeypatch):
    """And not for ever, nor taken for what is there."""
    artifact = tmp_path / "m.pyca"
    data = write_artifact(artifact)
    double.plan = lambda number, method, path: kind if method == "PATCH" and number > 4 else ""
    code, out, err = pyc("push", artifact, addressed(double), "--allow-unsigned")
    assert (code, out) == (14, "") and says.format(size=len(data)) in err, err
    assert sum(method == "PATCH" and number > 4 for number, (method, _, _) in enumerate(double.asked)) == 5
    assert MANIFEST not in double.documents


def test_what_is_never_confirmed_nor_kept_ends(pyc, tmp_path, double, monkeypatch):
    """A registry that accepts every piece, and keeps none, gets the blob five times."""
    monkeypatch.setattr(upload, "PIECE_BYTES", 200_000)
    data = write_artifact(tmp_path / "m.pyca")
    double.plan = lambda number, method, path: "stuck" if method == "PATCH" and number > 4 else ""
    code, out, err = pyc("push", tmp_path / "m.pyca", addressed(double), "--allow-unsigned")
    assert (code, out) == (14, "") and "gave up after 5 tries" in err, err
    pieces = -(-len(data) // 200_000)
    assert len(double.asked) <= 6 + 5 * (2 * pieces + 2) and MANIFEST not in double.documents


@pytest.mark.parametrize(
    ("kind", "methods"), [("stale", ("PATCH", "GET")), ("stale", ("PATCH",)), ("off_by_one", ("PATCH",))]
)
def test_a_registry_that_names_another_end(kind, methods, pyc, tmp_path, double, monkeypatch):
    """It has every piece, which the digest shows: nothing is sent twice, nor waited for."""
    monkeypatch.setattr(upload, "PIECE_BYTES", 200_000)
    waits = []
    monkeypatch.setattr(registry_session.time, "sleep", waits.append)
    data = write_artifact(tmp_path / "m.pyca")
    double.plan = lambda number, method, path: kind if method in methods and "/uploads/" in path else ""
    code, out, err = pyc("push", tmp_path / "m.pyca", addressed(double), "--allow-unsigned")
    assert (code, err) == (0, ""), err
    digest = hashlib.sha256(double.documents[MANIFEST]).hexdigest()
    assert data in double.blobs() and out.splitlines()[0].endswith(digest)
    assert double.received_bytes < len(data) + 3000 and not waits


def test_a_registry_that_names_less_than_it_has(pyc, tmp_path, double, monkeypatch):
    """It does not go on from there, so the next try believes that it accepted each piece."""
    monkeypatch.setattr(upload, "PIECE_BYTES", 200_000)
    data = write_artifact(tmp_path / "m.pyca")
    double.plan = lambda number, method, path: "less" if method in ("PATCH", "GET") and "/uploads/" in path else ""
    code, _, err = pyc("push", tmp_path / "m.pyca", addressed(double), "--allow-unsigned")
    assert (code, err) == (0, "") and data in double.blobs()


@pytest.mark.parametrize("broken", ["PATCH", "PUT"])
def test_a_stale_upload_that_breaks_off(broken, pyc, tmp_path, double, monkeypatch):
    """Nobody knows how much of a piece arrived, so it begins anew; a closing PUT is sent again."""
    monkeypatch.setattr(upload, "PIECE_BYTES", 200_000)
    data = write_artifact(tmp_path / "m.pyca")
    breaks = []

    def plan(number, method, path):
        if "/uploads/" not in path or method not in ("PATCH", "GET", "PUT"):
            return ""
        before = sum(asked == "PATCH" for asked, _, _ in double.asked)
        if method == broken and before > 4 and not breaks:
            breaks.append(True)
            return "busy"
        return "" if method == "PUT" else "stale"

    double.plan = plan
    code, _, err = pyc("push", tmp_path / "m.pyca", addressed(double), "--allow-unsigned")
    assert (code, err, breaks) == (0, "", [True]) and data in double.blobs()
    assert (double.received_bytes > len(data) + 3000) == (broken == "PATCH")


def test_a_registry_that_loses_what_it_confirmed(pyc, tmp_path, double, monkeypatch):
    """Each time that it begins anew it makes progress, and it is not asked for ever."""
    monkeypatch.setattr(upload, "PIECE_BYTES", 300_000)
    write_artifact(tmp_path / "m.pyca", size=600_000)
    kinds = itertools.cycle(["", "", "busy", "back"])
    double.plan = lambda number, method, path: next(kinds) if method == "PATCH" and number > 4 else ""
    code, _, err = pyc("push", tmp_path / "m.pyca", addressed(double), "--allow-unsigned")
    assert code == 14 and "says that it has 0 bytes, and said " in err and "gave up after 6 times" in err, err


def test_a_registry_that_takes_a_part_of_each_piece(pyc, tmp_path, double, monkeypatch):
    monkeypatch.setattr(upload, "PIECE_BYTES", 400_000)
    waits = []
    monkeypatch.setattr(registry_session.time, "sleep", waits.append)
    data = write_artifact(tmp_path / "m.pyca", size=600_000)
    double.plan = lambda number, method, path: "part" if method == "PATCH" and number % 3 else ""
    assert pyc("push", tmp_path / "m.pyca", addressed(double), "--allow-unsigned")[0] == 0
    assert data in double.blobs() and len(waits) <= 2, "what moves on is no failure"


def test_pieces_are_as_large_as_the_registry_asks(pyc, tmp_path, double, monkeypatch):
    monkeypatch.setattr(upload, "PIECE_BYTES", 1000)
    double.least_piece_bytes = 400_000
    write_artifact(tmp_path / "m.pyca")
    assert pyc("push", tmp_path / "m.pyca", addressed(double), "--allow-unsigned")[0] == 0
    assert sum(method == "PATCH" for method, _, _ in double.asked) == 4  # the config, and three of 947 kB


def test_a_file_that_changes_meanwhile(pyc, tmp_path, double, monkeypatch):
    artifact = tmp_path / "m.pyca"
    data = write_artifact(artifact)
    changes = [lambda: os.truncate(artifact, 1000), lambda: artifact.write_bytes(data[:-1] + b"?")]

    def plan(number, method, path):
        if method == "POST" and sum(asked == "POST" for asked, _, _ in double.asked) == 2:
            changes[0]()
        return ""

    double.plan = plan
    code, out, err = pyc("push", artifact, addressed(double), "--allow-unsigned")
    assert (code, out) == (8, "") and "has become shorter while it was sent" in err
    del changes[0]
    double.asked.clear()
    double.documents.clear()
    artifact.write_bytes(data)
    code, out, err = pyc("push", artifact, addressed(double), "--allow-unsigned")
    assert (code, out) == (8, "") and "has changed while it was sent" in err
    assert MANIFEST not in double.documents


def test_who_one_is_goes_to_the_registry_alone(pyc, make_artifact, double, tmp_path, monkeypatch):
    double.realm = f'Bearer realm="http://{double.host}/token",service="s",scope="repository:models/demo:pull,push"'
    double.user = "ada:secret"
    artifact = make_artifact()
    code, _, err = pyc("push", artifact, addressed(double))
    assert code == 14 and "access refused (401)" in err and "secret" not in err
    (tmp_path / "login.json").write_text(
        json.dumps({"auths": {double.host: {"auth": base64.b64encode(b"ada:secret").decode()}}})
    )
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "login.json"))
    assert pyc("push", artifact, addressed(double))[0] == 0
    given = {header.split()[0] for _, path, header in double.asked if header and not path.startswith("/token")}
    assert given == {"Bearer"}
    # A token that has expired is renewed, in the middle of an upload, too.
    make_artifact(version="0.3")
    expired = []

    def plan(number, method, path):
        if method == "PATCH" and not expired:
            expired.append(True)
            double.token = "another"
            return "busy"
        return ""

    double.plan = plan
    assert pyc("push", artifact, addressed(double))[0] == 0 and double.token != "another"
    # An upload that is sent elsewhere goes there without it.
    make_artifact(version="0.4")
    double.plan = lambda number, method, path: {"POST": "away", "PATCH": "busy"}.get(method, "")
    code, _, err = pyc("push", artifact, addressed(double))
    assert code == 14 and "secret" not in err
    elsewhere = [(method, header) for method, path, header in double.asked if path.startswith("/elsewhere")]
    assert {method for method, _ in elsewhere} == {"PATCH", "GET"}, "it breaks off, and one asks how far it is"
    assert not any(header for _, header in elsewhere)


def test_oras_pulls_what_is_pushed_and_pushes_what_is_pulled(pyc, make_artifact, double, tmp_path):
    from oras.client import OrasClient

    artifact = make_artifact()
    assert pyc("push", artifact, addressed(double))[0] == 0
    client = OrasClient(insecure=True)
    (pulled,) = client.pull(target=f"{double.host}/models/demo:v1", outdir=str(tmp_path / "pulled"))
    assert Path(pulled).name == artifact.name and Path(pulled).read_bytes() == artifact.read_bytes()
    target = f"{double.host}/models/theirs:v1"
    client.push(target=target, files=[str(artifact)], disable_path_validation=True)
    code, out, err = pyc("pull", f"oci://{target}", "-o", tmp_path / "back.pyca")
    assert code == 0 and "signed by trusted key" in out, err
    assert (tmp_path / "back.pyca").read_bytes() == artifact.read_bytes()


@pytest.mark.slow
def test_dockers_registry(pyc, docker, tmp_path, monkeypatch):
    """A registry that is not ours: pushed, cut on the way, gone on with, damaged and pulled."""
    port, folder = docker
    monkeypatch.setattr(upload, "PIECE_BYTES", 300_000)
    artifact = tmp_path / "m.pyca"
    data = write_artifact(artifact, codec="none")
    with cutting(port, 100_000, 3) as proxy:
        url = f"oci://127.0.0.1:{proxy.port}/models/demo:v1"
        code, out, err = pyc("push", artifact, url, "--allow-unsigned")
        assert (code, err, proxy.cuts) == (0, "", 3)
        digest = out.splitlines()[0].rpartition("@")[2]
        proxy.count, proxy.cuts = 2, 0
        assert pyc("pull", url, "-o", tmp_path / "here.pyca", "--allow-unsigned")[0] == 0
        assert (tmp_path / "here.pyca").read_bytes() == data and proxy.cuts == 2
    url = f"oci://127.0.0.1:{port}/models/demo"
    assert "952 kB, 952 kB of them there already" in pyc("push", artifact, f"{url}:v2", "--allow-unsigned")[1]
    assert pyc("verify", f"{url}@{digest}", "--allow-unsigned")[0] == 0
    blob = next(path for path in folder.rglob("data") if path.stat().st_size == len(data))
    flip(blob)
    code, _, err = pyc("pull", f"{url}:v1", "-o", tmp_path / "other.pyca", "--allow-unsigned")
    assert code == 8 and "altered" in err and not (tmp_path / "other.pyca").exists()


def test_pushes_at_once(pyc, tmp_path, double):
    """Two jobs of the same commit: both succeed, and the tag means what both have."""
    data = write_artifact(tmp_path / "m.pyca")
    environment = {**os.environ, "PYC_HOME": str(tmp_path)}
    line = [sys.executable, "-m", "pyc", "push", str(tmp_path / "m.pyca"), addressed(double), "--allow-unsigned"]
    codes = []
    threads = [
        threading.Thread(target=lambda: codes.append(subprocess.run(line, env=environment, check=False).returncode))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0, 0] and data in double.blobs()
