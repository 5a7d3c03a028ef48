"""runtime/artifact/trust: keys on disk, signatures, and who is trusted."""

import base64
import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from pyc.runtime.artifact.format import Prelude, SignatureRecord, parse_prelude
from pyc.runtime.artifact.trust import key_store, last_days, revocations
from pyc.runtime.artifact.trust.decision import require_trusted
from pyc.runtime.artifact.trust.key_store import (
    add_trusted,
    check_store,
    create_key,
    find_trusted,
    is_trusted,
    key_path,
    list_trusted,
    remove_trusted,
    signing_key,
)
from pyc.runtime.artifact.trust.keys import (
    MAX_KEY_FILE_BYTES,
    PublicKey,
    parse_public_key,
    read_public_key,
    verify_signature,
)
from pyc.runtime.artifact.trust.last_days import set_last_day
from pyc.runtime.artifact.trust.revocations import list_revoked, restore, revoke
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.private_files import require_private

PRELUDE = Prelude(0, 10, bytes(32)).pack()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0, 0o002, 0o022, 0o077])
def test_what_is_made_with_any_umask_counts(tmp_path: Path, umask: int) -> None:
    """Nobody else may write to a home that is made here, nor to the folder that it is made in."""
    home = tmp_path / "config" / "pyc"
    previous = os.umask(umask)
    try:
        key = signing_key(home=home).public
        set_last_day(key.fingerprint, date(9999, 1, 1), home)
        for subject in ("0" * 16, "1" * 16):
            revoke(subject, home=home)
        (home / "policy.toml").touch(mode=0o644)
    finally:
        os.umask(previous)
    made = [home.parent, *(path for path in home.parent.rglob("*") if path.is_dir())]
    assert len(made) == 6
    assert {path.name: mode_of(path) & 0o022 for path in made} == {path.name: 0 for path in made}
    assert is_trusted(key.raw, home)
    assert len(list_revoked(home)) == 2
    require_private(home / "policy.toml", "change what is trusted")


def test_a_removed_key_stays_removed(home: Path) -> None:
    key = signing_key(home=home).public
    remove_trusted(key.fingerprint, home)
    signing_key(home=home)
    assert not is_trusted(key.raw, home)


def test_signature_is_plain_ed25519_over_the_tagged_prelude(home: Path) -> None:
    record = signing_key(home=home).sign(PRELUDE)
    message = b"pyc artifact signature v1\0" + PRELUDE
    Ed25519PublicKey.from_public_bytes(record.public_key).verify(record.signature, message)
    verify_signature(record, PRELUDE)


@pytest.mark.parametrize("bit", range(0, 96 * 8, 5))
def test_an_altered_record_does_not_verify(bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.getbasetemp() / "altered_record_home"
    packed = bytearray(signing_key(home=home).sign(PRELUDE).pack())
    packed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ArtifactError, match=r"signature of key [0-9a-f]{16} is wrong"):
        verify_signature(SignatureRecord(bytes(packed[:32]), bytes(packed[32:])), PRELUDE)


@pytest.mark.parametrize("bit", range(0, 64 * 8, 7))
def test_an_altered_prelude_does_not_verify(bit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.getbasetemp() / "altered_record_home"
    record = signing_key(home=home).sign(PRELUDE)
    altered = bytearray(PRELUDE)
    altered[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ArtifactError, match="the file was altered after signing"):
        verify_signature(record, bytes(altered))


def opened(record: SignatureRecord | None) -> SimpleNamespace:
    """What trust is asked of: an artifact whose prelude is PRELUDE."""
    return SimpleNamespace(path=Path("m.pyca"), prelude=parse_prelude(PRELUDE), signature=record)


def test_require_trusted(home: Path, tmp_path: Path) -> None:
    key = signing_key(home=home)
    record = key.sign(PRELUDE)
    assert require_trusted(opened(record), home=home)[0].key.comment == "default"
    with pytest.raises(ArtifactError, match=r"m\.pyca: not signed"):
        require_trusted(opened(None), home=home)
    with pytest.raises(ArtifactError, match="not trusted here") as caught:
        require_trusted(opened(record), home=tmp_path / "elsewhere")
    assert f"pyc trust add '{key.public.text()}'".replace(" default", "") in str(caught.value)
    add_trusted(key.public, tmp_path / "elsewhere")
    require_trusted(opened(record), home=tmp_path / "elsewhere")
    remove_trusted(key.public.fingerprint, tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="not trusted here"):
        require_trusted(opened(record), home=tmp_path / "elsewhere")


def test_trust_compares_whole_keys(home: Path) -> None:
    """A file under the right fingerprint with another key does not make a key trusted."""
    wanted, other = PublicKey(b"w" * 32), PublicKey(b"o" * 32)
    add_trusted(wanted, home)
    (home / "trusted" / f"{wanted.fingerprint}.pub").write_text(other.text())
    assert not is_trusted(wanted.raw, home)
    assert not is_trusted(other.raw, home)
    with pytest.raises(ArtifactError, match=f"holds key {other.fingerprint}"):
        list_trusted(home)


def test_public_key_text() -> None:
    key = PublicKey(bytes(range(32)), "Ada Lovelace <ada@example.org>")
    assert (
        key.text()
        == f"pyc-ed25519 {base64.b64encode(bytes(range(32))).decode()} Ada Lovelace <ada@example.org>"
    )
    assert parse_public_key(key.text() + "\n") == key
    assert parse_public_key(PublicKey(key.raw).text()) == PublicKey(key.raw)
    assert key.fingerprint == hashlib.sha256(bytes(range(32))).hexdigest()[:16]


def test_a_comment_cannot_carry_terminal_controls() -> None:
    line = PublicKey(bytes(32)).text() + " evil\x1b[2J\x9b31m"
    assert parse_public_key(line).comment == "evil[2J31m"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one line"),
        ("pyc-ed25519", "expected one line"),
        ("ssh-ed25519 AAAA me", "expected one line"),
        (f"pyc-ed25519 {base64.b64encode(bytes(32)).decode()}\npyc-ed25519 AAAA", "expected one line"),
        ("pyc-ed25519 !!!! me", "not a public key"),
        ("pyc-ed25519 AAA me", "not a public key"),
        ("pyc-ed25519 AAÄA me", "not a public key"),
        ("pyc-ed25519 AAAA me", "3 bytes, expected 32"),
        (f"pyc-ed25519 {base64.b64encode(bytes(33)).decode()}", "33 bytes, expected 32"),
    ],
)
def test_bad_public_keys(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=message):
        parse_public_key(text)
    (tmp_path / "k.pub").write_text(text)
    with pytest.raises(ArtifactError, match=message) as caught:
        read_public_key(tmp_path / "k.pub")
    assert str(tmp_path / "k.pub") in str(caught.value)


def test_a_private_key_that_others_may_read_is_refused(home: Path) -> None:
    signing_key(home=home)
    (home / "keys" / "default.pem").chmod(0o644)
    with pytest.raises(ArtifactError, match=r"mode 644.*chmod 600"):
        signing_key(home=home)


def replace_key(home: Path, data: bytes) -> None:
    path = key_path("default", home)
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    path.write_bytes(data)


def test_private_keys_of_other_kinds_are_refused(home: Path, tmp_path: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    replace_key(home, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ArtifactError, match="not an ed25519 key"):
        signing_key(home=home)
    replace_key(tmp_path / "a", b"garbage")
    with pytest.raises(ArtifactError, match="not an unencrypted PEM private key"):
        signing_key(home=tmp_path / "a")
    locked = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    replace_key(tmp_path / "b", locked)
    with pytest.raises(ArtifactError, match="not an unencrypted PEM private key"):
        signing_key(home=tmp_path / "b")


def test_the_private_key_is_standard_pem(home: Path) -> None:
    """Other tools read it."""
    key = signing_key(home=home)
    private = load_pem_private_key((home / "keys" / "default.pem").read_bytes(), None)
    assert private.public_key().public_bytes_raw() == key.public.raw  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc/x", "a\0", "a b", ".hidden", "-x", "x" * 65]
)
def test_key_names_cannot_leave_the_directory(name: str, home: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a key name"):
        signing_key(name, home=home)
    assert not home.exists()


@pytest.mark.parametrize(
    "fingerprint", ["", "../../x", "ABCDEF0123456789", "0" * 15, "0" * 17, "0" * 16 + "\n"]
)
def test_remove_takes_only_fingerprints(fingerprint: str, home: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a fingerprint"):
        remove_trusted(fingerprint, home)


def test_remove_of_an_unknown_key(home: Path) -> None:
    with pytest.raises(ArtifactError, match="is not among the trusted keys"):
        remove_trusted("0" * 16, home)


def test_a_home_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactError, match=r"Not a directory, .*; set PYC_HOME to a folder"):
        signing_key(home=tmp_path / "file")


@pytest.mark.parametrize(
    ("place", "mode"), [("file", 0o646), ("file", 0o664), ("trusted", 0o777), ("trusted", 0o770), ("home", 0o777)]
)
def test_a_store_that_others_may_write_to_is_refused(home: Path, place: str, mode: int) -> None:
    """Whoever may write there could trust a key in the user's name."""
    key = signing_key(home=home).public
    record = SignatureRecord(key.raw, bytes(64))
    file = home / "trusted" / f"{key.fingerprint}.pub"
    where = {"file": file, "trusted": file.parent, "home": home}[place]
    where.chmod(mode)
    with pytest.raises(ArtifactError, match=rf"others may write to it \(mode {mode:o}\).*run: chmod go-w "):
        require_trusted(opened(record), home=home)
    where.chmod(mode & ~0o022)
    assert [each.key for each in require_trusted(opened(record), home=home)] == [PublicKey(key.raw, "default")]


def test_a_home_that_the_users_own_group_may_write_to_is_usual(home: Path) -> None:
    """The umask is 002 where each user has a group of their own."""
    home.mkdir()
    home.chmod(0o775)
    key = signing_key(home=home).public
    assert is_trusted(key.raw, home)
    for subject in ("0" * 16, "1" * 16):  # the second finds the folder
        revoke(subject, home=home)
    assert [str(revocation.subject) for revocation in list_revoked(home)] == ["0" * 16, "1" * 16]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_store_of_another_user_is_refused(home: Path) -> None:
    key = signing_key(home=home).public
    os.chown(home / "trusted", 12345, -1)
    with pytest.raises(ArtifactError, match=r"belongs to user 12345, who could trust keys in your name; run: chown 0 "):
        is_trusted(key.raw, home)


def test_what_is_wrong_with_the_folder_is_said_once(home: Path) -> None:
    for name in ("one", "two"):
        create_key(name, home=home)
    (home / "trusted").chmod(0o777)
    keys, problems = check_store(home)
    assert (keys, len(problems)) == ((), 1)
    assert "others may write to it (mode 777)" in problems[0]


def test_a_key_that_is_removed_meanwhile_is_not_trusted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another process, between the look at the folder and the reading: nothing is wrong with the store."""
    gone, stays = (signing_key(name, home=home) for name in ("gone", "stays"))
    path = home / "trusted" / f"{gone.public.fingerprint}.pub"
    read = read_public_key

    def remove_then_read(file: Path) -> PublicKey:
        path.unlink(missing_ok=True)
        return read(file)

    monkeypatch.setattr(key_store, "read_public_key", remove_then_read)
    assert find_trusted(gone.public.raw, home) is None
    add_trusted(gone.public, home)
    assert list_trusted(home) == (stays.public,)
    add_trusted(gone.public, home)
    with pytest.raises(ArtifactError, match="is not among the trusted keys"):
        remove_trusted(gone.public.fingerprint, home)

    def read_then_remove(file: Path) -> PublicKey:
        key = read(file)
        path.unlink()
        return key

    add_trusted(gone.public, home)
    monkeypatch.setattr(key_store, "read_public_key", read_then_remove)
    with pytest.raises(ArtifactError, match="is not among the trusted keys"):
        remove_trusted(gone.public.fingerprint, home)


def test_what_is_no_file_among_trusted_keys_does_not_hang(home: Path) -> None:
    key = signing_key(home=home).public
    os.mkfifo(home / "trusted" / f"{'0' * 16}.pub", 0o644)
    (home / "trusted" / f"{'1' * 16}.pub").write_bytes(bytes(MAX_KEY_FILE_BYTES + 1))
    keys, problems = check_store(home)
    assert keys == (PublicKey(key.raw, "default"),)
    assert "not a regular file" in problems[0]
    assert "more than 4096 bytes, which no such file has" in problems[1]
    with pytest.raises(ArtifactError, match="not a regular file"):
        list_trusted(home)


@pytest.mark.parametrize("closed", ["home", "trusted"])
def test_a_store_that_this_user_may_not_read_is_told(closed: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that root made with a umask of 077. Root may read all, so the calls are refused here."""
    key = signing_key(home=home).public
    place = home if closed == "home" else home / "trusted"
    listed, looked_at, may = os.listdir, Path.stat, os.access

    def refuse(path: Any, call: Any, *arguments: Any, **options: Any) -> Any:
        if Path(path).is_relative_to(place) and Path(path) != home:
            raise PermissionError(13, "Permission denied", str(path))
        return call(path, *arguments, **options)

    monkeypatch.setattr(os, "listdir", lambda path: refuse(path, listed))
    monkeypatch.setattr(Path, "stat", lambda path, **options: refuse(path, looked_at, **options))
    monkeypatch.setattr(os, "access", lambda path, mode, **options: path != place and may(path, mode, **options))
    command = f"chmod a+x {home}" if closed == "home" else f"chmod -R a+rX {home / 'trusted'}"
    says = re.escape(f"trusted: cannot be read: Permission denied, so who is trusted is not known; run: {command}")
    for ask in (lambda: find_trusted(key.raw, home), lambda: check_store(home), lambda: list_trusted(home)):
        with pytest.raises(ArtifactError, match=says):
            ask()


def test_of_two_that_undo_a_revocation_the_later_finds_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revoke("0" * 16, home=home)
    changing = revocations.changing_store

    @contextlib.contextmanager
    def behind_another(home: Path | None) -> Iterator[None]:
        with changing(home):
            (home or Path()).joinpath("revoked", "0" * 16).unlink()
            yield

    monkeypatch.setattr(revocations, "changing_store", behind_another)
    with pytest.raises(ArtifactError, match=r"0{16} was not revoked here; see `pyc trust list`"):
        restore("0" * 16, home)


@pytest.mark.parametrize(("number", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "set PYC_HOME")])
def test_what_cannot_be_written_has_its_own_remedy(
    number: int, remedy: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, *_: object, **__: object) -> bool:
        raise OSError(number, os.strerror(number), str(path))

    for module in (key_store, revocations, last_days):
        monkeypatch.setattr(module, "write_whole", refused)
    for change in (
        lambda: add_trusted(PublicKey(bytes(32)), home),
        lambda: revoke("0" * 16, home=home),
        lambda: set_last_day("0" * 16, date(9999, 1, 1), home),
    ):
        with pytest.raises(ArtifactError, match=f"cannot be written: {os.strerror(number)}; {remedy}"):
            change()
