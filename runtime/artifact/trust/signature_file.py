"""Further signatures of an artifact, in a file beside it: `model.pyca.sig`.

    pyc-signature <base64 of the public key, 32 bytes> <base64 of the signature, 64 bytes>

One line each, over the same message as the signature in the artifact (docs/artifact-format.md). So a second person
signs, or a new key does, and not a byte of the artifact changes. Of a URL they are at the URL with the suffix, in a
registry a file of the same manifest.
"""

from __future__ import annotations

import base64
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyc.runtime.artifact.format import SignatureRecord
from pyc.runtime.artifact.trust.keys import read_small_text
from pyc.runtime.errors import ArtifactError, FetchError, MissingArtifactError
from pyc.runtime.host.home import write_whole
from pyc.runtime.host.signal_handlers import unless_signalled
from pyc.runtime.sources.places import STANDARD_INPUT, Place, Remote, open_beside
from pyc.runtime.sources.protocol import EmptyFileError, RefusedError

SUFFIX = ".sig"
LINE_TYPE = "pyc-signature"
MAX_FILE_BYTES = 64 << 10


def signature_file(artifact: Place) -> Path:
    """Where the signatures of the artifact at this place lie, or would if it were a file here."""
    return Path(artifact).with_name(artifact.name + SUFFIX)


def read_signatures(artifact: Place) -> tuple[SignatureRecord, ...]:
    """The signatures beside an artifact, none where there is no such file; whether they are right is not looked at.

    Those of another machine are fetched. Raises ArtifactError for a file that is malformed, FetchError for one that
    cannot be had now.
    """
    if isinstance(artifact, Remote):
        return tuple(_records(_fetched(artifact), f"{artifact}{SUFFIX}"))
    path = signature_file(artifact)
    return read_signature_file(path) if os.path.lexists(path) else ()


def read_signature_file(path: Path) -> tuple[SignatureRecord, ...]:
    """The signatures in a file, whatever it is called. Raises ArtifactError."""
    return tuple(_records(read_small_text(path, MAX_FILE_BYTES), str(path)))


def add_signature(artifact: Path, record: SignatureRecord) -> Path:
    """Write a signature beside the artifact, in place of an earlier one by the same key; return the file.

    Of several processes that add at once each one's stays. Raises ArtifactError.
    """
    descriptor = _opened_folder(signature_file(artifact).parent)
    try:
        _lock(descriptor)
        others = tuple(other for other in read_signatures(artifact) if other.public_key != record.public_key)
        return write_signatures(artifact, (*others, record))
    finally:
        os.close(descriptor)  # here, and in no context manager, which a kept exception would keep, and so the lock


def _opened_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except unless_signalled(OSError) as error:
        raise ArtifactError(f"{folder}: cannot be opened: {error.strerror}") from error


def _lock(descriptor: int) -> None:
    """Keep other processes that add signatures out until it is closed, where the file system can."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except unless_signalled(OSError):
        pass


def write_signatures(artifact: Path, records: Sequence[SignatureRecord]) -> Path:
    """Write these signatures beside the artifact, in place of all that are there; return the file.

    Raises ArtifactError.
    """
    path = signature_file(artifact)
    text = signatures_text(records)
    if len(text) > MAX_FILE_BYTES:
        raise ArtifactError(f"{path}: {len(records)} signatures are more than fit into {MAX_FILE_BYTES} bytes")
    try:
        write_whole(path, text, 0o644, replace=True)
    except unless_signalled(OSError) as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def remove_signatures(artifact: Path) -> None:
    """Remove the file of signatures beside the artifact. Raises ArtifactError."""
    path = signature_file(artifact)
    try:
        path.unlink(missing_ok=True)
    except unless_signalled(OSError) as error:
        raise ArtifactError(f"{path}: cannot be removed: {error.strerror}") from error


def signatures_text(records: Sequence[SignatureRecord]) -> str:
    """The text of such a file."""
    return "".join(f"{_line(each)}\n" for each in records)


def has_one_beside(artifact: Place) -> bool:
    """Whether there may be such a file: not beside standard input, and not where a signature is part of the URL."""
    if not isinstance(artifact, Remote):
        return True
    return artifact.address != STANDARD_INPUT and not {"?", "#"} & {*artifact.address}


def _fetched(artifact: Remote) -> str:
    if not has_one_beside(artifact):
        return ""
    try:
        source = open_beside(artifact, SUFFIX)
    except (MissingArtifactError, EmptyFileError):
        return ""
    except RefusedError as error:  # 403 by S3, where who asks may not list the bucket
        raise FetchError(
            f"{error}. A store whose files you may not list says so of one that is not there, too: where the artifact "
            f"has no further signatures, ask for the right to list, or put an empty file {SUFFIX} beside it"
        ) from error
    if source is None:
        return ""
    try:
        size_bytes = source.size_bytes
        if size_bytes is None or size_bytes > MAX_FILE_BYTES:
            raise ArtifactError(f"{artifact}{SUFFIX}: {size_bytes} bytes, expected at most {MAX_FILE_BYTES}")
        data = bytearray(size_bytes)
        source.read_into(0, memoryview(data))
        return data.decode()
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{artifact}{SUFFIX}: is no text: {error}") from error
    finally:
        source.close()


def _records(text: str, where: str) -> Iterator[SignatureRecord]:
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        try:
            key, signature = (base64.b64decode(field, validate=True) for field in fields[1:])
        except ValueError:
            key, signature = b"", b""
        if fields[0] != LINE_TYPE or len(key) != 32 or len(signature) != 64:
            raise ArtifactError(f"{where}:{number}: expected '{LINE_TYPE} <base64 of a key> <base64 of a signature>'")
        yield SignatureRecord(key, signature)


def _line(record: SignatureRecord) -> str:
    return f"{LINE_TYPE} {base64.b64encode(record.public_key).decode()} {base64.b64encode(record.signature).decode()}"
