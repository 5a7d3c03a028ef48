"""`pyc trust revoke`: by what an operator is shown of an artifact, and by nothing that would revoke nothing."""

import hashlib
import json

from range_server import range_server

from pyc.runtime.artifact.trust.revocations import revoke

__all__ = ["range_server"]

DIGEST = "ab" * 32
NAMED = f"header:{DIGEST}"


def test_what_an_operator_is_shown_of_a_file_revokes_nothing_and_is_refused(pyc, make_artifact, tmp_path, key_home):
    """What was shown as success, with an artifact that still ran."""
    artifact = make_artifact()
    digest = json.loads(pyc("verify", artifact, "--json")[1])["digest"]
    file_sha256 = hashlib.sha256(artifact.read_bytes()).hexdigest()
    update = tmp_path / "update"
    for arguments in (("revoke", file_sha256), ("announce", "-o", update, "--revoke", file_sha256)):
        code, out, err = pyc("trust", *arguments)
        assert (code, out, err.count("\n")) == (8, "", 1) and "the SHA-256 of a file, it seems" in err
    assert not (key_home / "revoked").exists() and not update.exists()
    assert pyc("verify", artifact)[0] == 0
    assert pyc("trust", "revoke", digest)[1].startswith(f"{digest} is revoked on ")
    assert pyc("verify", artifact)[0] == 12
    assert pyc("trust", "list")[1].splitlines()[-1].startswith(f"{digest}  (was revoked ")
    assert json.loads(pyc("trust", "list", "--json")[1])[-1]["revoked"] == digest
    assert pyc("trust", "restore", digest)[1] == f"{digest} is revoked no more\n"
    assert pyc("trust", "announce", "-o", update, "--revoke", digest)[0] == 0
    assert pyc("trust", "apply", update)[1] == f"revoked {digest}\n"
    assert pyc("verify", artifact)[0] == 12


def test_what_was_revoked_by_another_digest_is_restored_by_it(pyc, key_home):
    revoke(DIGEST, home=key_home)
    assert pyc("trust", "restore", DIGEST)[1] == f"{NAMED} is revoked no more\n"
    code, _, err = pyc("trust", "restore", DIGEST)
    assert code == 8 and f"{NAMED} was not revoked here" in err


def test_a_last_day_is_of_a_key_alone(pyc, tmp_path):
    code, _, err = pyc("trust", "announce", "-o", tmp_path / "update", "--expire", f"{NAMED}=2999-01-01")
    assert code == 8 and "expected a key's fingerprint: 16 hex digits" in err
    assert not (tmp_path / "update").exists()


def test_an_artifact_on_another_machine_is_revoked_by_its_url(pyc, make_artifact, range_server):
    artifact = make_artifact()
    digest = json.loads(pyc("inspect", artifact, "--json")[1])["digest"]
    range_server.files["/a.pyca"] = artifact.read_bytes()
    assert pyc("trust", "revoke", f"{range_server.url}/a.pyca")[1].startswith(f"{digest} is revoked on ")
    assert pyc("verify", artifact)[0] == 12


def test_documents_about_an_artifact_have_what_revokes_it(pyc, make_artifact):
    artifact = make_artifact()
    digest = json.loads(pyc("verify", artifact, "--json")[1])["digest"]
    documents = {
        form: json.loads(pyc("attest", artifact, "--format", form)[1]) for form in ("slsa", "cyclonedx", "spdx")
    }
    assert documents["slsa"]["subject"][0]["annotations"] == {"pyc:digest": digest}
    assert {"name": "pyc:digest", "value": digest} in documents["cyclonedx"]["metadata"]["component"]["properties"]
    assert documents["spdx"]["packages"][0]["comment"] == f"Digest, by which it can be revoked: {digest}"
