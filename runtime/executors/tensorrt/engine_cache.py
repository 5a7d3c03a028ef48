"""Engines in files, each signed by a key of this machine: device code is loaded from nowhere else.

    <home>/engines/<digest>.engine       of what it is made of, and for which GPU, driver and TensorRT
    <home>/engines/<digest>.timings      a timing cache, for which GPU, driver and TensorRT

A file is MAGIC, the size of the label (u32, little-endian), the label as JSON, the payload, an ed25519 public key and
its signature over the BLAKE3 of all before. Who builds signs with the key `engines` of the key store, made at first use
and trusted from then on. What is in no such file, whole, for exactly this label and signed by a key that is trusted
here is not loaded: it is built again. Others may read the files, as an artifact's, so a service needs no private key.
"""

from __future__ import annotations

import errno
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
from blake3 import blake3

from pyc.runtime.artifact.format import SignatureRecord
from pyc.runtime.artifact.trust.key_store import is_trusted, signing_key
from pyc.runtime.artifact.trust.keys import SigningKey, verify_signature
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.home import home_directory, make_folder, open_regular
from pyc.runtime.host.recursion import refuse_deep_caller
from pyc.runtime.host.signal_handlers import unless_signalled

KEY = "engines"
"""The name of the signing key."""
MAGIC = b"PYCENGN1"
_DOMAIN = b"pyc-engine-1\0"
_MOST_LABEL_BYTES = 1 << 16
_RECORD_BYTES = 96


class Label(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file is: an engine of the graph and weights `made_of`, or timings (""), and where it is of use."""

    made_of: str
    gpu: str
    capability: str
    driver: str
    tensorrt: str

    def digest(self) -> str:
        """What the file is called."""
        return blake3(msgspec.json.encode(self)).hexdigest()[:32]

    def differences(self, other: Label) -> str:
        """How a file that says `other` differs, in words."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return ", ".join(f"{name} is {theirs!r}, here {ours!r}" for name, ours, theirs in pairs if ours != theirs)


@dataclass(frozen=True, slots=True)
class Found:
    """What was in the cache: the payload, or why there is none; both None where there was no file."""

    payload: bytes | None
    refusal: str | None = None


class EngineCache:
    """The engines of this user on this machine."""

    def __init__(self, home: Path | None = None) -> None:
        """Raises ArtifactError where there is no place for keys."""
        self._home = home
        self._folder = (home or home_directory()) / "engines"
        self._key: SigningKey | None = None

    def path(self, label: Label) -> Path:
        """Where a payload lies."""
        return self._folder / f"{label.digest()}.{'engine' if label.made_of else 'timings'}"

    def get(self, label: Label) -> Found:
        """Return what there is for a label. Raises ArtifactError where keys cannot be used."""
        try:
            with open_regular(self.path(label)) as file:
                self._check_ends(file)
                return Found(self._payload(file.read(), label))
        except FileNotFoundError:
            return Found(None)
        except unless_signalled(OSError) as error:
            return Found(None, f"it cannot be read: {error.strerror}")
        except _RefusedError as error:
            return Found(None, str(error))

    def _check_ends(self, file: BinaryIO) -> None:
        """Raise _RefusedError for a file that is none of a trusted key, before all of it is read: it may have been made
        longer, by more than memory holds."""
        size = os.fstat(file.fileno()).st_size
        record = os.pread(file.fileno(), _RECORD_BYTES, max(0, size - _RECORD_BYTES))
        if os.pread(file.fileno(), len(MAGIC), 0) != MAGIC or len(record) < _RECORD_BYTES:
            raise _RefusedError("it is damaged: no engine of pyc, or not all of it")
        if not is_trusted(record[:32], self._home):
            raise _RefusedError("a key signed it that is not trusted here")

    def _payload(self, data: bytes, label: Label) -> bytes:
        start = len(MAGIC) + 4
        size = int.from_bytes(data[len(MAGIC) : start], "little")
        if not data.startswith(MAGIC) or size > _MOST_LABEL_BYTES or len(data) < start + size + _RECORD_BYTES:
            raise _RefusedError("it is damaged: no engine of pyc, or not all of it")
        body, record = data[:-_RECORD_BYTES], data[-_RECORD_BYTES:]
        signature = SignatureRecord(record[:32], record[32:])
        try:
            verify_signature(signature, _message(body))
        except ArtifactError:
            raise _RefusedError("it was altered, or cut off, after it was signed") from None
        try:
            found = msgspec.json.decode(body[start : start + size], type=Label)
        except (ValueError, RecursionError) as error:
            refuse_deep_caller(error)
            raise _RefusedError(f"its label is not valid: {error}") from error
        if found != label:
            raise _RefusedError(f"it is of another machine or version: {label.differences(found)}")
        return body[start + size :]

    def prepare(self) -> None:
        """Make the folder and the key that `put` needs: before minutes of building. Raises ArtifactError."""
        try:
            make_folder(self._folder, 0o755)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except unless_signalled(OSError) as error:
            raise self._unwritable(self._folder, error) from error
        self._key = signing_key(KEY, home=self._home)

    def _unwritable(self, path: Path, error: OSError) -> ArtifactError:
        return ArtifactError(
            f"{path}: engines cannot be written: {error.strerror}; run `pyc install` as a user who may write there, or "
            "set PYC_HOME to a folder with room for them"
        )

    def put(self, label: Label, payload: bytes) -> None:
        """Keep a payload, signed. Raises ArtifactError when it cannot be."""
        self.prepare()
        assert self._key is not None
        said = msgspec.json.encode(label)
        body = b"".join((MAGIC, len(said).to_bytes(4, "little"), said, payload))
        record = self._key.sign(_message(body)).pack()
        path = self.path(label)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(body)
                    file.write(record)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except unless_signalled(OSError) as error:
            raise self._unwritable(path, error) from error


class _RefusedError(Exception):
    """Why a file is not used."""


def _message(body: bytes) -> bytes:
    return _DOMAIN + blake3(body).digest()
