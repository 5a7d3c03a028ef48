"""`pyc trust revoke`: by what an operator is shown of an artifact, and by nothing that would revoke nothing."""

import hashlib
import json
import re

import pytest
from range_server import range_server
from stopped_clock import TODAY

from pyc.runtime.artifact.trust.key_store import add_trusted, signing_key
from pyc.runtime.artifact.trust.keys import parse_public_key
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


def test_the_name_of_a_key_is_told_where_its_fingerprint_is(pyc, tmp_path):
    key = add_trusted(signing_key().public)
    for words in (("revoke", "default"), ("restore", "default"), ("announce", "-o", tmp_path, "--revoke", "default")):
        code, out, err = pyc("trust", *words)
        assert (code, out, err.count("\n")) == (8, "", 1)
        named = re.search("`pyc (trust [a-z]+)`", err)
        assert named is not None and err.startswith("pyc: error: 'default': expected a key's fingerprint (16 hex dig")
    (line,) = pyc(*named[1].split())[1].splitlines()
    assert line.startswith(key.fingerprint) and line.endswith(" default")


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


@pytest.mark.parametrize("is_removed", [False, True], ids=["revoked", "revoked and removed"])
def test_what_a_revoked_key_and_another_signed_runs_and_the_revoked_one_is_named(
    is_removed, pyc, make_artifact, tmp_path, key_home
):
    """As keys.md says: a revoked key counts for nothing; an artifact that others signed too is revoked by itself."""
    artifact = make_artifact()
    stolen = signing_key().public.fingerprint
    other = parse_public_key(pyc("keygen", "--name", "qa")[1].strip())
    pyc("trust", "add", other.text())
    pyc("trust", "revoke", stolen, "--reason", "laptop stolen")
    if is_removed:
        pyc("trust", "remove", stolen)
    why = f"was revoked on {TODAY}: laptop stolen"
    code, out, err = pyc("verify", artifact)
    assert (code, out) == (12, "") and why in err and "have one sign this: pyc sign" in err and "trust add" not in err
    assert why in pyc("inspect", artifact)[1].replace("\n             ", " ")
    assert json.loads(pyc("inspect", artifact, "--json")[1])["signature"]["refusal"] == why
    assert pyc("sign", artifact, "--name", "qa")[0] == 0
    code, out, err = pyc("verify", artifact)
    name = "" if is_removed else " default"
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith(f"signed by trusted key {other.fingerprint} qa")
    assert out.splitlines()[1:] == [f"  signed by key {stolen}{name} as well, which {why}; it counts for nothing"]
    signatures = json.loads(pyc("verify", artifact, "--json")[1])["signatures"]
    assert {each["key"]: each["refusal"] for each in signatures} == {stolen: why, other.fingerprint: None}
    pyc("trust", "revoke", artifact)
    assert pyc("verify", artifact)[0] == 12


@pytest.mark.parametrize("signed", [False, True])
def test_inspect_names_a_revoked_signature_beside_the_artifact(signed, pyc, make_artifact, key_home):
    artifact = make_artifact(signed=signed)
    other = parse_public_key(pyc("keygen", "--name", "qa")[1].strip())
    pyc("trust", "add", other.text())
    pyc("sign", artifact, "--name", "qa")
    pyc("trust", "revoke", other.fingerprint, "--reason", "it leaked")
    shown = " ".join(pyc("inspect", artifact)[1].split())
    assert f"1 in {artifact.name}.sig, of which {other.fingerprint} was revoked on {TODAY}: it leaked" in shown


def test_a_key_that_the_policy_revokes_is_named_though_no_key_list_has_it(pyc, make_artifact, key_home):
    artifact = make_artifact()
    stolen = signing_key().public.fingerprint
    other = parse_public_key(pyc("keygen", "--name", "qa")[1].strip())
    pyc("sign", artifact, "--name", "qa")
    policy = key_home / "policy.toml"
    policy.write_text(f'keys = ["{other.text()}"]\nrevoked = ["{stolen}"]\n')
    code, out, err = pyc("verify", artifact)
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == [
        f"  signed by key {stolen} as well, which is revoked by {policy}; it counts for nothing"
    ]


def test_inspect_names_two_revoked_signatures_in_one_clause(pyc, make_artifact, key_home):
    artifact = make_artifact(signed=False)
    for name in ("qa", "old"):
        key = parse_public_key(pyc("keygen", "--name", name)[1].strip())
        pyc("trust", "add", key.text())
        pyc("sign", artifact, "--name", name)
        pyc("trust", "revoke", key.fingerprint)
    shown = " ".join(pyc("inspect", artifact)[1].partition("runs here")[0].split())
    assert shown.count("of which") == 1 and shown.count("was revoked on") == 2
