"""`pyc sign` and `pyc trust`: a release from two signatures to a rotation and a revocation, on three machines."""

import json
import os
import shlex
import sys

import pytest

from pyc.runtime.artifact.trust.keys import parse_public_key


@pytest.fixture
def machine(pyc, tmp_path, monkeypatch):
    """Run pyc on a machine: a key store of that name."""

    def run(name, *arguments):
        monkeypatch.setenv("PYC_HOME", str(tmp_path / name))
        return pyc(*arguments)

    return run


def test_a_release(machine, make_artifact, tmp_path):
    artifact = make_artifact(signed=False)
    public = {}
    for name, store in (("release", "builder"), ("qa", "lab")):
        public[name] = machine(store, "keygen", "--name", name, "--expires", "2099-06-30")[1].strip()
        code, out, _ = machine(store, "sign", artifact, "--name", name)
        fingerprint = parse_public_key(public[name]).fingerprint
        assert (code, out) == (0, f"{artifact}.sig: signed by key {fingerprint} {name}\n")
        assert machine("prod", "trust", "add", public[name])[0] == 0
    old = parse_public_key(public["release"])
    assert f"{old.fingerprint}  {old.text()}" in machine("prod", "trust", "list")[1]
    (tmp_path / "prod" / "policy.toml").write_text("[[rule]]\nthreshold = 2\n")
    code, out, _ = machine("prod", "verify", artifact)
    assert code == 0 and "signed by trusted keys" in out
    # One of the two leaves.
    new = machine("builder", "keygen", "--name", "next")[1].strip()
    update = tmp_path / "rotation.update"
    announce = ("trust", "announce", "-o", update, "--name", "release", "--trust", new)
    assert machine("builder", *announce, "--expire", f"{old.fingerprint}=2000-01-01")[0] == 0
    assert machine("builder", *announce)[0] == 8  # the file is there
    code, out, _ = machine("prod", "trust", "apply", update)
    assert code == 0 and "trusted" in out and "expires on 2000-01-01" in out
    code, _, err = machine("prod", "verify", artifact)
    assert code == 12 and "1 of the 2 signatures" in err and "expired on 2000-01-01" in err
    machine("builder", "sign", artifact, "--name", "next")
    assert machine("prod", "verify", artifact)[0] == 0
    # It turns out to be bad.
    code, out, _ = machine("prod", "trust", "revoke", artifact, "--reason", "wrong tokenizer")
    digest = out.split()[0]
    code, out, err = machine("prod", "verify", artifact, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["digest"]) == (12, "untrusted", digest)
    assert "wrong tokenizer" in err and len(found["signatures"]) == 3
    assert machine("prod", "trust", "restore", digest)[0] == 0
    assert machine("prod", "verify", artifact)[0] == 0
    assert machine("prod", "trust", "restore", digest)[0] == 8
    # A file stands for its digest, as it did when it was revoked.
    assert machine("prod", "trust", "revoke", artifact)[0] == 0
    assert machine("prod", "trust", "restore", artifact)[1] == f"{digest} is revoked no more\n"


def test_an_artifact_that_was_revoked_is_not_signed_whatever_cannot_be_read(machine, make_artifact, tmp_path):
    artifact = make_artifact()
    machine("lab", "keygen")
    digest = machine("lab", "trust", "revoke", artifact)[1].split()[0]
    policy = tmp_path / "lab" / "policy.toml"
    policy.write_text("keys = [")
    code, _, err = machine("lab", "sign", artifact)
    assert code == 12 and "this artifact was revoked on" in err
    (next((tmp_path / "lab" / "revoked").iterdir())).chmod(0o666)
    policy.write_text(f"revoked = ['{digest}']\n")
    code, _, err = machine("lab", "sign", artifact)
    assert code == 12 and f"is revoked by {policy}" in err
    assert not os.path.exists(f"{artifact}.sig")


def test_what_is_wrong_with_a_command(machine, make_artifact, tmp_path):
    artifact = make_artifact()
    update = tmp_path / "u"
    for arguments, code, message in (
        (("sign", artifact), 8, "no such key"),
        (("sign", tmp_path / "none.pyca"), 10, "none.pyca: "),
        (("trust", "announce", "-o", update), 2, "say what to announce"),
        (("trust", "announce", "-o", update, "--revoke", "everything"), 8, "expected a key's fingerprint"),
        (("trust", "announce", "-o", update, "--expire", "0" * 16), 2, "as YYYY-MM-DD, behind FINGERPRINT="),
        (("trust", "announce", "-o", update, "--revoke", "0" * 16, "--until", "1.1.99"), 2, "expected a date"),
        (("trust", "announce", "-o", update, "--revoke", "0" * 16, "--until", "2020-01-01"), 2, "2020-01-01 is past"),
        (("trust", "announce", "-o", update, "--revoke", "a" * 300), 8, "expected a key's fingerprint"),
        (("trust", "revoke", "a" * 300), 8, "expected a key's fingerprint"),
        (("trust", "restore", "a" * 300), 8, "expected a key's fingerprint"),
        (("trust", "add", update, "--expires", "2099-02-30"), 2, "'--expires': got '2099-02-30', expected a date"),
        (("trust", "apply", artifact), 8, "cannot be read"),
        (("trust", "apply", tmp_path / "none"), 8, "cannot be read"),
        (("trust", "revoke", tmp_path), 8, "this is a folder; give the file in it"),
        (("trust", "revoke", "registry/image@sha256:" + "0" * 64), 8, "the SHA-256 of a file, it seems"),
        (("keygen", "--expires", "soon"), 2, "expected a date as YYYY-MM-DD"),
        (("keygen", "--expires", "2099-01-01", "--public"), 2, "--expires is for a new key"),
    ):
        found, out, err = machine("empty", *arguments)
        assert (found, out) == (code, ""), arguments
        assert message in err
    assert not update.exists()


def test_an_announcement_can_be_applied(machine, tmp_path):
    """One line may be longer than a name of a file, and all of them no longer than is read."""
    key = machine("builder", "keygen")[1].strip()
    update = tmp_path / "u"
    assert machine("builder", "trust", "announce", "-o", update, "--trust", f"{key} {'c' * 300}")[0] == 0
    assert machine("builder", "trust", "apply", update)[0] == 0
    for each in range(20):
        (tmp_path / f"{each}.pub").write_text(f"{key} {'c' * 3900}\n")
    trusted = [word for each in range(20) for word in ("--trust", tmp_path / f"{each}.pub")]
    code, out, err = machine("builder", "trust", "announce", "--force", "-o", update, *trusted)
    assert (code, out) == (8, "") and "expected at most 65536; announce it in parts" in err
    assert machine("builder", "trust", "apply", update)[0] == 0, "the former one is there"


def test_what_is_read_or_is_no_file_is_never_replaced(machine, make_artifact, tmp_path):
    artifact, pipe = make_artifact(), tmp_path / "pipe"
    os.mkfifo(pipe)
    key = tmp_path / "release.pub"
    key.write_text(machine("builder", "keygen")[1])
    private = tmp_path / "builder" / "keys" / "default.pem"
    before = private.read_bytes(), key.read_bytes()
    announce = ("trust", "announce", "--force", "--trust", key)
    for arguments in (
        (*announce, "-o", pipe),
        (*announce, "-o", key),
        (*announce, "-o", private, "--key", private),
        ("attest", artifact, "--format", "slsa", "--sign", "--key", private, "-o", private, "--force"),
    ):
        code, _, err = machine("builder", *arguments)
        assert code == 8 and ("read here" in err or "named pipe" in err), err
    assert (private.read_bytes(), key.read_bytes()) == before
    assert pipe.is_fifo()


@pytest.mark.parametrize("said_by", ["its public half", "the store", "the store, revoked"])
@pytest.mark.parametrize("route", ["name", "--key", "PYC_SIGNING_KEY", "PYC_SIGNING_KEY_FILE", "PYC_SIGNER"])
def test_nothing_is_signed_with_a_key_that_counts_no_more(
    said_by, route, machine, make_artifact, tmp_path, monkeypatch
):
    """Wherever it comes from; of a key in the environment, as far as this machine knows."""
    artifact = make_artifact(signed=False)
    code, line, _ = machine("builder", "keygen", "--expires", "2099-01-01")
    public, private = parse_public_key(line), tmp_path / "builder" / "keys" / "default.pem"
    past = line.replace("2099-01-01", "2001-01-01")
    if said_by == "its public half":
        private.with_suffix(".pub").write_text(past)
    elif said_by == "the store":
        (tmp_path / "builder" / "trusted" / f"{public.fingerprint}.pub").write_text(past)
    else:
        assert machine("builder", "trust", "revoke", public.fingerprint)[0] == 0
    options = ("--key", private) if route == "--key" else ()
    knows_no_file = route in ("PYC_SIGNING_KEY", "PYC_SIGNER") and said_by == "its public half"
    if route == "PYC_SIGNING_KEY":
        monkeypatch.setenv(route, private.read_text())
    elif route == "PYC_SIGNING_KEY_FILE":
        monkeypatch.setenv(route, str(private))
    elif route == "PYC_SIGNER":
        knows_no_file = False
        signer = f"import sys; print({past if said_by == 'its public half' else line!r})"
        monkeypatch.setenv(route, shlex.join([sys.executable, "-c", signer]))
    code, _, err = machine("builder", "sign", artifact, *options)
    if knows_no_file:
        assert code == 0
        return
    refusal = "was revoked on" if said_by == "the store, revoked" else "expired on 2001-01-01"
    assert code == 8 and refusal in err and "nobody would trust what it signs" in err and "keygen --name NEW" in err
    assert not artifact.with_name(f"{artifact.name}.sig").exists()


def test_a_key_is_not_made_for_a_day_that_is_past(machine, tmp_path):
    code, out, err = machine("builder", "keygen", "--expires", "2001-01-01")
    assert (code, out) == (2, "") and "2001-01-01 is past" in err
    assert not (tmp_path / "builder" / "keys").exists()


@pytest.mark.parametrize("by", ["store", "policy"])
def test_an_artifact_that_was_revoked_is_not_signed(by, pyc, make_artifact, key_home):
    """One more signature could be the one that a machine lacks which does not know of the revocation."""
    artifact = make_artifact()
    if by == "store":
        assert pyc("trust", "revoke", artifact, "--reason", "wrong tokenizer")[0] == 0
    else:
        digest = json.loads(pyc("verify", artifact, "--json")[1])["digest"]
        (key_home / "policy.toml").write_text(f"revoked = ['{digest}']\n")
    assert pyc("keygen", "--name", "qa")[0] == 0
    code, out, err = pyc("sign", artifact, "--name", "qa")
    assert (code, out) == (12, "") and "revoked" in err and err.count("\n") == 1
    assert not os.path.exists(f"{artifact}.sig")


def test_who_cannot_know_of_revocations_signs_and_is_told(pyc, make_artifact, key_home):
    """As a job that brings its own key: the machine that runs the artifact has the last word."""
    artifact = make_artifact()
    (key_home / "policy.toml").write_text("nonsense")
    code, out, err = pyc("sign", artifact)
    assert code == 0 and out.startswith(f"{artifact}.sig: signed by key")
    assert f"whether {artifact} was revoked here is not known: {key_home / 'policy.toml'}: not a trust policy" in err
