"""`pyc verify`: the exit code is the verdict, and a negative verdict says nothing on standard output."""

import json

import pytest

from pyc.runtime.artifact.trust.key_store import add_trusted, remove_trusted, signing_key
from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.errors import RunError


def test_intact_and_trusted(pyc, make_artifact):
    path = make_artifact()
    code, out, err = pyc("verify", path)
    assert (code, err) == (0, "")
    assert out.startswith(f"{path}: intact, ")
    assert out.endswith(f"signed by trusted key {signing_key().public.fingerprint} default\n")


@pytest.mark.parametrize("options", [[], ["--allow-unsigned"]])
@pytest.mark.parametrize(
    ("byte", "message"),
    [
        (0, "not a pyc artifact"),
        (30, "header size"),
        (40, "signature of key"),
        (70, "signature of key"),
        (130, "signature of key"),
        (300, "header altered"),
        (4000, "padding after the header"),
        (4096 + 5, "chunk 0 (w): altered"),
        (4096 + 40, "chunk 0 (w): altered: the 4066 bytes of padding"),
        (-1, "chunk 1 (lib.so): altered"),
    ],
)
def test_altered(byte, message, options, pyc, make_artifact):
    path = make_artifact()
    data = bytearray(path.read_bytes())
    assert len(data) == 2 * 4096 + 9
    data[byte] ^= 0x10
    path.write_bytes(data)
    code, out, err = pyc("verify", path, *options)
    assert (code, out) == (8, "")
    assert err.startswith(f"pyc: error: {path}: ")
    assert message in err


def test_unsigned(pyc, make_artifact):
    path = make_artifact(signed=False)
    code, out, err = pyc("verify", path)
    assert (code, out) == (11, "")
    assert err.startswith(f"pyc: error: {path}: not signed")
    code, out, err = pyc("verify", path, "--allow-unsigned")
    assert (code, err) == (0, "")
    assert out.endswith("not signed\n")


def test_signed_by_a_stranger(pyc, make_artifact):
    path = make_artifact()
    fingerprint = signing_key().public.fingerprint
    remove_trusted(fingerprint)
    code, out, err = pyc("verify", path)
    assert (code, out) == (12, "")
    assert f"signed by key {fingerprint}, which is not trusted here" in err
    code, out, err = pyc("verify", path, "--allow-unsigned")
    assert (code, err) == (0, "")
    assert out.endswith(f"signed by key {fingerprint}, trust not checked\n")


@pytest.mark.parametrize("size", [0, 10, 100, 3000, 5000, -1])
def test_cut(size, pyc, make_artifact):
    path = make_artifact()
    path.write_bytes(path.read_bytes()[:size])
    code, out, err = pyc("verify", path, "--allow-unsigned")
    assert (code, out) == (8, "")
    assert "too short" in err or "truncated" in err


def test_no_such_file(pyc, tmp_path):
    code, out, err = pyc("verify", tmp_path / "none.pyca")
    assert (code, out) == (10, "")
    assert "cannot be opened: No such file or directory" in err


def test_a_pinned_key_counts_whatever_is_trusted(pyc, make_artifact, tmp_path):
    path = make_artifact()
    key = signing_key().public
    other = PublicKey(bytes(32), "other")
    (tmp_path / "builder.pub").write_text(key.text() + "\n")
    remove_trusted(key.fingerprint)
    for given in (key.text(), tmp_path / "builder.pub"):
        code, out, err = pyc("verify", path, "--key", given)
        assert (code, err) == (0, "")
        assert out.endswith(f"signed by trusted key {key.fingerprint} default\n")
    add_trusted(key)
    code, out, err = pyc("verify", path, "--key", other.text())
    assert (code, out) == (12, "")
    assert f"signed by key {key.fingerprint}, expected key {other.fingerprint}" in err
    code, out, err = pyc("verify", make_artifact(signed=False), "--key", key.text())
    assert (code, out) == (11, "")
    assert pyc("verify", path, "--key", tmp_path / "none.pub")[0] == 15  # a key that is missing is no missing artifact
    assert pyc("verify", path, "--key", key.text(), "--allow-unsigned")[0] == 2


def test_what_memory_has_no_room_for_is_not_called_damaged(pyc, make_artifact, monkeypatch):
    def refuse(*arguments, **options):
        raise RunError("standard input: 40 GB of it are to be kept in memory")

    monkeypatch.setattr("pyc.runtime.artifact.reader.open_artifact", refuse)
    code, out, err = pyc("verify", make_artifact(), "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["code"], found["trusted"]) == (9, "unread", 9, None)
    assert found["error"] in err


def test_the_verdict_as_json(pyc, make_artifact, tmp_path):
    path = make_artifact()
    key = signing_key().public
    code, out, _ = pyc("verify", path, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["code"], found["trusted"]) == (0, "intact", 0, True)
    assert (found["signer"], found["size_bytes"], found["chunks"]) == (key.fingerprint, path.stat().st_size, 2)
    code, out, _ = pyc("verify", path, "--json", "--allow-unsigned")
    assert (code, json.loads(out)["trusted"]) == (0, None)
    remove_trusted(key.fingerprint)
    code, out, err = pyc("verify", path, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["code"], found["trusted"]) == (12, "untrusted", 12, False)
    assert found["error"] in err
    facts = (key.fingerprint, path.stat().st_size, 2)
    assert (found["signer"], found["size_bytes"], found["chunks"]) == facts  # the bytes are intact, as the help says
    other = PublicKey(bytes(32), "other")
    code, out, _ = pyc("verify", path, "--json", "--key", other.text())
    found = json.loads(out)
    assert (code, found["verdict"], found["signer"]) == (12, "untrusted", key.fingerprint)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    code, out, _ = pyc("verify", path, "--json")
    assert (code, json.loads(out)["verdict"]) == (8, "damaged")
    code, out, _ = pyc("verify", make_artifact(signed=False), "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["signer"], found["chunks"]) == (11, "unsigned", None, 2)
    code, out, _ = pyc("verify", tmp_path / "none.pyca", "--json")
    assert (code, json.loads(out)["verdict"]) == (10, "missing")


POLICY = "[[rule]]\nartifacts = '{}'\nsigners = ['{}']\n"


@pytest.mark.parametrize("at_fault", ["policy", "named policy", "key store", "revocations"])
def test_an_intact_artifact_is_not_damaged_by_what_is_beside_it(at_fault, pyc, make_artifact, key_home, monkeypatch):
    path = make_artifact()
    faulty = {
        "policy": key_home / "policy.toml",
        "named policy": key_home / "other.toml",
        "key store": key_home / "trusted",
        "revocations": key_home / "revoked",
    }[at_fault]
    if at_fault == "key store":
        faulty.chmod(0o777)
    elif at_fault == "named policy":
        monkeypatch.setenv("PYC_TRUST_POLICY", str(faulty))
    else:
        faulty.write_text("?")
    code, out, err = pyc("verify", path, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["code"], found["trusted"]) == (15, "undecided", 15, None)
    assert (found["size_bytes"], found["chunks"], found["error"] in err) == (path.stat().st_size, 2, True)
    assert f"{path}: intact, but whether it may run here is not known: {faulty}" in err
    assert pyc("verify", path, "--allow-unsigned")[0] == 0
    assert pyc("run", path, "-p", "x")[0] == 15
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    code, out, _ = pyc("verify", path, "--json")
    assert (code, json.loads(out)["verdict"]) == (8, "damaged")


def test_further_signatures_that_nothing_needs_do_not_matter(pyc, make_artifact, key_home, caplog):
    """As where it runs; where one more is needed, what is wrong with their file counts."""
    path = make_artifact()
    path.with_name("model.pyca.sig").write_text("?")
    code, out, _ = pyc("verify", path, "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "intact")
    assert "model.pyca.sig:1: expected 'pyc-signature" in caplog.text
    unsigned = make_artifact(signed=False)
    unsigned.with_name("model.pyca.sig").write_text("?")
    code, out, err = pyc("verify", unsigned, "--json")
    assert (code, json.loads(out)["verdict"]) == (15, "undecided")
    assert "intact, but whether it may run here is not known" in err


def test_which_rule_held(pyc, make_artifact, key_home):
    path = make_artifact()
    key = signing_key().public
    policy = key_home / "policy.toml"
    assert json.loads(pyc("verify", path, "--json")[1])["rule"] is None
    for pattern, rule, said in (
        ("mod*.pyca", "mod*.pyca", f"default, as the rule for 'mod*.pyca' of {policy} asks"),
        ("prod-*", None, f"default; no rule of {policy} fits its name, so that one is enough"),
    ):
        policy.write_text(POLICY.format(pattern, key.fingerprint))
        code, out, _ = pyc("verify", path)
        assert code == 0 and out.endswith(f"{said}\n")
        found = json.loads(pyc("verify", path, "--json")[1])
        assert (found["rule"], found["policy"]) == (rule, str(policy))
    policy.write_text(POLICY.format("*", "0" * 16))
    found = json.loads(pyc("verify", path, "--json")[1])
    assert (found["verdict"], found["rule"]) == ("untrusted", "*")


def test_a_private_key_in_place_of_its_public_half(pyc, make_artifact, key_home):
    """Nothing of it is printed; `pyc trust add` and the key of another tool say the same."""
    artifact = make_artifact()
    (private,) = (key_home / "keys").glob("*.pem")
    other = key_home / "other.pem"
    other.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\n-----END OPENSSH PRIVATE KEY-----\n")
    for arguments, expected in (
        (("verify", artifact, "--key", private), 15),
        (("verify", artifact, "--trust", other), 15),
        (("trust", "add", private), 8),
    ):
        code, out, err = pyc(*arguments)
        assert (code, out) == (expected, "")
        assert "a private key, which signs and stays secret; give its public half, which `pyc keygen --public" in err
        assert not set(private.read_text().splitlines()[1:]) & set(err.split())
        assert "c2Vj" not in err


def test_bytes_are_checked_before_the_policy_that_is_asked_for(pyc, decoder_artifact, tmp_path):
    policy, damaged = tmp_path / "policy.toml", tmp_path / "damaged.pyca"
    policy.write_text("junk")
    data = bytearray(decoder_artifact.read_bytes())
    data[-100] ^= 1
    damaged.write_bytes(data)
    assert pyc("verify", damaged, "--trust", policy)[0] == 8
    code, out, err = pyc("verify", decoder_artifact, "--trust", policy)
    assert (code, out) == (15, "") and "intact, but whether it may run here is not known: " in err
