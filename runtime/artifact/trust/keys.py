"""ed25519 keys, what they sign, and their text (docs/deploy.md, Keys).

A public key is one line of text: `pyc-ed25519 <base64 of the 32 bytes> [expires=YYYY-MM-DD] <comment>`; its fingerprint
is the first 16 hex digits of the SHA-256 of the 32 bytes. A private key is PKCS8 PEM, or is kept by another program
(`external_signer`).
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from pyc.runtime.artifact.format import SignatureRecord, signed_message
from pyc.runtime.artifact.trust.comments import clean_comment, find_last_day, name_of
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.files_read import note_file
from pyc.runtime.host.given_pipe import read_given_pipe
from pyc.runtime.host.home import open_regular
from pyc.runtime.host.signal_handlers import unless_signalled

KEY_TYPE = "pyc-ed25519"
EXPIRES = "expires="
BYTE_ORDER_MARK = "\ufeff"
"""What some editors begin a text with."""
PUBLIC_KEY_BYTES = 32
MAX_KEY_FILE_BYTES = 4096
PEM_BEGIN, PEM_END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
PUBLIC_PEM_BEGIN = "-----BEGIN PUBLIC KEY-----"
PKCS8_ED25519 = bytes.fromhex("302e020100300506032b657004220420")
"""What stands before the 32 bytes of the seed in the DER form of an ed25519 private key (RFC 8410, section 7)."""

_private = re.compile(r"\s*-----BEGIN [A-Z ]*PRIVATE KEY-----")
_date = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

@dataclass(frozen=True, slots=True)
class PublicKey:
    """The 32 bytes of an ed25519 public key, whose it is said to be, and the last day on which it counts (UTC)."""

    raw: bytes
    comment: str = ""
    expires: date | None = None

    @property
    def fingerprint(self) -> str:
        """The first 16 hex digits of the SHA-256 of the key's bytes."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def until(self, day: date | None) -> PublicKey:
        """The key with the earlier of its last day and this one, None: there is none."""
        return self if day is None or (self.expires and self.expires <= day) else replace(self, expires=day)

    def text(self) -> str:
        """The key as one line, without a line end."""
        expires = f"{EXPIRES}{self.expires} " if self.expires else ""
        return f"{KEY_TYPE} {base64.b64encode(self.raw).decode()} {expires}{self.comment}".rstrip()

    def is_expired(self, today: date | None = None) -> bool:
        """Whether its last day is over, `today` being that of the clock, in UTC, unless given."""
        return self.expires is not None and self.expires < (today or today_utc())


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key, as what signs with it, beside its public half."""

    public: PublicKey
    sign_message: Callable[[bytes], bytes]
    """Takes a message and returns its signature of 64 bytes. Raises ArtifactError."""

    def sign(self, prelude: bytes) -> SignatureRecord:
        """The signature record for an artifact's 64-byte prelude. Raises ArtifactError."""
        return SignatureRecord(self.public.raw, self.sign_message(signed_message(prelude)))


def today_utc() -> date:
    """Today's date, in UTC, of this machine's clock."""
    return datetime.now(UTC).date()


def parse_date(text: str, what: str) -> date:
    """A date as YYYY-MM-DD. Raises ArtifactError, which begins with `what`."""
    try:
        if _date.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise ArtifactError(f"{what}: got {text[:40]!a}, expected a date as YYYY-MM-DD")


def parse_public_key(text: str) -> PublicKey:
    """Read the one-line form. Raises ArtifactError, also for a last day that stands elsewhere or is written otherwise:
    it would be a part of the comment, and the key would count for ever."""
    text = text.removeprefix(BYTE_ORDER_MARK)
    if is_private_key(text):
        raise ArtifactError(
            "a private key, which signs and stays secret; give its public half, which `pyc keygen --public --key FILE` "
            "prints"
        )
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
    expires = None
    if comment.startswith(EXPIRES):
        day, _, comment = comment.removeprefix(EXPIRES).partition(" ")
        expires = parse_date(day, "not a public key: the day on which it expires")
    comment = clean_comment(comment)
    if found := find_last_day(comment):
        raise ArtifactError(
            f"a public key whose comment says {found[:40].rstrip()!a}, which is not taken for its last day; write "
            f"it once, right behind the key: '{KEY_TYPE} <base64> {EXPIRES}YYYY-MM-DD <comment>', or reword the comment"
        )
    return PublicKey(raw, comment, expires)


def require_readable(key: PublicKey) -> None:
    """Raise ArtifactError unless the key's line is read as that key, for who is about to write it."""
    if parse_public_key(key.text()) != key:
        raise ArtifactError(f"a public key whose comment, {key.comment[:40]!a}, its line would not say; reword it")


def is_private_key(text: str) -> bool:
    """Whether a text begins as a file of a private key of some kind does."""
    return _private.match(text) is not None


def public_key_of(text: str) -> PublicKey:
    """The key that a line, or a file that holds it, has. Raises ArtifactError."""
    return parse_public_key(text) if text.startswith(f"{KEY_TYPE} ") else read_public_key(Path(text), is_given=True)


def read_public_key(path: Path, *, is_given: bool = False) -> PublicKey:
    """Read a public key file, or with `is_given` a pipe in its place. Raises ArtifactError, naming it."""
    try:
        return parse_public_key(read_small_text(path, is_given=is_given))
    except ArtifactError as error:
        raise ArtifactError(
            f"{path}: {error}" if not str(error).startswith(str(path)) else str(error)
        ) from error


def verify_signature(record: SignatureRecord, prelude: bytes) -> None:
    """Raise ArtifactError unless the record's signature over the prelude is right."""
    if not is_signed(record, signed_message(prelude)):
        signer = PublicKey(record.public_key).fingerprint
        raise ArtifactError(f"signature of key {signer} is wrong: the file was altered after signing")


def is_signed(record: SignatureRecord, message: bytes) -> bool:
    """Whether the record's signature is its key's, over the message."""
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    try:
        VerifyKey(record.public_key).verify(message, record.signature)
    except (BadSignatureError, ValueError):
        return False
    return True


def new_key_text() -> str:
    """The text of a key file with a new private key."""
    from nacl.signing import SigningKey as PrivateKey

    body = base64.b64encode(PKCS8_ED25519 + bytes(PrivateKey.generate())).decode()
    return f"{PEM_BEGIN}\n{body}\n{PEM_END}\n"


def read_signing_key(path: Path, *, is_given: bool = False) -> SigningKey:
    """The private key in a file that only its owner may read, or in such a pipe that the command line names (with
    `is_given`: be it by a name in a folder). Raises ArtifactError, which holds nothing of the key.

    Its comment is the file's name, as a name of a key where a public line could not say it.
    """
    try:
        if (given := read_given_pipe(path, MAX_KEY_FILE_BYTES, is_given=is_given, forbidden=0o077)) is not None:
            return parse_signing_key(given.decode("ascii", "replace"), str(path), "pipe")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise ArtifactError(f"{path}: not a regular file, expected a private key")
            text = os.read(descriptor, MAX_KEY_FILE_BYTES).decode("ascii", "replace")
            _refuse_public(text, str(path))  # which others may read, and who makes it private still has no private key
            if mode & 0o077:
                raise ArtifactError(
                    f"{path}: private key that others may read (mode {mode & 0o777:o}); run: chmod 600 '{path}', or "
                    "give its text in PYC_SIGNING_KEY where that is not yours to change, as in a mounted secret"
                )
        finally:
            os.close(descriptor)
    except unless_signalled(OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ArtifactError(f"{path}: cannot be read: {reason}") from error
    key = parse_signing_key(text, str(path), path.stem)
    try:
        require_readable(key.public)
    except ArtifactError:  # the file has been there, under whatever name: that says nothing of a last day
        return replace(key, public=replace(key.public, comment=name_of(path.stem)))
    return key


def parse_signing_key(text: str, where: str, comment: str = "") -> SigningKey:
    """The private key of a key file's text, or of the base64 between its first and its last line.

    `where` begins the messages, which hold nothing of the key; `comment` names its public half. Raises ArtifactError.
    """
    from nacl.signing import SigningKey as PrivateKey

    _refuse_public(text, where)
    lines = text.split()
    body = "".join(text.strip().removeprefix(PEM_BEGIN).removesuffix(PEM_END).split())
    if mangled := _mangled(text):
        raise ArtifactError(f"{where}: not an unencrypted PEM private key: it {mangled}")
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
    return SigningKey(PublicKey(bytes(private.verify_key), comment), lambda message: private.sign(message).signature)


def _mangled(text: str) -> str:
    """What was done to a key's text on its way into a variable, and what to do; nothing for text as pyc writes it."""
    plain = "give the lines of the key's file as they are, or the base64 between the first and the last as one line"
    if text.strip().startswith(('"', "'")):
        return f"is in quotes, which are a part of it here; {plain}"
    if "\\n" in text or "\\r" in text:
        return f"has a backslash and a letter where its lines end; {plain}"
    if text.strip().startswith(base64.b64encode(PEM_BEGIN.encode()).decode()):
        return f"is the base64 of the whole key file; {plain}"
    return ""


def _refuse_public(text: str, where: str) -> None:
    """Raise ArtifactError for what begins as a public key does."""
    if text.lstrip().startswith((KEY_TYPE, PUBLIC_PEM_BEGIN)):
        raise ArtifactError(f"{where}: a public key, expected the private one that it belongs to, which signs")


def read_small_text(path: Path, limit: int = MAX_KEY_FILE_BYTES, *, is_given: bool = False) -> str:
    """The text of at most `limit` bytes of a regular file, or of a pipe that the command line names (with `is_given`:
    be it by a name in a folder) and nobody else may write to. Raises ArtifactError, naming it."""
    return read_text_and_mode(path, limit, is_given=is_given)[0]


def read_text_and_mode(path: Path, limit: int, *, is_given: bool = False) -> tuple[str, int]:
    """What `read_small_text` returns, and the permission bits of the file that it was read from; those of a pipe, which
    has been asked, are 0."""
    note_file(path, "a file of keys, signatures or trust")
    try:
        mode = 0
        data = read_given_pipe(path, limit, is_given=is_given)
        if data is None:
            with open_regular(path) as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                data = file.read(limit + 1)
        if len(data) > limit:
            raise ArtifactError(f"{path}: more than {limit} bytes, which no such file has")
        return data.decode(), mode
    except unless_signalled(OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else "it is no text"
        raise ArtifactError(f"{path}: cannot be read: {reason}") from error
