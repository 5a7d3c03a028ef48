"""`pyc trust`: list, add, remove."""

import json
import shutil
from dataclasses import replace
from datetime import date

import pytest

from pyc.runtime.artifact.trust.keys import PublicKey
from pyc.runtime.artifact.trust.last_days import set_last_day

KEY = PublicKey(bytes(range(32)), "Ada")


def test_add_a_line_then_remove_it(pyc, key_home):
    assert pyc("trust", "list") == (0, "", "")
    assert pyc("trust", "add", KEY.text()) == (0, f"trusted {KEY.fingerprint} Ada\n", "")
    assert pyc("trust", "list") == (0, f"{KEY.fingerprint}  {KEY.text()}\n", "")
    row = {"fingerprint": KEY.fingerprint, "public_key": KEY.text(), "comment": "Ada"}
    row |= {"expires": None, "trusted": True, "refusal": None, "policy": None}
    assert json.loads(pyc("trust", "list", "--json")[1]) == [row]
    assert pyc("trust", "remove", KEY.fingerprint) == (0, f"removed {KEY.fingerprint} Ada\n", "")
    assert pyc("trust", "list") == (0, "", "")
    assert pyc("trust", "list", "--json") == (0, "[]\n", "")


def test_add_a_file(pyc, tmp_path):
    (tmp_path / "ada.pub").write_text(KEY.text() + "\n")
    assert pyc("trust", "add", tmp_path / "ada.pub")[0] == 0
    assert KEY.fingerprint in pyc("trust", "list")[1]


def test_adding_twice_changes_nothing(pyc):
    pyc("trust", "add", KEY.text())
    assert pyc("trust", "add", KEY.text())[0] == 0
    assert len(pyc("trust", "list")[1].splitlines()) == 1


def test_a_line_without_a_day_leaves_the_day_that_is_there(pyc, key_home):
    """As the line of a key that an error shows, which has none."""
    day, other = date(2126, 1, 1), date(2127, 1, 1)
    assert pyc("trust", "add", replace(KEY, expires=day).text())[1] == f"trusted {KEY.fingerprint} Ada, until {day}\n"
    renamed = replace(KEY, comment="Ada L")
    said = f"trusted {KEY.fingerprint} Ada L, until {day}, as before; --expires sets another day\n"
    assert pyc("trust", "add", renamed.text())[1] == said
    assert f"expires={day}" in pyc("trust", "list")[1]
    assert pyc("trust", "add", replace(KEY, expires=other).text())[1].endswith(f"until {other}\n"), "a day of its own"
    assert pyc("trust", "add", KEY.text(), "--expires", str(day))[1].endswith(f"until {day}\n")
    past = replace(KEY, expires=date(2020, 1, 1)).text() + "\n"
    (key_home / "trusted" / f"{KEY.fingerprint}.pub").write_text(past)
    code, out, err = pyc("trust", "add", KEY.text())
    assert (code, out) == (8, "") and "expired on 2020-01-01, as it is trusted here; trust its successor, or set" in err
    assert pyc("trust", "remove", KEY.fingerprint)[0] == 0
    assert pyc("trust", "add", KEY.text())[1] == f"trusted {KEY.fingerprint} Ada\n"


def test_a_day_that_was_announced_is_no_day_that_an_option_moves(pyc, key_home):
    set_last_day(KEY.fingerprint, date(2126, 1, 1), key_home)
    for _ in range(2):
        assert pyc("trust", "add", KEY.text())[1] == f"trusted {KEY.fingerprint} Ada, until 2126-01-01\n"
    set_last_day(KEY.fingerprint, date(2020, 1, 1), key_home)
    code, out, err = pyc("trust", "add", KEY.text())
    assert (code, out) == (8, "") and "expired on 2020-01-01, as was announced; trust its successor, or, to" in err


def test_bad_keys_and_fingerprints(pyc, tmp_path, key_home):
    (tmp_path / "bad.pub").write_text("ssh-ed25519 AAAA me")
    for arguments, message in (
        (("add", "pyc-ed25519 AAAA"), "3 bytes, expected 32"),
        (("add", tmp_path / "bad.pub"), "not a public key"),
        (("add", tmp_path / "none.pub"), "cannot be read: No such file"),
        (("remove", "0" * 16), "is not among the trusted keys"),
        (("remove", "../../x"), "is not a fingerprint"),
    ):
        code, out, err = pyc("trust", *arguments)
        assert (code, out) == (8, "")
        assert message in err
    assert not key_home.exists()


def test_a_last_day_that_is_past_is_refused(pyc, tmp_path, key_home):
    """Of the option, of a key's own line, and of an announcement: what one asks for would be nothing."""
    code, out, err = pyc("trust", "add", KEY.text(), "--expires", "2001-01-01")
    assert (code, out) == (2, "") and "'--expires': 2001-01-01 is past" in err
    old = replace(KEY, expires=date(2001, 1, 1)).text()
    code, out, err = pyc("trust", "add", old)
    assert (code, out) == (8, "") and "expired on 2001-01-01, as its line says; trust its successor" in err
    target = tmp_path / "update"
    options = ("-o", target, "--revoke", KEY.fingerprint, "--until", "2001-01-01")
    code, out, err = pyc("trust", "announce", *options)
    assert (code, out) == (2, "") and "'--until': 2001-01-01 is past" in err
    assert not key_home.exists() and not target.exists()
    assert pyc("trust", "add", old, "--expires", "2999-12-31")[0] == 0


@pytest.mark.parametrize("place", ["file", "file/below/it", "link"])
def test_a_place_for_keys_that_is_no_folder(place, pyc, make_artifact, tmp_path, monkeypatch):
    """Every command says the same, in one line."""
    artifact = make_artifact()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    monkeypatch.setenv("PYC_HOME", str(tmp_path / place))
    message = f"{tmp_path / place}: {tmp_path / place.split('/')[0]} is not a folder, so keys cannot be kept below it"
    for arguments, expected in (
        (("trust", "list"), 8),
        (("trust", "list", "--json"), 8),
        (("trust", "add", KEY.text()), 8),
        (("trust", "remove", KEY.fingerprint), 8),
        (("trust", "revoke", KEY.fingerprint), 8),
        (("trust", "restore", KEY.fingerprint), 8),
        (("keygen",), 8),
        (("keygen", "--public"), 8),
        (("sign", artifact), 8),
        (("verify", artifact), 15),
    ):
        code, out, err = pyc(*arguments)
        assert (code, out, err.count("\n")) == (expected, "", 1), arguments
        assert message in err and "set PYC_HOME to a folder" in err, arguments


@pytest.mark.parametrize("subject", ["mistyped.pyca", "models/mistyped"])
def test_a_mistyped_artifact_is_told_as_one_that_is_not_there(pyc, key_home, subject):
    code, out, err = pyc("trust", "revoke", subject)
    assert (code, out) == (10, "") and err.startswith(f"pyc: error: {subject}: cannot be opened: No such file")


def test_a_key_from_elsewhere_makes_its_artifacts_acceptable(pyc, make_artifact, monkeypatch, tmp_path):
    """The whole story: one machine builds, the other trusts."""
    path = make_artifact()
    public = (tmp_path / "pyc_home" / "keys" / "default.pub").read_text()
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "other_machine"))
    assert pyc("verify", path)[0] == 12
    assert pyc("trust", "add", public)[0] == 0
    assert pyc("verify", path)[0] == 0


def test_the_list_names_what_does_not_count(pyc, key_home):
    pyc("trust", "add", KEY.text())
    other = PublicKey(bytes(32), "Bob")
    pyc("trust", "add", other.text())
    (key_home / "trusted" / f"{other.fingerprint}.pub").chmod(0o666)
    code, out, err = pyc("trust", "list")
    assert (code, out) == (8, f"{KEY.fingerprint}  {KEY.text()}\n")
    assert "others may write to it (mode 666)" in err
    code, out, _ = pyc("trust", "list", "--json")
    assert (code, [row["comment"] for row in json.loads(out)]) == (8, ["Ada"])


def test_a_bad_line_is_named_and_hinders_no_announcement(pyc, key_home, tmp_path):
    pyc("keygen", "--name", "release-exp29990630", "--expires", "2999-06-30")
    pyc("trust", "add", KEY.text())
    path = key_home / "trusted" / f"{KEY.fingerprint}.pub"
    path.write_text(f"{KEY.text()} expires_at=2026-01-31\n")
    code, out, err = pyc("trust", "list")
    assert (code, out.count("\n"), " release-exp29990630\n" in out) == (8, 1, True)
    assert f"{path}: a public key whose comment says 'expires_at=2026-01-31'" in err
    leaked = "0123456789abcdef"
    name = ("--name", "release-exp29990630")
    assert pyc("trust", "announce", "-o", tmp_path / "u", *name, "--revoke", leaked)[0] == 0
    assert pyc("trust", "apply", tmp_path / "u") == (0, f"revoked {leaked}\n", "")
    path.unlink()
    code, out, _ = pyc("trust", "list")
    assert (code, f"{leaked}  (was revoked" in out) == (0, True)


def test_a_file_in_the_place_of_the_store(pyc, make_artifact, key_home):
    artifact = make_artifact()
    shutil.rmtree(key_home / "trusted")
    (key_home / "trusted").write_text("")
    says = f"{key_home / 'trusted'}: cannot be read: not a folder, so who is trusted is not known; move it away"
    for arguments in (
        ("verify", artifact),
        ("trust", "list"),
        ("trust", "add", KEY.text()),
        ("trust", "remove", KEY.fingerprint),
        ("keygen", "--name", "other"),
    ):
        code, out, err = pyc(*arguments)
        assert (code, out) == (15 if "verify" in arguments else 8, "") and says in err, arguments
    assert not (key_home / "keys" / "other.pem").exists()


def test_what_cannot_be_read_is_removed_and_what_could_not_is_never_written(pyc, key_home):
    pyc("trust", "add", KEY.text())
    path = key_home / "trusted" / f"{KEY.fingerprint}.pub"
    path.write_bytes(b"\xff\x00")
    assert pyc("trust", "remove", KEY.fingerprint) == (0, f"removed {KEY.fingerprint} (its file was damaged)\n", "")
    assert pyc("trust", "list") == (0, "", "")
    code, out, err = pyc("trust", "add", f"{KEY.text()} {'x' * 5000}")
    assert (code, out) == (8, "") and "expected at most 4096; shorten its comment" in err
    assert pyc("trust", "list") == (0, "", "")
    assert pyc("trust", "add", f"{KEY.text()} {'x' * 4000}")[0] == 0
    assert pyc("trust", "list")[0] == 0
