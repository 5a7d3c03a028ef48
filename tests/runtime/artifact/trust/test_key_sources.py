"""runtime/artifact/key_sources.py: which key signs, and that nothing of a private key is ever said."""

import base64
import os
import re
import stat
from pathlib import Path

import pytest

from pyc.runtime.artifact.trust.key_sources import choose_key, write_key_file
from pyc.runtime.artifact.trust.key_store import is_trusted
from pyc.runtime.artifact.trust.keys import PEM_END, read_signing_key
from pyc.runtime.errors import ArtifactError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty key store, and no key in the environment."""
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PYC_SIGNING_KEY", raising=False)
    monkeypatch.delenv("PYC_SIGNING_KEY_FILE", raising=False)
    return tmp_path / "home"


def body(path: Path) -> str:
    return path.read_text().splitlines()[1]


def test_the_order(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / name for name in ("named", "text", "path")]
    keys = [write_key_file(path).public.raw for path in files]
    stored = choose_key("ci")
    assert (stored.is_new, stored.file) == (True, home / "keys" / "ci.pem")
    assert is_trusted(stored.key.public.raw)
    assert not choose_key("ci").is_new
    monkeypatch.setenv("PYC_SIGNING_KEY_FILE", str(files[2]))
    assert (choose_key("ci").key.public.raw, choose_key("ci").file) == (keys[2], files[2])
    monkeypatch.delenv("PYC_SIGNING_KEY_FILE")
    pem = files[1].read_text()
    for text in (body(files[1]), f"  {body(files[1])}\n", pem, pem.replace("\n", "\r\n")):
        monkeypatch.setenv("PYC_SIGNING_KEY", text)
        chosen = choose_key("ci")
        assert (chosen.key.public.raw, chosen.file, chosen.is_new) == (keys[1], None, False)
    assert choose_key("ci", files[0]).key.public.raw == keys[0]
    monkeypatch.setenv("PYC_SIGNING_KEY_FILE", str(files[2]))
    with pytest.raises(ArtifactError, match="are both set; unset one"):
        choose_key("ci")
    assert not any(is_trusted(key) for key in keys)
    assert sorted(path.name for path in (home / "keys").iterdir()) == ["ci.pem", "ci.pub"]


@pytest.mark.parametrize("mode", [0o644, 0o600])
@pytest.mark.parametrize("is_pem", [False, True])
def test_a_public_key_in_place_of_the_private_one(
    is_pem: bool, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mode is no fault: others may read it."""
    line = write_key_file(tmp_path / "ci.pem").public.text()
    public = tmp_path / "ci.pub"
    public.write_text("-----BEGIN PUBLIC KEY-----\n" if is_pem else f"{line}\n")
    public.chmod(mode)
    message = f"{public}: a public key, expected the private one that it belongs to, which signs"
    monkeypatch.setenv("PYC_SIGNING_KEY_FILE", str(public))
    for file, origin in ((None, r"\(\$PYC_SIGNING_KEY_FILE\)"), (public, r"\(--key\)")):
        with pytest.raises(ArtifactError, match=f"^{re.escape(message)} {origin}$"):
            choose_key("ci", file)


def test_a_path_in_place_of_a_keys_text(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GitLab gives variables of the kind File so."""
    write_key_file(tmp_path / "ci.key")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    said = "$PYC_SIGNING_KEY: a path, expected the key's text; give the path in $PYC_SIGNING_KEY_FILE"
    for path in (tmp_path / "ci.key", "~/ci.key", "ci.key"):
        monkeypatch.setenv("PYC_SIGNING_KEY", str(path))
        with pytest.raises(ArtifactError, match=f"^{re.escape(said)}$"):
            choose_key()
    monkeypatch.setenv("PYC_SIGNING_KEY", str(tmp_path / "nothing.key"))
    with pytest.raises(ArtifactError, match=r"^\$PYC_SIGNING_KEY: not an unencrypted PEM private key: "):
        choose_key()


@pytest.mark.parametrize("variable", ["PYC_SIGNING_KEY", "PYC_SIGNING_KEY_FILE"])
def test_a_variable_that_is_set_and_empty(
    variable: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose secret is missing must not sign with a key that the machine makes, and trusts, for it."""
    monkeypatch.setenv(variable, "")
    with pytest.raises(ArtifactError, match=rf"\${variable}: is set, but empty; "):
        choose_key()
    assert not home.exists()
    write_key_file(tmp_path / "named")
    assert choose_key("default", tmp_path / "named").file == tmp_path / "named"  # --key goes before it


def test_a_key_of_the_environment_needs_no_home(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_key_file(tmp_path / "key")
    monkeypatch.setenv("PYC_SIGNING_KEY", body(tmp_path / "key"))
    monkeypatch.setenv("PYC_HOME", "/dev/null/nowhere")
    choose_key()
    assert not home.exists()


def test_the_line_about_a_new_key(home: Path) -> None:
    chosen = choose_key()
    line = chosen.announcement()
    assert str(home / "keys" / "default.pem") in line
    assert chosen.key.public.fingerprint in line
    assert "trusted on this machine" in line


def test_a_missing_key_is_not_made_unless_allowed(home: Path) -> None:
    with pytest.raises(ArtifactError, match="no such key; make it with `pyc keygen --name ci`"):
        choose_key("ci", create=False)
    assert not home.exists()


def test_a_key_file_is_its_owners_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    previous = os.umask(0)
    try:
        key = write_key_file(path)
    finally:
        os.umask(previous)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(ArtifactError, match="is there already; a key is never overwritten"):
        write_key_file(path)
    assert path.read_bytes() == before
    assert read_signing_key(path).public.raw == key.public.raw
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for target in (tmp_path / "link", tmp_path, Path("/dev/null"), tmp_path / "no" / "key"):
        with pytest.raises(ArtifactError):
            write_key_file(target)
    assert not (tmp_path / "elsewhere").exists()
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_keys_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is one line that holds no part of what was given."""
    write_key_file(tmp_path / "key")
    good = body(tmp_path / "key")
    pem = (tmp_path / "key").read_text()
    wrong = {
        "half": good[: len(good) // 2],
        "other alphabet": good[:-4] + "!?*-",
        "not ascii": good[:-1] + "é",
        "two lines": good[:20] + "\n" + good[20:],
        "no end": pem.replace(PEM_END, ""),
        "encrypted": pem.replace("PRIVATE", "ENCRYPTED PRIVATE"),
        "public": read_signing_key(tmp_path / "key").public.text(),
        "other kind": base64.b64encode(b"0" * 48).decode(),
        "raw seed": base64.b64encode(base64.b64decode(good)[-32:]).decode(),
        "blank": " ",
    }
    for name, text in wrong.items():
        monkeypatch.setenv("PYC_SIGNING_KEY", text)
        path = tmp_path / f"{name}.pem"
        path.write_text(text)
        path.chmod(0o600)
        for choose in (choose_key, lambda path=path: choose_key("x", path)):
            with pytest.raises(ArtifactError) as caught:
                choose()
            message = str(caught.value)
            assert "\n" not in message, name
            assert not any(good[start : start + 8] in message for start in range(24, len(good) - 8)), name
            assert caught.value.__cause__ is None or good[24:] not in repr(caught.value.__cause__)


def test_what_a_policy_revokes_signs_nothing(home: Path, tmp_path: Path) -> None:
    home.mkdir(mode=0o700)
    public = write_key_file(tmp_path / "key").public
    assert choose_key(file=tmp_path / "key").key.public.raw == public.raw
    policy = home / "policy.toml"
    policy.write_text(f'revoked = ["{public.fingerprint}"]\n')
    policy.chmod(0o600)
    with pytest.raises(ArtifactError, match=rf"key: is revoked by {policy}, so nobody would trust what it signs"):
        choose_key(file=tmp_path / "key")


def test_a_policy_that_cannot_be_read_is_told_of_and_stops_no_job(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may revoke the key."""
    public = write_key_file(tmp_path / "key").public
    home.mkdir(mode=0o700)
    (home / "policy.toml").write_text("nonsense")
    assert choose_key(file=tmp_path / "key").key.public.raw == public.raw
    (said,) = caplog.messages
    policy = home / "policy.toml"
    assert said.startswith(f"whether key {public.fingerprint} was revoked here is not known: {policy}: not a trust")


@pytest.mark.parametrize("text", ["pyc-ed25519 AAAA ci", "-----BEGIN PUBLIC KEY-----\nMCow\n"])
def test_a_public_key_signs_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ci.pub"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ArtifactError, match=r"ci\.pub: a public key, expected the private one .* \(--key\)"):
        choose_key(file=path)


def test_files_that_hold_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_key_file(tmp_path / "open")
    (tmp_path / "open").chmod(0o644)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").chmod(0o622)  # one that only this user writes to is waited for
    cases = {
        "open": r"may read \(mode 644\); run: chmod 600 '.*', or give its text in PYC_S.* \(\$PYC_SIGNING_KEY_FILE\)",
        "pipe": "refused: a pipe that others may read or write to",
        ".": "not a regular file",
        "nowhere": "cannot be read: No such file",
    }
    for name, words in cases.items():
        monkeypatch.setenv("PYC_SIGNING_KEY_FILE", str(tmp_path / name))
        with pytest.raises(ArtifactError, match=words):
            choose_key()


@pytest.mark.parametrize("form", ['"{}"', "'{}'", ' "{}" '])
@pytest.mark.parametrize("is_pem", [False, True])
def test_a_key_in_quotes(form: str, is_pem: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = tmp_path / "ci.pem"
    write_key_file(pem)
    monkeypatch.setenv("PYC_SIGNING_KEY", form.format(pem.read_text() if is_pem else body(pem)))
    with pytest.raises(ArtifactError, match=r"\$PYC_SIGNING_KEY: .*: it is in quotes, which are") as caught:
        choose_key("ci")
    assert body(pem)[-20:] not in str(caught.value)


def test_the_base64_of_a_whole_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As people keep files in masked variables."""
    pem = tmp_path / "ci.pem"
    write_key_file(pem)
    for encode in (base64.b64encode, base64.encodebytes):
        monkeypatch.setenv("PYC_SIGNING_KEY", encode(pem.read_bytes()).decode())
        with pytest.raises(ArtifactError, match=r"\$PYC_SIGNING_KEY: .*: it is the base64 of the whole key file; give"):
            choose_key("ci")


@pytest.mark.parametrize("end", ["\\n", "\\r\\n"])
def test_a_key_whose_lines_end_in_letters(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = tmp_path / "ci.pem"
    write_key_file(pem)
    for text in (pem.read_text(), pem.read_text().rstrip(), f"{body(pem)}\n"):
        monkeypatch.setenv("PYC_SIGNING_KEY", text.replace("\n", end) + ("" if "\n" in text else end))
        with pytest.raises(ArtifactError, match="it has a backslash and a letter where its lines end; give the lines"):
            choose_key("ci")
