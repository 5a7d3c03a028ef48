"""ed25519 keys: the one a build signs with, and those a runtime executes code from.

    <home>/keys/<name>.pem            private key, PKCS8 PEM, mode 0600
    <home>/keys/<name>.pub            its public key
    <home>/trusted/<fingerprint>.pub  a trusted public key

`home` is `home_directory()` of pyc.runtime.host.home. A public key is one line of text:
`pyc-ed25519 <base64 of the 32 bytes> <comment>`; its fingerprint is the first 16 hex digits of the SHA-256
of the 32 bytes. A key made here is trusted here from the start.
"""

import base64
import hashlib
import os
import re
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyc.runtime.artifact.format import SignatureRecord, signed_message
from pyc.runtime.errors import ArtifactError, UnsignedArtifactError, UntrustedArtifactError
from pyc.runtime.host.home import NO_HOME, find_home_directory, home_directory, open_regular, write_whole

if TYPE_CHECKING:
    from nacl.signing import SigningKey as PrivateKey

KEY_TYPE = "pyc-ed25519"
PUBLIC_KEY_BYTES = 32
MAX_KEY_FILE_BYTES = 4096
PEM_BEGIN, PEM_END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
PUBLIC_PEM_BEGIN = "-----BEGIN PUBLIC KEY-----"
PKCS8_ED25519 = bytes.fromhex("302e020100300506032b657004220420")
"""What stands before the 32 bytes of the seed in the DER form of an ed25519 private key (RFC 8410, section 7)."""

_key_name = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_fingerprint = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class PublicKey:
    """The 32 bytes of an ed25519 public key, and whose it is said to be."""

    raw: bytes
    comment: str = ""

    @property
    def fingerprint(self) -> str:
        """The first 16 hex digits of the SHA-256 of the key's bytes."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def text(self) -> str:
        """The key as one line, without a line end."""
        return f"{KEY_TYPE} {base64.b64encode(self.raw).decode()} {self.comment}".rstrip()


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key with its public half."""

    public: PublicKey
    _private: "PrivateKey"

    def sign(self, prelude: bytes) -> SignatureRecord:
        """The signature record for an artifact's 64-byte prelude."""
        return SignatureRecord(self.public.raw, self._private.sign(signed_message(prelude)).signature)


def parse_public_key(text: str) -> PublicKey:
    """Read the one-line form. Raises ArtifactError."""
    fields = text.strip().split(None, 2)
    if "\n" in text.strip() or len(fields) < 2 or fields[0] != KEY_TYPE:
        raise ArtifactError(f"not a public key: expected one line '{KEY_TYPE} <base64> <comment>'")
    try:
        raw = base64.b64decode(fields[1], validate=True)
    except ValueError as error:  # what is no base64, and letters beyond ASCII
        raise ArtifactError(f"not a public key: {error}") from error
    if len(raw) != PUBLIC_KEY_BYTES:
        raise ArtifactError(f"not a public key: {len(raw)} bytes, expected {PUBLIC_KEY_BYTES}")
    comment = fields[2] if len(fields) > 2 else ""
    return PublicKey(raw, "".join(letter for letter in comment if letter.isprintable()))


def read_public_key(path: Path) -> PublicKey:
    """Read a public key file. Raises ArtifactError, naming it."""
    try:
        return parse_public_key(_read_text(path))
    except ArtifactError as error:
        raise ArtifactError(
            f"{path}: {error}" if not str(error).startswith(str(path)) else str(error)
        ) from error


def verify_signature(record: SignatureRecord, prelude: bytes) -> None:
    """Raise ArtifactError unless the record's signature over the prelude is right."""
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    try:
        VerifyKey(record.public_key).verify(signed_message(prelude), record.signature)
    except (BadSignatureError, ValueError) as error:
        signer = PublicKey(record.public_key).fingerprint
        raise ArtifactError(
            f"signature of key {signer} is wrong: the file was altered after signing"
        ) from error


def require_trusted(record: SignatureRecord | None, where: str, home: Path | None = None) -> PublicKey:
    """The trusted key that signed the artifact `where`. Raises UnsignedArtifactError and UntrustedArtifactError, and
    ArtifactError where others may write to the key store."""
    if record is None:
        raise UnsignedArtifactError(f"{where}: not signed; build it with a key, or get it from someone who signs")
    key = PublicKey(record.public_key)
    trusted = find_trusted(record.public_key, home)
    if trusted is None and home is None and find_home_directory() is None:
        raise ArtifactError(f"{where}: signed by key {key.fingerprint}, but there is {NO_HOME}")
    if trusted is None:
        raise UntrustedArtifactError(
            f"{where}: signed by key {key.fingerprint}, which is not trusted here; "
            f"if you trust its owner with running code: pyc trust add '{key.text()}'"
        )
    return trusted


def require_signed_by(record: SignatureRecord | None, key: PublicKey, where: str) -> None:
    """Raise UnsignedArtifactError or UntrustedArtifactError unless exactly `key` signed the artifact `where`."""
    if record is None:
        raise UnsignedArtifactError(f"{where}: not signed, expected a signature by key {key.fingerprint}")
    if record.public_key != key.raw:
        signer = PublicKey(record.public_key).fingerprint
        raise UntrustedArtifactError(f"{where}: signed by key {signer}, expected key {key.fingerprint}")


def is_trusted(public_key: bytes, home: Path | None = None) -> bool:
    """Whether this public key (32 bytes) is trusted."""
    return find_trusted(public_key, home) is not None


def find_trusted(public_key: bytes, home: Path | None = None) -> PublicKey | None:
    """The trusted key with exactly these 32 bytes, if there is one."""
    if home is None and find_home_directory() is None:
        return None
    path = _trusted_path(PublicKey(public_key).fingerprint, home)
    key = _read_trusted(path) if path.is_file() else None
    return key if key is not None and key.raw == public_key else None


def _read_trusted(path: Path) -> PublicKey | None:
    """The key in a file of trusted/; None where there is none, or another process removes it meanwhile. Raises
    ArtifactError."""
    try:
        _require_private(path)
        return read_public_key(path)
    except ArtifactError:
        if os.path.lexists(path):
            raise
        return None


def add_trusted(key: PublicKey, home: Path | None = None) -> Path:
    """Trust a key from now on; return the file that says so."""
    path = _trusted_path(key.fingerprint, home)
    _write_new(path, key.text() + "\n", 0o644, replace=True)
    return path


def remove_trusted(fingerprint: str, home: Path | None = None) -> PublicKey:
    """Trust a key no longer; return it. Raises ArtifactError when it was not trusted."""
    if not _fingerprint.fullmatch(fingerprint):
        raise ArtifactError(f"{fingerprint!r} is not a fingerprint: 16 hex digits; see `pyc trust list`")
    path = _trusted_path(fingerprint, home)
    try:
        key = read_public_key(path)
        path.unlink()
    except (ArtifactError, FileNotFoundError):
        if path.is_file():
            raise
        raise ArtifactError(f"key {fingerprint} is not among the trusted keys; see `pyc trust list`") from None
    return key


def list_trusted(home: Path | None = None) -> tuple[PublicKey, ...]:
    """All trusted keys, by fingerprint. Raises ArtifactError for the first file that is not as it has to be."""
    keys, problems = check_store(home)
    if problems:
        raise ArtifactError(problems[0])
    return keys


def check_store(home: Path | None = None) -> tuple[tuple[PublicKey, ...], tuple[str, ...]]:
    """The trusted keys that count, by fingerprint, and what is wrong with the others."""
    folder = (home or home_directory()) / "trusted"
    keys, problems = [], []
    for path in sorted(folder.glob("*.pub")) if folder.is_dir() else []:
        try:
            key = _read_trusted(path)
            if key is None:
                continue
            if key.fingerprint != path.stem:
                raise ArtifactError(f"{path}: holds key {key.fingerprint}; remove the file, or rename it to that")
        except ArtifactError as error:
            if str(error) not in problems:  # what is wrong with the folder holds for each file
                problems.append(str(error))
        else:
            keys.append(key)
    return tuple(keys), tuple(problems)


def signing_key(name: str = "default", *, create: bool = True, home: Path | None = None) -> SigningKey:
    """The private key `name`, made at first use when `create` allows it. Raises ArtifactError."""
    path = key_path(name, home)
    if not path.exists():
        if not create:
            raise ArtifactError(f"{path}: no such key; make it with `pyc keygen --name {name}`")
        create_key(name, home=home)
    key = read_signing_key(path)
    if not path.with_suffix(".pub").exists():  # written last: creation was cut short
        _announce(key.public, path, home)
    return key


def key_path(name: str, home: Path | None = None) -> Path:
    """The private key's file. Raises ArtifactError when `name` is not plain."""
    if not _key_name.fullmatch(name):
        raise ArtifactError(f"{name!r} is not a key name: letters, digits, '_', '-', '.', at most 64")
    return (home or home_directory()) / "keys" / f"{name}.pem"


def create_key(name: str = "default", *, home: Path | None = None) -> bool:
    """Make a key and trust it; False when `name` exists already, which stays as it is."""
    path = key_path(name, home)
    text = new_key_text()
    if not _write_new(path, text, 0o600, replace=False):
        return False
    _announce(parse_signing_key(text, str(path), name).public, path, home)
    return True


def new_key_text() -> str:
    """The text of a key file with a new private key."""
    from nacl.signing import SigningKey as PrivateKey

    body = base64.b64encode(PKCS8_ED25519 + bytes(PrivateKey.generate())).decode()
    return f"{PEM_BEGIN}\n{body}\n{PEM_END}\n"


def _announce(public: PublicKey, path: Path, home: Path | None) -> None:
    """Trust the public half of the private key at `path` and write it beside it."""
    add_trusted(public, home)
    _write_new(path.with_suffix(".pub"), public.text() + "\n", 0o644, replace=True)


def read_signing_key(path: Path) -> SigningKey:
    """The private key in a file that only its owner may read. Raises ArtifactError, which holds nothing of the key."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise ArtifactError(f"{path}: not a regular file, expected a private key")
            if mode & 0o077:
                raise ArtifactError(
                    f"{path}: private key that others may read (mode {mode & 0o777:o}); run: chmod 600 '{path}', or "
                    "give its text in PYC_SIGNING_KEY where that is not yours to change, as in a mounted secret"
                )
            data = os.read(descriptor, MAX_KEY_FILE_BYTES)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ArtifactError(f"{path}: cannot be read: {reason}") from error
    return parse_signing_key(data.decode("ascii", "replace"), str(path), path.stem)


def parse_signing_key(text: str, where: str, comment: str = "") -> SigningKey:
    """The private key of a key file's text, or of the base64 between its first and its last line.

    `where` begins the messages, which hold nothing of the key; `comment` names its public half. Raises ArtifactError.
    """
    from nacl.signing import SigningKey as PrivateKey

    if text.startswith((KEY_TYPE, PUBLIC_PEM_BEGIN)):
        raise ArtifactError(f"{where}: a public key, expected the private one that it belongs to, which signs")
    lines = text.split()
    body = "".join(text.strip().removeprefix(PEM_BEGIN).removesuffix(PEM_END).split())
    is_whole = text.strip().startswith(PEM_BEGIN) and text.strip().endswith(PEM_END)
    if not is_whole and len(lines) != 1:
        raise ArtifactError(f"{where}: not an unencrypted PEM private key: expected {PEM_BEGIN!r} and its end")
    try:
        encoded = base64.b64decode(body, validate=True)
    except ValueError:  # its text may be of the key
        raise ArtifactError(f"{where}: not an unencrypted PEM private key: its base64 is wrong") from None
    seed = encoded[len(PKCS8_ED25519) :]
    if not encoded.startswith(PKCS8_ED25519) or len(seed) != PUBLIC_KEY_BYTES:
        raise ArtifactError(f"{where}: not an ed25519 key, as `pyc keygen` writes it")
    private = PrivateKey(seed)
    return SigningKey(PublicKey(bytes(private.verify_key), comment), private)


def _require_private(path: Path) -> None:
    """Raise ArtifactError where others may say whom this machine trusts: a file of trusted/, the folder, its parent.

    The user and root may own and write them. A group may write to the parent, which is so by default where each user
    has a group of their own.
    """
    for place, forbidden in ((path, 0o022), (path.parent, 0o022), (path.parent.parent, 0o002)):
        try:
            status = place.stat()
        except OSError as error:
            raise ArtifactError(f"{place}: cannot be read: {error.strerror}") from error
        if status.st_uid not in (0, os.geteuid()):
            raise ArtifactError(
                f"{place}: belongs to user {status.st_uid}, who could trust keys in your name; run: "
                f"chown {os.geteuid()} {shlex.quote(str(place))}, or set PYC_HOME to a folder of your own"
            )
        if status.st_mode & forbidden:
            raise ArtifactError(
                f"{place}: others may write to it (mode {stat.S_IMODE(status.st_mode):o}), and so trust keys in your "
                f"name; run: chmod go-w {shlex.quote(str(place))}"
            )


def _trusted_path(fingerprint: str, home: Path | None) -> Path:
    return (home or home_directory()) / "trusted" / f"{fingerprint}.pub"


def _read_text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            data = file.read(MAX_KEY_FILE_BYTES + 1)
        if len(data) > MAX_KEY_FILE_BYTES:
            raise ArtifactError(f"{path}: more than {MAX_KEY_FILE_BYTES} bytes, which no key has")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ArtifactError(f"{path}: cannot be read: {reason}") from error


def _write_new(path: Path, text: str, mode: int, *, replace: bool) -> bool:
    try:
        return write_whole(path, text, mode, replace=replace)
    except OSError as error:
        raise ArtifactError(
            f"{path}: cannot be written: {error.strerror}; set PYC_HOME to a folder for keys that can be"
        ) from error
