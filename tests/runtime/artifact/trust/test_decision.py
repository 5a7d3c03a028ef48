"""runtime/artifact/trust: expiry, revocation, further signatures and policies decide what may run."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from stopped_clock import TODAY

from pyc.runtime.artifact.format import Prelude
from pyc.runtime.artifact.trust import decision
from pyc.runtime.artifact.trust.decision import decide, require_trusted
from pyc.runtime.artifact.trust.key_store import add_trusted, is_trusted, remove_trusted
from pyc.runtime.artifact.trust.keys import SigningKey, new_key_text, parse_signing_key
from pyc.runtime.artifact.trust.names import names_of
from pyc.runtime.artifact.trust.policy import machine_policy, parse_policy, trust_of
from pyc.runtime.artifact.trust.revocations import list_revoked, restore, revoke
from pyc.runtime.artifact.trust.signature_file import add_signature, read_signatures, signature_file
from pyc.runtime.errors import ArtifactError, TrustError, UnsignedArtifactError, UntrustedArtifactError
from pyc.runtime.sources.places import Remote

PRELUDE = Prelude(0, 10, bytes(range(32)))
DIGEST = bytes(range(32)).hex()
YESTERDAY = TODAY - timedelta(1)


def new_key(name: str) -> SigningKey:
    return parse_signing_key(new_key_text(), name, name)


@pytest.fixture
def keys() -> list[SigningKey]:
    return [new_key(name) for name in ("ada", "ben", "cyd")]


@pytest.fixture
def home(tmp_path: Path, keys: list[SigningKey]) -> Path:
    """A key store that trusts ada and ben."""
    for key in keys[:2]:
        add_trusted(key.public, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def signed(tmp_path: Path):
    """Make an artifact that these keys signed, the first in the file itself."""

    def make(*signers: SigningKey, name: str = "prod-7.pyca") -> SimpleNamespace:
        path = tmp_path / name
        signature_file(path).unlink(missing_ok=True)
        for key in signers[1:]:
            add_signature(path, key.sign(PRELUDE.pack()))
        record = signers[0].sign(PRELUDE.pack()) if signers else None
        return SimpleNamespace(path=path, prelude=PRELUDE, signature=record)

    return make


def names(signers) -> list[str]:
    return [each.key.comment for each in signers]


def test_a_key_counts_to_the_end_of_its_last_day(home: Path, keys: list[SigningKey], signed) -> None:
    add_trusted(replace(keys[0].public, expires=TODAY), home)
    assert names(require_trusted(signed(keys[0]), home=home)) == ["ada"]
    add_trusted(replace(keys[0].public, expires=YESTERDAY), home)
    assert not is_trusted(keys[0].public.raw, home)
    with pytest.raises(UntrustedArtifactError, match=rf"key {keys[0].public.fingerprint} expired on {YESTERDAY}; get"):
        require_trusted(signed(keys[0]), home=home)


def test_what_is_revoked_does_not_run_whoever_trusts_it(home: Path, keys: list[SigningKey], signed) -> None:
    artifact = signed(keys[0])
    revoke(keys[0].public.fingerprint, "it leaked\x1b[2J", home)
    with pytest.raises(UntrustedArtifactError, match=rf"was revoked on {TODAY}: it leaked \[2J"):
        require_trusted(artifact, home=home)
    with pytest.raises(UntrustedArtifactError, match="was revoked"):  # a key that the caller names, too
        require_trusted(artifact, trust_of(keys[0].public.text()), home=home)
    with pytest.raises(ArtifactError, match=r"was revoked .* pyc trust restore"):
        add_trusted(keys[0].public, home)
    remove_trusted(keys[0].public.fingerprint, home)
    assert [each.subject for each in list_revoked(home)] == [keys[0].public.fingerprint]
    restore(keys[0].public.fingerprint, home)
    add_trusted(keys[0].public, home)
    require_trusted(artifact, home=home)
    revoke(DIGEST, "wrong tokenizer", home)
    with pytest.raises(UntrustedArtifactError, match=r"this artifact was revoked .*wrong tokenizer"):
        require_trusted(artifact, home=home)


def test_a_revocation_that_cannot_be_read_counts(home: Path, keys: list[SigningKey], signed) -> None:
    folder = home / "revoked"
    folder.mkdir(mode=0o700)
    (folder / keys[0].public.fingerprint).write_bytes(b"\xff\xfe")
    with pytest.raises(UntrustedArtifactError, match="was revoked here"):
        require_trusted(signed(keys[0]), home=home)
    (folder / keys[0].public.fingerprint).unlink()
    (folder / keys[0].public.fingerprint).symlink_to("nowhere")
    with pytest.raises(ArtifactError, match="cannot be read"):
        require_trusted(signed(keys[0]), home=home)


def test_where_revocations_cannot_be_looked_up_nothing_runs(home: Path, keys: list[SigningKey], signed) -> None:
    """A file in the folder's place: as with a folder that this user may not enter, there is no telling."""
    (home / "revoked").write_text("")
    with pytest.raises(ArtifactError, match="so what was revoked is not known"):
        require_trusted(signed(keys[0]), home=home)


def test_a_service_of_another_user_reads_what_root_revoked(home: Path, keys: list[SigningKey]) -> None:
    before = os.umask(0o022)
    try:
        revoke(keys[0].public.fingerprint, "", home)
    finally:
        os.umask(before)
    assert (home / "revoked").stat().st_mode & 0o777 == 0o755


def test_others_cannot_undo_a_revocation(home: Path, keys: list[SigningKey], signed) -> None:
    revoke(keys[0].public.fingerprint, "", home)
    (home / "revoked").chmod(0o777)
    with pytest.raises(ArtifactError, match=r"others may write to it .* restore keys"):
        require_trusted(signed(keys[0]), home=home)


def test_a_signature_beside_the_artifact_counts(home: Path, keys: list[SigningKey], signed) -> None:
    ada, ben, cyd = keys
    with pytest.raises(UntrustedArtifactError, match="not trusted here"):
        require_trusted(signed(cyd), home=home)
    assert names(require_trusted(signed(cyd, ben), home=home)) == ["ben"]
    artifact = signed(cyd, ben)
    artifact.signature = None
    assert names(require_trusted(artifact, home=home)) == ["ben"]
    artifact.prelude = replace(PRELUDE, header_sha256=bytes(32))  # built again: the signature beside it is of the old
    with pytest.raises(UntrustedArtifactError, match="signed other bytes than these"):
        require_trusted(artifact, home=home)
    assert len(read_signatures(signed(ada, ben, cyd).path)) == 2
    add_signature(artifact.path, ben.sign(PRELUDE.pack()))  # in place of ben's own
    assert len(read_signatures(artifact.path)) == 2


def test_who_signs_at_once_loses_no_signature(keys: list[SigningKey], signed) -> None:
    path, more = signed(keys[0]).path, [new_key(str(number)) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: add_signature(path, key.sign(PRELUDE.pack())), more))
    assert {record.public_key for record in read_signatures(path)} == {key.public.raw for key in more}


@pytest.mark.parametrize(
    "text", ["nonsense", "pyc-signature AAAA", "pyc-signature AAAA AAAA", "pyc-signature é é", "a b c d"]
)
def test_a_damaged_file_of_signatures(text: str, home: Path, keys: list[SigningKey], signed) -> None:
    artifact = signed(keys[2])
    signature_file(artifact.path).write_text(f"# of the release\n\n{text}\n")
    with pytest.raises(ArtifactError, match=r"prod-7\.pyca\.sig:3: expected 'pyc-signature"):
        require_trusted(artifact, home=home)


def test_two_signatures_are_two_keys(home: Path, keys: list[SigningKey], signed) -> None:
    ada, ben, cyd = keys
    policy = parse_policy('[[rule]]\nartifacts = "prod-*"\nthreshold = 2\n', "policy.toml")
    assert names(require_trusted(signed(ada, ben), policy, home=home)) == ["ada", "ben"]
    for signers in ((ada,), (ada, ada), (ada, cyd), (cyd,)):
        with pytest.raises(UntrustedArtifactError, match=r"[01] of the 2 signatures .*'prod-\*' by policy.toml"):
            require_trusted(signed(*signers), policy, home=home)
    with pytest.raises(UnsignedArtifactError):
        require_trusted(signed(), policy, home=home)
    assert names(require_trusted(signed(ada, name="test-7.pyca"), policy, home=home)) == ["ada"]


def test_a_rule_names_its_signers(home: Path, keys: list[SigningKey], signed) -> None:
    ada, ben, _ = keys
    policy = parse_policy(f'[[rule]]\nartifacts = "prod-*"\nsigners = ["{ada.public.fingerprint}"]\n', "p.toml")
    assert names(require_trusted(signed(ada), policy, home=home)) == ["ada"]
    with pytest.raises(UntrustedArtifactError, match=r"is not a signer of 'prod-\*' \(p\.toml"):
        require_trusted(signed(ben), policy, home=home)
    nobody = parse_policy('[[rule]]\nartifacts = "prod-*"\nsigners = []\n', "p.toml")
    with pytest.raises(UntrustedArtifactError, match="is not a signer"):
        require_trusted(signed(ada), nobody, home=home)


def test_a_refusal_says_whom_to_trust_where_that_is_all_it_takes(home: Path, keys: list[SigningKey], signed) -> None:
    ada, ben, cyd = keys
    dot, add = new_key("dot"), "pyc trust add 'pyc-ed25519 "
    two = parse_policy('[[rule]]\nartifacts = "prod-*"\nthreshold = 2\n', "p.toml")
    first = parse_policy(f'[[rule]]\nsigners = ["{ada.public.fingerprint}"]\n', "p.toml")
    own = parse_policy(f'keys = ["{ada.public.text()}", "{dot.public.text()}"]\n[[rule]]\nthreshold = 2\n', "p.toml")
    cases = [
        (two, (ada, cyd), rf"1 of the 2 .* is not trusted here; if you trust its owner with running code: {add}"),
        (two, (cyd, dot), rf"0 of the 2 .*; if you trust their owners with running code: {add}.* and {add}"),
        (two, (cyd,), r"0 of the 2 .*; have another key sign it: pyc sign"),
        (first, (cyd,), r"no signature .* is not trusted here; have another key sign it"),
        (own, (ada, ben), r"1 of the 2 .*; if you trust its owner .*: add 'pyc-ed25519 .*' to the keys of p\.toml"),
        (None, (cyd, dot), rf"by key \w+ and key \w+, none of which .* one of their owners .*: {add}.* or {add}"),
        (None, (cyd,), rf"by key \w+, which is not trusted here; if you trust its owner with running code: {add}"),
    ]
    for policy, signers, message in cases:
        with pytest.raises(UntrustedArtifactError, match=message):
            require_trusted(signed(*signers), policy, home=home)
    add_trusted(cyd.public, home)  # as the first of these says
    assert names(require_trusted(signed(ada, cyd), two, home=home)) == ["ada", "cyd"]


def test_a_policy_with_keys_needs_no_store(tmp_path: Path, keys: list[SigningKey], signed) -> None:
    ada, ben, cyd = keys
    late = replace(cyd.public, expires=YESTERDAY)
    lines = ", ".join(f'"{key.text()}"' for key in (ada.public, ben.public, late))
    policy = parse_policy(f'keys = [{lines}]\nrevoked = ["{ben.public.fingerprint}"]\n', "p.toml")
    empty = tmp_path / "empty"
    assert names(require_trusted(signed(ada), policy, home=empty)) == ["ada"]
    with pytest.raises(UntrustedArtifactError, match=r"is revoked by p\.toml"):
        require_trusted(signed(ben), policy, home=empty)
    with pytest.raises(UntrustedArtifactError, match=f"expired on {YESTERDAY}"):
        require_trusted(signed(cyd), policy, home=empty)
    with pytest.raises(UntrustedArtifactError, match=r"which p\.toml lacks"):
        require_trusted(signed(new_key("eve")), policy, home=empty)
    one = parse_policy(f'keys = ["{ada.public.text()}"]\n', "p.toml")
    fingerprint = ada.public.fingerprint
    with pytest.raises(UntrustedArtifactError, match=rf"expected key {fingerprint} by p\.toml$"):
        require_trusted(signed(ben), one, home=empty)
    with pytest.raises(UnsignedArtifactError, match=rf"expected a signature by key {fingerprint} by p\.toml$"):
        require_trusted(signed(), one, home=empty)
    revoked = parse_policy(f'keys = [{lines}]\nrevoked = ["{DIGEST}"]\n', "p.toml")
    with pytest.raises(UntrustedArtifactError, match=r"this artifact is revoked by p\.toml"):
        require_trusted(signed(ada), revoked, home=empty)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("threshold = 2", "unknown field `threshold`"),
        ("[[rule]]\nthreshold = 0", "Expected `int` >= 1"),
        ("[[rule]]\nsigners = ['xyz']", "matching regex"),
        ("[[rule]]\nsigners = ['0123456789abcdef']\nthreshold = 2", "asks for 2 signatures of 1 keys"),
        ("keys = ['pyc-ed25519 AAAA']", "3 bytes, expected 32"),
        ("revoked = ['all']", "expected a key's fingerprint"),
        ("rule = 5", "Expected `array`, got `int`"),
        ("a = [" * 5000, "not a trust policy"),
        ("x = ", "not a trust policy"),
        ("[[rule]]\nartifacts = 'models/*'", "fits no name: a name has no slash"),
        ("[[rule]]\nartifacts = 'a[a]*[a-'", r"fits no name: '\[' is not closed"),
        ("[[rule]]\nartifacts = '[!]'", "is not closed"),
        ("[[rule]]\nartifacts = '*[]a][z-a]'", r"'\[z-a\]' is a range from a letter to an earlier one"),
        ("", "says nothing"),
        ("# [[rule]]\nrule = []\n", "says nothing"),
    ],
)
def test_a_policy_that_is_wrong_lets_nothing_run(text: str, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        parse_policy(text, "policy.toml")


def test_a_file_that_is_neither_a_key_nor_a_policy_is_told_as_both(keys: list[SigningKey], tmp_path: Path) -> None:
    """A public key with a line before it is what a user has in mind more often than a policy."""
    path = tmp_path / "builder.pub"
    path.write_text(f"my key\n{keys[0].public.text()}\n")
    with pytest.raises(TrustError, match="neither a public key, which is a line that begins with pyc-ed25519, nor a"):
        trust_of(str(path))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (Path("/srv/prod-7.pyca"), "prod-7.pyca"),
        (Remote("https://user:pw@host/a/prod-7.pyca?token=x"), "prod-7.pyca"),
        (Remote("oci://host/team/coder:7"), "coder:7"),
        (Remote(f"oci://host/team/coder@sha256:{DIGEST}"), f"coder@sha256:{DIGEST}"),
        (Remote("-"), "standard input"),
        (Remote("oci://host/team/coder"), "coder:latest"),
        (Remote("OCI://HOST:5000/coder"), "coder:latest"),
        (Remote(f"oci://host/team/coder:7@sha256:{DIGEST}"), f"coder@sha256:{DIGEST}"),
        (Remote("https://host/prod%2D7.pyca"), "prod-7.pyca"),
        (Remote("https://host/%70rod-7%2Epyca?x=/test.pyca#/other.pyca"), "prod-7.pyca"),
        (Remote("https://host/my%20model.pyca"), "my model.pyca"),
        (Remote("https://host/prod%252D7.pyca"), "prod%2D7.pyca"),
        (Remote("https://host/a%2Fprod-7.pyca"), "prod-7.pyca"),
        (Remote("https://host/prod-7.pyca/"), "prod-7.pyca"),
        (Remote("https://host//a//prod-7.pyca//."), "prod-7.pyca"),
        (Remote("HTTP://host/prod-7.pyca/x/%2e%2E"), "prod-7.pyca"),
        (Remote("https://host?/prod-7.pyca"), ""),
        (Remote("s3://bucket/dev/x.pyca#/prod-7.pyca"), "prod-7.pyca"),
        (Remote("s3://bucket/prod%2D7.pyca"), "prod%2D7.pyca"),
        (Path("./prod-7.pyca/."), "prod-7.pyca"),
    ],
)
def test_the_name_that_a_rule_looks_at(place: Path | Remote, name: str) -> None:
    assert names_of(place)[0] == name
    rules = "".join(f"[[rule]]\nartifacts = {json.dumps(each)}\n" for each in (f"{name}?", name or "[!*]", "*"))
    rule = parse_policy(rules, "policy.toml").rule_for(names_of(place))
    assert rule is not None and rule.artifacts == (name or "*")


@pytest.mark.parametrize(
    ("place", "pattern"),
    [
        ("oci://host/team/coder", "coder:*"),
        ("oci://host/team/coder:7", "coder:*"),
        ("https://host/prod%2D7.pyca", "prod-*.pyca"),
        ("https://host/%70rod-7.pyca", "prod-*.pyca"),
        ("https://host/prod-7.pyca/", "prod-*.pyca"),
    ],
)
def test_another_spelling_is_under_the_same_rule(
    place: str, pattern: str, home: Path, keys: list[SigningKey], signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "read_signatures", lambda place: ())
    artifact = signed(keys[0])
    artifact.path = Remote(place)
    policy = parse_policy(f'[[rule]]\nartifacts = "{pattern}"\nthreshold = 2\n[[rule]]\n', "policy.toml")
    with pytest.raises(UntrustedArtifactError, match="has 1 of the 2 signatures"):
        require_trusted(artifact, policy, home=home)


@pytest.mark.parametrize(
    ("place", "pattern"),
    [
        ("oci://host/team/coder", "coder"),
        (f"oci://host/team/coder:7@sha256:{DIGEST}", "coder:*"),
        ("https://host/my%20model.pyca", "my%20model.pyca"),
        ("s3://bucket/dev.pyca#/x.pyca", "dev.pyca"),
    ],
)
def test_a_rule_that_fits_a_spelling_alone_lets_nothing_run(
    place: str, pattern: str, home: Path, keys: list[SigningKey], signed
) -> None:
    """The name of what is read would be under the next rule, which may ask for less, or for more."""
    artifact = signed(keys[0])
    artifact.path = Remote(place)
    rules = f'[[rule]]\nartifacts = "{pattern}"\nthreshold = 2\n[[rule]]\n'
    policy = parse_policy(rules, "policy.toml")
    with pytest.raises(TrustError, match=r"what is read is called .* fits .* alone, so which rule holds is not known"):
        require_trusted(artifact, policy, home=home)
    policy = parse_policy(f'[[rule]]\nartifacts = "{names_of(artifact.path)[0]}"\n{rules}', "policy.toml")
    assert names(require_trusted(artifact, policy, home=home)) == ["ada"]


def test_the_machines_policy(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYC_HOME", str(home))
    monkeypatch.delenv("PYC_TRUST_POLICY", raising=False)
    assert machine_policy().rules == ()
    (home / "policy.toml").write_text("[[rule]]\nthreshold = 2\n")
    assert machine_policy().rules[0].threshold == 2
    (home / "policy.toml").chmod(0o666)
    with pytest.raises(ArtifactError, match=r"others may write to it .* change what is trusted"):
        machine_policy()
    (tmp_path / "other.toml").write_text("[[rule]]\nthreshold = 3\n")
    monkeypatch.setenv("PYC_TRUST_POLICY", str(tmp_path / "other.toml"))
    assert machine_policy().rules[0].threshold == 3
    for value, message in (("", "is set, but empty"), (str(tmp_path / "none"), "cannot be read")):
        monkeypatch.setenv("PYC_TRUST_POLICY", value)
        with pytest.raises(ArtifactError, match=message):
            machine_policy()


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_policy_that_others_may_write_to_lets_nothing_run(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("[[rule]]\nthreshold = 2\n")
    monkeypatch.setenv("PYC_TRUST_POLICY", str(path))
    assert machine_policy() == trust_of(str(path))
    path.chmod(mode)
    for read in (machine_policy, lambda: trust_of(str(path))):
        with pytest.raises(ArtifactError, match=r"others may write to it .* chmod go-w"):
            read()


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_the_machines_policy_comes_from_no_pipe(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first who asks would get it, and the second an empty one; a file by its descriptor can be read again."""
    policy = b"[[rule]]\nthreshold = 2\n"
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as pipe:
        with open(writing, "wb", buffering=0) as file:
            file.write(policy)
        monkeypatch.setenv("PYC_TRUST_POLICY", f"{folder}/{reading}")
        for _ in range(2):
            with pytest.raises(TrustError, match=rf"\$PYC_TRUST_POLICY: {folder}/{reading} is a pipe, .* to a file"):
                machine_policy()
        assert pipe.read() == policy
    (tmp_path / "policy.toml").write_bytes(policy)
    with open(tmp_path / "policy.toml", "rb") as file:
        monkeypatch.setenv("PYC_TRUST_POLICY", f"{folder}/{file.fileno()}")
        assert [machine_policy().rules[0].threshold for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("place", ["revoked", "last-days"])
def test_a_store_from_which_others_may_have_removed_something_counts_for_nothing(
    home: Path, keys: list[SigningKey], signed, place: str
) -> None:
    """The entry need not be there any more."""
    artifact = signed(keys[0])
    (home / place).mkdir()
    assert require_trusted(artifact, home=home)
    for mode in (0o777, 0o775):
        (home / place).chmod(mode)
        with pytest.raises(ArtifactError, match=rf"{place}: others may write to it \(mode {mode:o}\).*chmod go-w"):
            require_trusted(artifact, home=home)


def test_no_key_is_trusted_in_a_store_that_counts_for_nothing(home: Path, keys: list[SigningKey]) -> None:
    (home / "trusted").chmod(0o777)
    with pytest.raises(ArtifactError, match=r"trusted: others may write to it \(mode 777\)"):
        add_trusted(keys[2].public, home)
    (home / "trusted").chmod(0o755)
    assert not is_trusted(keys[2].public.raw, home)


def test_a_malformed_file_of_signatures_matters_where_more_are_needed(
    home: Path, keys: list[SigningKey], signed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    artifact = signed(keys[0])
    signature_file(artifact.path).write_text("junk\n")
    assert names(require_trusted(artifact, home=home)) == ["ada"]
    assert caplog.messages == []  # not read
    found = decide(artifact, home=home, looks_at_all=True)
    assert found.refusal is None and names(found.good) == ["ada"]
    assert "prod-7.pyca.sig:1: expected 'pyc-signature" in caplog.text and "further ones were not read" in caplog.text
    for signers in ([], [keys[2]]):
        unsigned = signed(*signers)
        signature_file(unsigned.path).write_text("junk\n")
        with pytest.raises(ArtifactError, match="expected 'pyc-signature"):
            decide(unsigned, home=home, looks_at_all=True)
