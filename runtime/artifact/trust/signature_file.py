"""Further signatures of an artifact, in a file beside it: `model.pyca.sig`.

    pyc-signature <base64 of the public key, 32 bytes> <base64 of the signature, 64 bytes>

One line each, over the same message as the signature in the artifact (docs/artifact-format.md). So a second person
signs, or a new key does, and not a byte of the artifact changes.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from pathlib import Path

from pyc.runtime.artifact.format import SignatureRecord
from pyc.runtime.artifact.trust.keys import read_small_text
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.home import write_whole
from pyc.runtime.sources.places import Place, Remote

SUFFIX = ".sig"
LINE_TYPE = "pyc-signature"
MAX_FILE_BYTES = 64 << 10


def signature_file(artifact: Place) -> Path:
    """Where the signatures of the artifact at this place lie, or would if it were a file here."""
    return Path(artifact).with_name(artifact.name + SUFFIX)


def read_signatures(artifact: Place) -> tuple[SignatureRecord, ...]:
    """The signatures beside an artifact, none where there is no such file; whether they are right is not looked at.

    Those beside a URL are not fetched.

    Raises ArtifactError for a file that is malformed.
    """
    if isinstance(artifact, Remote):
        return ()
    path = signature_file(artifact)
    return tuple(_records(path)) if os.path.lexists(path) else ()


def add_signature(artifact: Path, record: SignatureRecord) -> Path:
    """Write a signature beside the artifact, in place of an earlier one by the same key; return the file.

    Raises ArtifactError.
    """
    path = signature_file(artifact)
    others = [other for other in read_signatures(artifact) if other.public_key != record.public_key]
    text = "".join(f"{_line(each)}\n" for each in (*others, record))
    if len(text) > MAX_FILE_BYTES:
        raise ArtifactError(f"{path}: holds {len(others)} signatures already, which is all that fit")
    try:
        write_whole(path, text, 0o644, replace=True)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _records(path: Path) -> Iterator[SignatureRecord]:
    for number, line in enumerate(read_small_text(path, MAX_FILE_BYTES).splitlines(), 1):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        try:
            key, signature = (base64.b64decode(field, validate=True) for field in fields[1:])
        except ValueError:
            key, signature = b"", b""
        if fields[0] != LINE_TYPE or len(key) != 32 or len(signature) != 64:
            raise ArtifactError(f"{path}:{number}: expected '{LINE_TYPE} <base64 of a key> <base64 of a signature>'")
        yield SignatureRecord(key, signature)


def _line(record: SignatureRecord) -> str:
    return f"{LINE_TYPE} {base64.b64encode(record.public_key).decode()} {base64.b64encode(record.signature).decode()}"
