"""The key store: the private keys that builds sign with, and the public ones whose artifacts may run code here.

    <home>/keys/<name>.pem            private key, PKCS8 PEM, mode 0600
    <home>/keys/<name>.pub            its public key
    <home>/trusted/<fingerprint>.pub  a trusted public key, with the day on which it expires
    <home>/last-days/                 of keys, as announcements set them (last_days.py)
    <home>/.lock                      locked by who changes trusted, last-days or revoked (store_lock.py)
    <home>/revoked/                   keys and artifacts that count no more (revocations.py)

`home` is `home_directory()` of pyc.runtime.host.home. A key made here is trusted here from the start.
"""

import contextlib
import errno
import os
import re
import stat
from dataclasses import replace
from datetime import date
from pathlib import Path

from pyc.runtime.artifact.trust.keys import (
    MAX_KEY_FILE_BYTES,
    PUBLIC_KEY_BYTES,
    PublicKey,
    SigningKey,
    new_key_text,
    parse_signing_key,
    read_public_key,
    read_signing_key,
    require_readable,
    today_utc,
)
from pyc.runtime.artifact.trust.last_days import LAST_DAYS, last_day
from pyc.runtime.artifact.trust.revocations import find_revocation
from pyc.runtime.artifact.trust.store_lock import changing_store, making_keys
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.home import find_home_directory, home_directory, write_whole
from pyc.runtime.host.private_files import require_private, require_private_folder, unreadable, unwritable
from pyc.runtime.host.signal_handlers import unless_signalled

_key_name = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_fingerprint = re.compile(r"[0-9a-f]{16}")


def is_trusted(public_key: bytes, home: Path | None = None) -> bool:
    """Whether this public key (32 bytes) is trusted, today."""
    return find_trusted(public_key, home) is not None


def find_trusted(public_key: bytes, home: Path | None = None) -> PublicKey | None:
    """The trusted key with exactly these 32 bytes, if there is one and it counts today.

    Raises ArtifactError where others may write to the store.
    """
    key = stored_key(public_key, home)
    return None if key is None or why_not(key, home) else key


def stored_key(public_key: bytes, home: Path | None = None) -> PublicKey | None:
    """The key with these 32 bytes that was trusted here at some time, whether it counts today or not."""
    if home is None and find_home_directory() is None:
        return None
    _require_folder(home)
    path = _trusted_path(PublicKey(public_key).fingerprint, home)
    key = _read_trusted(path) if _is_file(path) else None
    return key if key is not None and key.raw == public_key else None


def why_not(key: PublicKey, home: Path | None = None) -> str | None:
    """Why this key counts no more, as the end of a sentence; None where it does. Raises ArtifactError."""
    if revocation := find_revocation(key.fingerprint, home):
        return f"was revoked {revocation}"
    key = with_last_day(key, home)
    return f"expired on {key.expires}" if key.is_expired() else None


def with_last_day(key: PublicKey, home: Path | None = None) -> PublicKey:
    """The key with the earliest of the last days that its line, this store and announcements tell. Raises
    ArtifactError."""
    stored = stored_key(key.raw, home)
    return key.until(stored.expires if stored else None).until(last_day(key.fingerprint, home))


def _read_trusted(path: Path) -> PublicKey | None:
    """The key in a file of trusted/; None where there is none, or another process removes it meanwhile. Raises
    ArtifactError."""
    try:
        require_private(path, "trust keys")
        return read_public_key(path)
    except ArtifactError:
        try:
            path.lstat()
        except FileNotFoundError:
            return None
        except unless_signalled(OSError):
            pass
        raise


def add_trusted(key: PublicKey, home: Path | None = None) -> PublicKey:
    """Trust a key from now on, until it expires or a last day that was announced; return it with that day. One whose
    line has no day keeps the one that it has here.

    Raises ArtifactError for one that was revoked, whose announced day is past, or that had expired.
    """
    require_readable(key)  # before anything is written
    with changing_store(home):
        return _added(key, home)


def _added(key: PublicKey, home: Path | None) -> PublicKey:
    if revocation := find_revocation(key.fingerprint, home):
        raise ArtifactError(
            f"key {key.fingerprint} was revoked {revocation}; to trust it all the same, first: pyc trust restore "
            f"{key.fingerprint}"
        )
    day = last_day(key.fingerprint, home)
    if day is not None and day < today_utc():
        raise ArtifactError(
            f"key {key.fingerprint} expired on {day}, as was announced; trust its successor, or, to trust it all the "
            f"same, first remove {(home or home_directory()) / LAST_DAYS / key.fingerprint}"
        )
    known = None
    with contextlib.suppress(ArtifactError):  # a bad file is replaced
        known = stored_key(key.raw, home)
    if known is not None and key.expires is None:
        key = replace(key, expires=known.expires)
        if key.is_expired():
            raise ArtifactError(
                f"key {key.fingerprint} expired on {key.expires}, as it is trusted here; trust its successor, or set a "
                "day of your own with --expires"
            )
    key = key.until(day)
    write_trusted(key, home)
    return key


def write_trusted(key: PublicKey, home: Path | None = None) -> Path:
    """Write the file of a trusted key, one that was revoked too, which then still does not count; return it.

    Raises ArtifactError.
    """
    require_readable(key)
    path, line = _trusted_path(key.fingerprint, home), key.text() + "\n"
    if len(line.encode()) > MAX_KEY_FILE_BYTES:
        raise ArtifactError(
            f"key {key.fingerprint}: a line of {len(line.encode())} bytes, expected at most {MAX_KEY_FILE_BYTES}; "
            "shorten its comment"
        )
    _require_folder(home)
    require_private_folder(path.parent, "trust keys")
    _write_new(path, line, 0o644, replace=True)
    return path


def remove_trusted(fingerprint: str, home: Path | None = None) -> PublicKey | None:
    """Trust a key no longer; return it, None where its file was damaged. Raises ArtifactError when it was not trusted.
    """
    if not _fingerprint.fullmatch(fingerprint):
        raise ArtifactError(f"{fingerprint!r} is not a fingerprint: 16 hex digits; see `pyc trust list`")
    _require_folder(home)
    path = _trusted_path(fingerprint, home)
    absent = ArtifactError(f"key {fingerprint} is not among the trusted keys; see `pyc trust list`")
    if not os.path.lexists(path):
        raise absent
    with changing_store(home):
        try:
            key = read_public_key(path)
        except ArtifactError:
            key = None
        try:
            path.unlink()
        except FileNotFoundError:
            raise absent from None
        except unless_signalled(OSError) as error:
            raise ArtifactError(f"{path}: cannot be removed: {error.strerror}") from error
        return key


def list_trusted(home: Path | None = None) -> tuple[PublicKey, ...]:
    """All trusted keys, by fingerprint. Raises ArtifactError for the first file that is not as it has to be."""
    keys, problems = check_store(home)
    if problems:
        raise ArtifactError(problems[0])
    return keys


def check_store(home: Path | None = None) -> tuple[tuple[PublicKey, ...], tuple[str, ...]]:
    """The trusted keys that count, by fingerprint, and what is wrong with the others. Raises ArtifactError."""
    folder = _require_folder(home)
    keys, problems = [], []
    for path in _public_keys(folder):
        try:
            key = _read_named(path)
        except ArtifactError as error:
            if str(error) not in problems:  # what is wrong with the folder holds for each file
                problems.append(str(error))
        else:
            keys += [key] if key is not None else []
    return tuple(keys), tuple(problems)


def why_unreadable(fingerprint: str, home: Path | None = None) -> str | None:
    """What is wrong with the file of a trusted key; None where nothing is, or there is none."""
    try:
        _read_named(_trusted_path(fingerprint, home))
    except ArtifactError as error:
        return str(error)
    return None


def _read_named(path: Path) -> PublicKey | None:
    """The key in a file of trusted/, as `_read_trusted` does. Raises ArtifactError for one of another's name, too."""
    key = _read_trusted(path)
    if key is not None and key.fingerprint != path.stem:
        raise ArtifactError(f"{path}: holds key {key.fingerprint}; remove the file, or rename it to that")
    return key


def signing_key(name: str = "default", *, create: bool = True, home: Path | None = None) -> SigningKey:
    """The private key `name`, made at first use when `create` allows it. Raises ArtifactError."""
    path = key_path(name, home)
    if not path.exists():
        if not create:
            _refuse_public_alone(path)
            raise ArtifactError(f"{path}: no such key; make it with `pyc keygen --name {name}`")
        create_key(name, home=home)
    key = read_signing_key(path)
    public = path.with_suffix(".pub")
    if not public.exists():  # its maker goes on, was ended or failed, or it was removed
        with making_keys(path.parent):
            is_there = path.exists()
            if is_there and not public.exists():
                key = replace(key, public=_as_known(key.public, home))
                with contextlib.suppress(ArtifactError):  # nothing is lost where one may not write
                    _write_public(public, key.public)
        if not is_there:
            return signing_key(name, create=create, home=home)
    if not public.exists():
        return key
    known = read_public_key(public)
    return replace(key, public=known) if known.raw == key.public.raw else key


def key_path(name: str, home: Path | None = None) -> Path:
    """The private key's file. Raises ArtifactError when `name` is not plain."""
    if not _key_name.fullmatch(name):
        raise ArtifactError(f"{name!r} is not a key name: letters, digits, '_', '-', '.', at most 64")
    return (home or home_directory()) / "keys" / f"{name}.pem"


def create_key(name: str = "default", *, expires: date | None = None, home: Path | None = None) -> bool:
    """Make a key and trust it; False when `name` exists already: it stays, and gets a public half if that is missing.

    Raises ArtifactError, and leaves no key then, nor where it is interrupted before the key is whole. One that another
    process is making is waited for.
    """
    path = key_path(name, home)
    require_readable(PublicKey(bytes(PUBLIC_KEY_BYTES), name, expires))  # before anything is written
    with making_keys(path.parent):
        return _create(path, name, expires, home)


def _refuse_public_alone(path: Path) -> None:
    """Raise ArtifactError for a public half whose private key, which is not at `path`, may be kept elsewhere."""
    public = path.with_suffix(".pub")
    if public.exists():
        raise ArtifactError(f"{public}: is there without its private key, {path.name}; move it, or name another key")


def _create(path: Path, name: str, expires: date | None, home: Path | None) -> bool:
    """It is trusted first: wherever this is ended, a private key that is there is one that this machine trusts."""
    public = path.with_suffix(".pub")
    if path.exists():
        if not public.exists():
            _write_public(public, _as_known(read_signing_key(path).public, home))
        return False
    if os.path.lexists(path):
        raise ArtifactError(f"{path}: a link to what is not there; remove it, or name another key")
    _refuse_public_alone(path)
    text, is_made = new_key_text(), False
    key = replace(parse_signing_key(text, str(path), name).public, expires=expires)
    try:
        key = add_trusted(key, home)
        if not _write_new(path, text, 0o600, replace=False):  # another process's, which this one did not wait for
            return False
        is_made = _write_public(public, key)
    finally:
        if not is_made:
            with contextlib.suppress(OSError, ValueError):
                _undo(path, text, _trusted_path(key.fingerprint, home))
    return True


def _write_public(path: Path, key: PublicKey) -> bool:
    return _write_new(path, key.text() + "\n", 0o644, replace=True)


def _undo(path: Path, text: str, trusted: Path) -> None:
    """Remove what was made of a key, unless it is whole. What another process made stays."""
    is_ours = path.exists() and path.read_text() == text
    if is_ours and path.with_suffix(".pub").exists():
        return
    if is_ours:
        path.unlink()
    trusted.unlink(missing_ok=True)


def _as_known(key: PublicKey, home: Path | None) -> PublicKey:
    """The key with the last day that this machine knows of, if it knows one."""
    try:
        return with_last_day(key, home)
    except ArtifactError:
        return key


def _require_folder(home: Path | None) -> Path:
    """The folder of trusted keys, which need not be there. Raises ArtifactError for what is none."""
    folder = (home or home_directory()) / "trusted"
    if os.path.lexists(folder) and not os.path.isdir(folder):  # which takes a link to where one may not enter for none
        raise ArtifactError(
            f"{folder}: cannot be read: not a folder, so who is trusted is not known; move it away, or set PYC_HOME to "
            "another folder"
        )
    return folder


def _is_file(path: Path) -> bool:
    """Whether there is such a file of the store. Raises ArtifactError where that cannot be told."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except unless_signalled(OSError) as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise unreadable(path.parent, error, "who is trusted") from error


def _public_keys(folder: Path) -> list[Path]:
    """The files of trusted keys, by name. Raises ArtifactError where they cannot be told."""
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(".pub") and name[0] != ".")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except unless_signalled(OSError) as error:
        raise unreadable(folder, error, "who is trusted") from error


def _trusted_path(fingerprint: str, home: Path | None) -> Path:
    return (home or home_directory()) / "trusted" / f"{fingerprint}.pub"


def _write_new(path: Path, text: str, mode: int, *, replace: bool) -> bool:
    try:
        return write_whole(path, text, mode, replace=replace)
    except unless_signalled(OSError) as error:
        raise unwritable(path, error) from error
