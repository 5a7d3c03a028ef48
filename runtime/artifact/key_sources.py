"""Where the key that signs a build comes from; the first of these that is there:

    1. a file that is named: `--key FILE`
    2. $PYC_SIGNING_KEY: the key itself, the text of a key file or the base64 between its first and last line
    3. $PYC_SIGNING_KEY_FILE: a key file
    4. the key store of this machine: `artifact.key` of the recipe, made at first use

A variable that is set and empty is an error. A key of the first three is neither stored nor trusted by using it. No
message holds a private key, or a part of it.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from pyc.runtime.artifact.trust import (
    SigningKey,
    create_key,
    key_path,
    new_key_text,
    parse_signing_key,
    read_signing_key,
    signing_key,
)
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.home import write_whole

VARIABLE = "PYC_SIGNING_KEY"
FILE_VARIABLE = "PYC_SIGNING_KEY_FILE"


@dataclass(frozen=True, slots=True)
class ChosenKey:
    """The key that signs. `file` is where it lies, None for a key of the environment; `is_new`: it was made just now,
    and is trusted here from now on."""

    key: SigningKey
    file: Path | None
    is_new: bool = False

    def announcement(self) -> str:
        """Return the line for a user whose key was made without being asked for."""
        return (
            f"made the signing key {self.file}, fingerprint {self.key.public.fingerprint}; "
            "artifacts that it signs are trusted on this machine"
        )


def choose_key(
    name: str = "default", file: str | os.PathLike[str] | None = None, *, create: bool = True, home: Path | None = None
) -> ChosenKey:
    """Return the key that signs, `name` being that of the key store. Raises ArtifactError.

    Without `create`, a key that the store lacks is an error.
    """
    if file is not None:
        return _from_file(Path(file), "--key")
    value, path = os.environ.get(VARIABLE), os.environ.get(FILE_VARIABLE)
    for variable, given in ((VARIABLE, value), (FILE_VARIABLE, path)):
        if given == "":  # a job whose secret is missing would sign with a key of its own, and trust it
            raise ArtifactError(f"${variable}: is set, but empty; give it the key, or unset it")
    if value and path:
        raise ArtifactError(f"{VARIABLE} and {FILE_VARIABLE} are both set; unset one of them")
    if value:
        return ChosenKey(parse_signing_key(value, f"${VARIABLE}", "env"), None)
    if path:
        return _from_file(Path(path), f"${FILE_VARIABLE}")
    place = key_path(name, home)
    is_new = create and not place.exists() and create_key(name, home=home)
    return ChosenKey(signing_key(name, create=False, home=home), place, is_new)


def write_key_file(path: Path) -> SigningKey:
    """Make a key and write it to a new file that only its owner may read; it is neither stored nor trusted here.

    Raises ArtifactError: a file that is there is never replaced.
    """
    if not path.parent.is_dir():
        raise ArtifactError(f"{path}: the directory {path.parent} does not exist")
    try:
        is_written = write_whole(path, new_key_text(), 0o600, replace=False)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror}") from error
    if not is_written:
        raise ArtifactError(f"{path}: is there already; a key is never overwritten, so choose another name with -o")
    return read_signing_key(path)


def _from_file(path: Path, origin: str) -> ChosenKey:
    try:
        return ChosenKey(read_signing_key(path), path)
    except ArtifactError as error:
        raise ArtifactError(f"{error} ({origin})") from error
