"""`pyc trust` where this machine's policy decides which keys count: nothing is said that does not hold."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from stopped_clock import TODAY

from pyc.runtime.artifact.trust.key_store import add_trusted, list_trusted, why_not
from pyc.runtime.artifact.trust.keys import PublicKey, SigningKey, new_key_text, parse_public_key, parse_signing_key
from pyc.runtime.artifact.trust.last_days import set_last_day
from pyc.runtime.artifact.trust.policy import read_policy
from pyc.runtime.artifact.trust.revocations import revoke
from pyc.runtime.artifact.trust.updates import Update, parse_update, write_update

LATER = TODAY + timedelta(30)


@pytest.fixture
def a() -> SigningKey:
    return parse_signing_key(new_key_text(), "a", "a")


@pytest.fixture
def b() -> PublicKey:
    return PublicKey(bytes(range(32)), "b")


@pytest.fixture(params=["home", "variable"])
def policy(request, tmp_path, key_home, monkeypatch) -> Path:
    """The file of the machine's policy, in each of its places."""
    key_home.mkdir(mode=0o700)
    if request.param == "home":
        return key_home / "policy.toml"
    monkeypatch.setenv("PYC_TRUST_POLICY", str(tmp_path / "other.toml"))
    return tmp_path / "other.toml"


def write_keys(policy: Path, *keys: PublicKey) -> None:
    policy.write_text(f"keys = {json.dumps([key.text() for key in keys])}\n")


def test_removing_a_key_that_the_policy_holds_is_refused(pyc, policy, a, b):
    """Its file in the store may tell a last day, which would be lost."""
    add_trusted(replace(b, expires=LATER))
    write_keys(policy, a.public, b)
    code, out, err = pyc("trust", "remove", b.fingerprint)
    assert (code, out) == (8, "")
    assert f"key {b.fingerprint} is among the keys of {policy}" in err
    assert f"take its line out of that file, or run: pyc trust revoke {b.fingerprint}; nothing was changed" in err
    assert list_trusted() == (replace(b, expires=LATER),)
    write_keys(policy, a.public)
    assert pyc("trust", "remove", b.fingerprint) == (0, f"removed {b.fingerprint} b\n", "")


@pytest.mark.parametrize(
    ("text", "why", "remedy"),
    [
        ("keys = ['{a}']", "counts for nothing here: the keys of {policy} count", "add '{b}' to `keys` in {policy}"),
        ("revoked = ['{b_print}']", "is revoked by {policy}", "take it out of `revoked` in {policy}"),
        ("[[rule]]\nsigners = ['{a_print}']", "a signer of no rule of {policy}", "add {b_print} to the `signers`"),
    ],
)
def test_a_key_that_would_count_for_nothing(text, why, remedy, pyc, policy, tmp_path, a, b):
    names = {"a": a.public.text(), "b": b.text(), "a_print": a.public.fingerprint, "b_print": b.fingerprint}
    names |= {"policy": str(policy)}
    add_trusted(a.public)
    policy.write_text(text.format(**names))
    code, out, err = pyc("trust", "add", b.text())
    assert (code, out) == (8, "")
    assert why.format(**names) in err and remedy.format(**names) in err and "nothing was changed" in err
    assert list_trusted() == (a.public,)

    leaked = "0" * 16
    update = tmp_path / "update"
    update.write_text(write_update(Update((b,), ((a.public.fingerprint, LATER),), ((leaked, "lost"),)), a))
    code, out, err = pyc("trust", "apply", update)
    assert f"revoked {leaked}\n" in out and f"key {a.public.fingerprint} expires on {LATER}\n" in out
    assert "trusted" not in out
    if text.startswith("revoked"):  # as one that was revoked by a command: nothing is amiss
        assert code == 0 and f"left out key {b.fingerprint}, which is revoked by {policy}\n" in out
        assert b not in list_trusted()
    else:
        assert code == 8 and f"stored {b.fingerprint} b\n" in out
        assert f"{update}: applied, but key {b.fingerprint} " in err and remedy.format(**names) in err
        code, out, err = pyc("trust", "apply", update)  # until it counts
        assert (code, out) == (8, "nothing new\n") and remedy.format(**names) in err
    add_trusted(b)
    rows = {row.get("fingerprint"): row for row in json.loads(pyc("trust", "list", "--json")[1])}
    assert rows[a.public.fingerprint]["trusted"] and not rows[b.fingerprint]["trusted"]
    assert why.format(**names) in rows[b.fingerprint]["refusal"]
    assert rows[a.public.fingerprint]["policy"] == (str(policy) if text.startswith("keys") else None)
    assert why.format(**names) in pyc("trust", "list")[1]


def test_a_policy_with_keys_and_no_store_takes_announcements(pyc, policy, tmp_path, key_home, a, b):
    """Who announces is judged as who signs; what is revoked and last days reach such a machine."""
    write_keys(policy, a.public, b)
    update = tmp_path / "update"
    update.write_text(write_update(Update(expire=((b.fingerprint, LATER),)), a))
    assert pyc("trust", "apply", update) == (0, f"key {b.fingerprint} expires on {LATER}\n", "")
    assert pyc("trust", "list")[1] == (
        f"{a.public.fingerprint}  {a.public.text()}  ({policy})\n"
        f"{b.fingerprint}  {replace(b, expires=LATER).text()}  ({policy})\n"
    )
    update.write_text(write_update(Update((b,), revoke=((b.fingerprint, "it leaked"),)), a))
    code, out, _ = pyc("trust", "apply", update)
    assert code == 0 and out.startswith(f"revoked {b.fingerprint}\nleft out key {b.fingerprint}")
    assert "was revoked" in (why_not(b) or "") and not (key_home / "trusted").exists()
    update.write_text(write_update(Update(revoke=((a.public.fingerprint, ""),)), a))
    pyc("trust", "apply", update)
    code, out, err = pyc("trust", "apply", update)
    assert (code, out) == (12, "") and f"signed by key {a.public.fingerprint}, which was revoked on" in err


def test_keys_that_the_policy_lets_count(pyc, policy, tmp_path, a, b):
    """Once the policy holds the key, the same announcement and `add` say that it is trusted, until the earlier day."""
    write_keys(policy, a.public, replace(b, expires=LATER))
    update = tmp_path / "update"
    update.write_text(write_update(Update(trust=(b,)), a))
    assert pyc("trust", "apply", update) == (0, f"trusted {b.fingerprint} b, until {LATER}\n", "")
    later = str(LATER + timedelta(1))
    assert pyc("trust", "add", b.text(), "--expires", later)[1] == f"trusted {b.fingerprint} b, until {LATER}\n"
    policy.write_text(f'[[rule]]\nartifacts = "prod-*"\nsigners = ["{a.public.fingerprint}"]\n')
    kept = f"trusted {b.fingerprint} b, until {later}, as before; --expires sets another day\n"
    assert pyc("trust", "add", b.text()) == (0, kept, "")


def test_a_policy_that_cannot_be_read(pyc, policy, key_home, b):
    policy.write_text("keys = [")
    for arguments in (("add", b.text()), ("remove", b.fingerprint), ("list",)):
        code, out, err = pyc("trust", *arguments)
        assert (code, out) == (15, "") and str(policy) in err
    assert not (key_home / "trusted").exists()


def test_inspect_asks_the_policy_for_the_key(pyc, make_artifact, key_home):
    artifact = make_artifact()
    (public,) = list_trusted()
    (key_home / "policy.toml").write_text(f'keys = ["{public.text()}"]\n')
    (key_home / "trusted" / f"{public.fingerprint}.pub").unlink()
    assert f"{public.fingerprint} (trusted, default)" in pyc("inspect", artifact)[1]
    assert is_trusted_in_json(pyc, artifact)
    (key_home / "policy.toml").write_text(f'keys = ["{PublicKey(bytes(32)).text()}"]\n')
    add_trusted(public)
    out = pyc("inspect", artifact)[1]
    assert f"{public.fingerprint} (not trusted here)" in out and "pyc trust add" not in out
    assert not is_trusted_in_json(pyc, artifact)
    (key_home / "policy.toml").write_text(f'revoked = ["{public.fingerprint}"]\n')
    assert not is_trusted_in_json(pyc, artifact)
    (key_home / "policy.toml").write_text("keys = [")
    code, out, _ = pyc("inspect", artifact)
    assert code == 0 and f"{public.fingerprint} (not known whether trusted)" in out
    assert not is_trusted_in_json(pyc, artifact)


def test_inspect_tells_what_it_can_where_the_store_cannot_be_read(pyc, make_artifact, key_home):
    artifact = make_artifact()
    (public,) = list_trusted()
    (key_home / "trusted" / f"{public.fingerprint}.pub").chmod(0o666)
    code, out, _ = pyc("inspect", artifact)
    assert code == 0 and f"{public.fingerprint} (not known whether trusted)" in out
    assert not is_trusted_in_json(pyc, artifact)
    (key_home / "policy.toml").write_text(f'keys = ["{public.text()}"]\nrevoked = ["{public.fingerprint}"]\n')
    code, out, _ = pyc("inspect", artifact)
    assert code == 0 and f"{public.fingerprint} (revoked by {key_home / 'policy.toml'})" in out


def is_trusted_in_json(pyc, artifact):
    """What `inspect --json` says of the key that signed an artifact."""
    return json.loads(pyc("inspect", artifact, "--json")[1])["signature"]["trusted"]


def test_doctor_names_keys_that_the_policy_revokes(pyc, policy, b):
    add_trusted(b)
    policy.write_text(f'revoked = ["{b.fingerprint}"]\n')
    found = {each["name"]: each for each in json.loads(pyc("doctor", "--json")[1])}
    assert found["trusted keys"]["found"] == f"{b.fingerprint} (is revoked by {policy})"


@pytest.mark.parametrize("subject", ["0" * 16, "header:" + "0" * 64])
def test_restoring_what_the_policy_revokes_is_refused(subject, pyc, policy):
    pyc("trust", "revoke", subject)
    policy.write_text(f'revoked = ["{subject}"]\n')
    code, out, err = pyc("trust", "restore", subject)
    assert (code, out) == (8, "") and f"{subject} is revoked by {policy}; take it out of `revoked` there" in err
    policy.write_text("[[rule]]\n")
    assert pyc("trust", "restore", subject) == (0, f"{subject} is revoked no more\n", "")


@pytest.mark.parametrize("told", ["announced", "stored"])
def test_a_bundle_takes_the_last_day_of_a_key_that_the_policy_holds_along(told, pyc, policy, make_artifact, tmp_path):
    """Its trust.toml decides on machines that know nothing of announcements and key stores here."""
    artifact = make_artifact()
    key = list_trusted()[0]
    write_keys(policy, replace(key, expires=LATER + timedelta(9)))
    if told == "stored":
        add_trusted(replace(key, expires=LATER))
    else:
        set_last_day(key.fingerprint, LATER)
    bundle = tmp_path / "made"
    assert pyc("bundle", artifact, "-o", bundle, "--no-wheels")[0] == 0
    assert read_policy(bundle / "trust.toml").keys == (replace(key, expires=LATER),)


def test_a_revocation_by_the_policy_holds_where_the_store_cannot_be_read(pyc, policy, make_artifact, key_home):
    artifact = make_artifact()
    key = list_trusted()[0]
    policy.write_text(f"keys = ['{key.text()}']\nrevoked = ['{key.fingerprint}']\n")
    (key_home / "trusted" / f"{key.fingerprint}.pub").chmod(0o666)
    code, _, err = pyc("verify", artifact)
    assert code == 12 and f"is revoked by {policy}" in err


def test_an_announcement_tells_the_last_day_of_a_key_here(pyc, key_home, tmp_path, b):
    """Who did not get the one that set it would have the key for ever."""
    assert pyc("keygen")[0] == 0
    set_last_day(b.fingerprint, LATER)
    code, out, err = pyc("trust", "announce", "-o", tmp_path / "new.update", "--trust", b.text())
    assert (code, err) == (0, "")
    assert f"key {b.fingerprint} until {LATER}, its last day here" in out
    assert parse_update((tmp_path / "new.update").read_text(), "").trust == (replace(b, expires=LATER),)


def test_the_last_day_in_the_policy_goes_with_a_key(pyc, policy, tmp_path):
    """Into what others are told to trust, as that of the store and of announcements does."""
    key = parse_public_key(pyc("keygen")[1])
    write_keys(policy, replace(key, expires=LATER))
    update = tmp_path / "new.update"
    code, out, err = pyc("trust", "announce", "-o", update, "--trust", key.text())
    assert (code, err) == (0, "") and f"key {key.fingerprint} until {LATER}, its last day here" in out
    assert parse_update(update.read_text(), "").trust == (replace(key, expires=LATER),)
    assert pyc("keygen", "--public") == (0, f"{replace(key, expires=LATER).text()}\n", "")
    assert pyc("trust", "add", key.text())[1] == f"trusted {key.fingerprint} {key.comment}, until {LATER}\n"
    write_keys(policy, replace(key, expires=TODAY - timedelta(1)))
    code, _, err = pyc("keygen", "--public")
    assert code == 8 and f"expired on {TODAY - timedelta(1)}" in err


@pytest.mark.parametrize("place", ["line", "policy", "announced"])
def test_a_key_that_expired_is_not_announced(place, pyc, policy, tmp_path, b):
    policy.write_text("[[rule]]\n")
    assert pyc("keygen")[0] == 0
    past = replace(b, expires=TODAY - timedelta(1))
    if place == "policy":
        write_keys(policy, past)
    elif place == "announced":
        set_last_day(b.fingerprint, TODAY - timedelta(1))
    given = past if place == "line" else b
    code, out, err = pyc("trust", "announce", "-o", tmp_path / "new.update", "--trust", given.text())
    assert (code, out) == (8, "") and not (tmp_path / "new.update").exists()
    assert f"key {b.fingerprint} expired on {past.expires}" in err and "announce its successor" in err


def test_a_key_that_is_revoked_is_not_announced(pyc, policy, tmp_path, b):
    assert pyc("keygen")[0] == 0
    announce = ("trust", "announce", "-o", tmp_path / "new.update", "--trust", b.text())
    policy.write_text(f"revoked = ['{b.fingerprint}']\n")
    code, out, err = pyc(*announce)
    assert (code, out) == (8, "") and f"key {b.fingerprint} is revoked by {policy}; take it out of `revoked`" in err
    policy.write_text("[[rule]]\n")
    revoke(b.fingerprint)
    code, out, err = pyc(*announce)
    assert (code, out) == (8, "") and f"first: pyc trust restore {b.fingerprint}" in err
    assert not (tmp_path / "new.update").exists()


def test_what_is_applied_tells_the_last_day(pyc, tmp_path, key_home, a, b):
    add_trusted(a.public)
    update = tmp_path / "new.update"
    update.write_text(write_update(Update((replace(b, expires=LATER),)), a))
    assert pyc("trust", "apply", update) == (0, f"trusted {b.fingerprint} b, until {LATER}\n", "")
    past = replace(b, expires=TODAY - timedelta(1))
    update.write_text(write_update(Update((past,)), a))
    assert pyc("trust", "apply", update) == (0, f"stored {b.fingerprint} b, which expired on {past.expires}\n", "")
