"""`pyc keygen`: makes a trusted key once, and never replaces one."""

import stat
from datetime import timedelta

import pytest
from stopped_clock import TODAY

from pyc.runtime.artifact.trust.key_sources import choose_key
from pyc.runtime.artifact.trust.key_store import is_trusted, signing_key
from pyc.runtime.artifact.trust.keys import PublicKey, parse_public_key
from pyc.runtime.artifact.trust.last_days import set_last_day


def test_a_new_key(pyc, key_home):
    code, out, err = pyc("keygen")
    assert code == 0
    assert err == f"wrote {key_home / 'keys' / 'default.pem'}\n"
    assert is_trusted(parse_public_key(out).raw)
    assert signing_key(create=False).public == parse_public_key(out)


def test_a_named_key(pyc, key_home):
    assert pyc("keygen", "--name", "ci")[0] == 0
    assert sorted(path.name for path in (key_home / "keys").iterdir()) == ["ci.pem", "ci.pub"]


def test_an_existing_key_is_kept(pyc, key_home):
    pyc("keygen")
    before = (key_home / "keys" / "default.pem").read_bytes()
    code, out, err = pyc("keygen")
    assert (code, out) == (8, "")
    assert "the key exists already; --public prints its public half" in err
    assert (key_home / "keys" / "default.pem").read_bytes() == before


@pytest.mark.parametrize("text", ["keys = [{other}]", "[[rule]]\nsigners = ['{print}']"])
def test_a_new_key_that_counts_for_nothing_by_the_policy(text, pyc, key_home):
    """Of a command, and of a build, which says that it made one."""
    other = PublicKey(bytes(range(32)), "other")
    key_home.mkdir(mode=0o700)
    policy = key_home / "policy.toml"
    policy.write_text(text.replace("{other}", f"'{other.text()}'").replace("{print}", other.fingerprint))
    code, out, err = pyc("keygen")
    key = parse_public_key(out)
    wrote, effect = err.splitlines()
    assert code == 0 and wrote == f"wrote {key_home / 'keys' / 'default.pem'}"
    assert effect.startswith(f"key {key.fingerprint} counts for nothing here: ") and f" in {policy}" in effect
    chosen = choose_key("ci")
    assert f"; key {chosen.key.public.fingerprint} counts for nothing here: " in chosen.announcement()
    policy.write_text("keys = 5")
    assert "whether artifacts that it signs run here is not known: " in chosen.announcement()


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("[[rule]]\nthreshold = 2", 2),
        ("[[rule]]\nartifacts = 'prod-*'\nthreshold = 3\n[[rule]]\nthreshold = 2", 2),
        ("[[rule]]\nartifacts = 'prod-*'\nthreshold = 2", 1),
        ("[[rule]]\nthreshold = 2\n[[rule]]\nartifacts = 'dev-*'", 2),  # which no name reaches
    ],
)
def test_a_new_key_that_does_not_suffice_alone(text, needed, pyc, key_home):
    """Of a command, and of a build, which says that it made one."""
    key_home.mkdir(mode=0o700)
    (key_home / "policy.toml").write_text(text)
    err, announced = pyc("keygen")[2], choose_key("ci").announcement()
    if needed == 1:
        assert err.count("\n") == 1 and announced.endswith("; artifacts that it signs are trusted on this machine")
    else:
        says = f"artifacts need {needed} signatures here, by {key_home / 'policy.toml'}, of which it gives one"
        assert says in err and says in announced and "are trusted" not in announced


@pytest.mark.parametrize("name", ["release-exp20270630", "expires2027-06-30", "prod.until20270630"])
def test_a_name_that_has_a_day_is_a_name(name, pyc, tmp_path):
    code, out, _ = pyc("keygen", "--name", name, "--expires", "2999-06-30")
    assert code == 0 and out.endswith(f" expires=2999-06-30 {name}\n")
    assert pyc("keygen", "--public", "--name", name) == (0, out, "")
    assert pyc("trust", "list")[0] == 0
    code, out, _ = pyc("keygen", "-o", tmp_path / f"{name}.key")
    assert (code, parse_public_key(out).comment) == (0, name)


def test_a_file_whose_name_reads_as_a_last_day_is_not_written(pyc, key_home, tmp_path):
    path = tmp_path / "release expires=2027-06-30.key"
    code, out, err = pyc("keygen", "-o", path)
    assert (code, out, path.exists(), key_home.exists()) == (8, "", False, False)
    assert f"{path}: its name would be the key's comment, which a public line cannot say; choose a name" in err


def test_a_bad_name(pyc, key_home):
    code, out, err = pyc("keygen", "--name", "../x")
    assert (code, out) == (8, "")
    assert "is not a key name" in err
    assert not key_home.exists()


def test_a_key_in_a_file(pyc, key_home, tmp_path):
    path = tmp_path / "ci.key"
    code, out, err = pyc("keygen", "-o", path)
    assert (code, err) == (0, f"wrote {path}, readable by its owner only; not trusted here\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert parse_public_key(out).comment == "ci"
    assert not key_home.exists()
    assert pyc("keygen", "--public", "--key", path) == (0, out, "")
    before = path.read_bytes()
    code, again, err = pyc("keygen", "-o", path)
    assert (code, again) == (8, "")
    assert "a key is never overwritten" in err
    assert path.read_bytes() == before
    assert before.splitlines()[1].decode() not in out + err


def test_the_public_half(pyc, key_home, tmp_path, monkeypatch):
    assert pyc("keygen", "--public")[0] == 8  # there is none, and none is made
    assert not key_home.exists()
    _, made, _ = pyc("keygen")
    assert pyc("keygen", "--public") == (0, made, "")
    _, other, _ = pyc("keygen", "-o", tmp_path / "ci.key")
    monkeypatch.setenv("PYC_SIGNING_KEY_FILE", str(tmp_path / "ci.key"))
    assert pyc("keygen", "--public") == (0, other, "")


@pytest.mark.parametrize("told", ["announced", "beside"])
def test_the_public_half_tells_the_last_day_that_is_known_here(told, pyc, key_home, tmp_path):
    """Who takes its line would have the key for ever."""
    _, line, _ = pyc("keygen", "-o", tmp_path / "ci.pem")
    key, day = parse_public_key(line), TODAY + timedelta(30)
    if told == "announced":
        set_last_day(key.fingerprint, day)
    else:
        (tmp_path / "ci.pub").write_text(f"{PublicKey(key.raw, 'ci', day).text()}\n")
    code, out, err = pyc("keygen", "--public", "--key", tmp_path / "ci.pem")
    assert (code, err) == (0, "") and parse_public_key(out) == PublicKey(key.raw, "ci", day)


@pytest.mark.parametrize("arguments", [["--key", "x"], ["--public", "-o", "x"]])
def test_options_that_do_not_go_together(arguments, pyc, key_home):
    code, out, _ = pyc("keygen", *arguments)
    assert (code, out) == (2, "")
    assert not key_home.exists()


SIGNING = [
    ("keygen", "--public"),
    ("sign", "model.pyca"),
    ("trust", "announce", "-o", "new.update", "--revoke", "0123456789abcdef"),
    ("attest", "model.pyca", "--format", "slsa", "--sign"),
]


@pytest.mark.parametrize("command", SIGNING, ids=lambda command: command[0])
def test_a_name_beside_another_key_is_refused(command, pyc, key_home, tmp_path, monkeypatch):
    """Be the other key a usable one or not; without --name it is taken, as before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYC_SIGNING_KEY", "")
    code, out, err = pyc(*command, "--name", "qa")
    assert (code, out, "--name and $PYC_SIGNING_KEY both say which key" in err) == (2, "", True), err
    assert pyc(*command)[0] != 2
    monkeypatch.delenv("PYC_SIGNING_KEY")
    for variable in ("PYC_SIGNING_KEY_FILE", "PYC_SIGNER"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "/no/such/thing")
            code, _, err = pyc(*command, "--name", "default")
            assert (code, f"--name and ${variable} both say which key" in err) == (2, True), err
    code, _, err = pyc(*command, "--name", "qa", "--key", "a.key")
    assert (code, "--name and --key both say which key" in err) == (2, True), err
    assert pyc(*command, "--name", "qa")[0] == (10 if command[0] == "sign" else 8)  # it is taken; no key, no artifact
    assert not key_home.exists()
