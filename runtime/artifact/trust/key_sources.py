"""Where the key that signs a build comes from; the first of these that is there:

    1. a file that is named, or a pipe: `--key FILE`
    2. $PYC_SIGNING_KEY: the key itself, the text of a key file or the base64 between its first and last line
    3. $PYC_SIGNING_KEY_FILE: a key file
    4. $PYC_SIGNER: a command that keeps a key and signs (`external_signer`)
    5. the key store of this machine: `artifact.key` of the recipe, made at first use

A variable that is set and empty is an error, and so is a key that is known here to count no more: it expired, by its
own line, by the public half beside its file or by this machine's policy or store, or it was revoked here. A key of the
first four is neither stored nor trusted by using it. No message holds a private key, or a part of it.
"""

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pyc.runtime.artifact.trust.counting_keys import effect_of_new_key, until_day_of_policy
from pyc.runtime.artifact.trust.external_signer import VARIABLE as SIGNER_VARIABLE
from pyc.runtime.artifact.trust.external_signer import external_key
from pyc.runtime.artifact.trust.key_store import create_key, key_path, signing_key, why_not, with_last_day
from pyc.runtime.artifact.trust.keys import (
    BYTE_ORDER_MARK,
    KEY_TYPE,
    PUBLIC_KEY_BYTES,
    PublicKey,
    SigningKey,
    new_key_text,
    parse_signing_key,
    read_public_key,
    read_signing_key,
    read_small_text,
    require_readable,
)
from pyc.runtime.artifact.trust.policy import machine_policy
from pyc.runtime.errors import ArtifactError
from pyc.runtime.host.home import write_whole
from pyc.runtime.host.signal_handlers import unless_signalled

logger = logging.getLogger(__name__)

VARIABLE = "PYC_SIGNING_KEY"
FILE_VARIABLE = "PYC_SIGNING_KEY_FILE"
_VARIABLES = (VARIABLE, FILE_VARIABLE, SIGNER_VARIABLE)


@dataclass(frozen=True, slots=True)
class ChosenKey:
    """The key that signs. `file` is where it lies, None for a key of the environment; `is_new`: it was made just now,
    and is trusted here from now on."""

    key: SigningKey
    file: Path | None
    is_new: bool = False

    def announcement(self, home: Path | None = None) -> str:
        """Return the line for a user whose key was made without being asked for."""
        effect = effect_of_new_key(self.key.public, home) or "artifacts that it signs are trusted on this machine"
        return f"made the signing key {self.file}, fingerprint {self.key.public.fingerprint}; {effect}"


def choose_key(
    name: str = "default", file: str | os.PathLike[str] | None = None, *, create: bool = True, home: Path | None = None
) -> ChosenKey:
    """Return the key that signs, `name` being that of the key store, with the earliest last day that is known of it
    here. Raises ArtifactError.

    Without `create`, a key that the store lacks is an error.
    """
    chosen = _with_last_day(_chosen(name, file, create=create, home=home), home)
    if refusal := _why_not(chosen.key.public, home):
        where = chosen.file or f"key {chosen.key.public.fingerprint}"
        raise ArtifactError(
            f"{where}: {refusal}, so nobody would trust what it signs; make another with `pyc keygen --name NEW`, and "
            "announce it: docs/keys.md"
        )
    return chosen


def _chosen(name: str, file: str | os.PathLike[str] | None, *, create: bool, home: Path | None) -> ChosenKey:
    if file is not None:
        return _from_file(Path(file), "--key")
    given = {name: os.environ.get(name) for name in _VARIABLES}
    for variable, value in given.items():
        if value == "":  # a job whose secret is missing would sign with a key of its own, and trust it
            raise ArtifactError(f"${variable}: is set, but empty; give it the key, or unset it")
    chosen = [variable for variable, value in given.items() if value]
    if len(chosen) > 1:
        raise ArtifactError(f"{' and '.join(chosen)} are both set; unset one of them")
    if value := given[VARIABLE]:
        if len(value) < 4096 and os.path.lexists(os.path.expanduser(value.strip())):
            raise ArtifactError(f"${VARIABLE}: a path, expected the key's text; give the path in ${FILE_VARIABLE}")
        return ChosenKey(parse_signing_key(value, f"${VARIABLE}", "env"), None)
    if path := given[FILE_VARIABLE]:
        return _from_file(Path(path), f"${FILE_VARIABLE}")
    if command := given[SIGNER_VARIABLE]:
        return ChosenKey(external_key(command), None)
    place = key_path(name, home)
    is_new = create and not place.exists() and create_key(name, home=home)
    return ChosenKey(signing_key(name, create=False, home=home), place, is_new)


def _with_last_day(chosen: ChosenKey, home: Path | None) -> ChosenKey:
    """The key with the earliest of the last days that its line, a public half of pyc's beside its file, and this
    machine tell. A store or policy that cannot be read stops no job that brings its own key. Raises ArtifactError
    for a public half that cannot be read."""
    public = chosen.key.public
    known: list[PublicKey | None] = [public]
    if chosen.file is not None:
        beside, text = chosen.file.with_suffix(".pub"), ""
        with suppress(ArtifactError):  # there need be none, and it may be of another tool
            text = read_small_text(beside)
        if text.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(KEY_TYPE):
            known.append(read_public_key(beside))
    days = [key.expires for key in known if key is not None and key.raw == public.raw and key.expires is not None]
    public = replace(public, expires=min(days, default=None))
    with suppress(ArtifactError):
        public = with_last_day(public, home)
    with suppress(ArtifactError):
        public = until_day_of_policy(public, machine_policy(home))
    return replace(chosen, key=replace(chosen.key, public=public))


def _why_not(public: PublicKey, home: Path | None) -> str | None:
    """Why what a key signs counts for nobody, as far as that is known here; a policy that cannot be read is told of."""
    try:
        policy = machine_policy(home)
        if public.fingerprint in policy.revoked:
            return f"is revoked by {policy.origin}"
    except ArtifactError as error:
        logger.warning("whether key %s was revoked here is not known: %s", public.fingerprint, error)
    try:
        return why_not(public, home)
    except ArtifactError:
        return f"expired on {public.expires}" if public.is_expired() else None


def find_key(name: str = "default", file: str | os.PathLike[str] | None = None) -> ChosenKey | None:
    """Return what `choose_key` does; None where it would make a key. Raises ArtifactError as it does."""
    is_given = file is not None or any(os.environ.get(name) is not None for name in _VARIABLES)
    return choose_key(name, file, create=False) if is_given or key_path(name).exists() else None


def write_key_file(path: Path) -> SigningKey:
    """Make a key and write it to a new file that only its owner may read; it is neither stored nor trusted here.

    Raises ArtifactError: a file that is there is never replaced, and a name that its public line cannot say is refused.
    """
    try:
        require_readable(PublicKey(bytes(PUBLIC_KEY_BYTES), path.stem))
    except ArtifactError as error:
        raise ArtifactError(
            f"{path}: its name would be the key's comment, which a public line cannot say; choose a name of letters, "
            "digits, '.', '_' and '-' with -o"
        ) from error
    if not path.parent.is_dir():
        raise ArtifactError(f"{path}: the directory {path.parent} does not exist")
    try:
        is_written = write_whole(path, new_key_text(), 0o600, replace=False)
    except unless_signalled(OSError) as error:
        raise ArtifactError(f"{path}: cannot be written: {error.strerror}") from error
    if not is_written:
        raise ArtifactError(f"{path}: is there already; a key is never overwritten, so choose another name with -o")
    return read_signing_key(path)


def _from_file(path: Path, origin: str) -> ChosenKey:
    try:
        return ChosenKey(read_signing_key(path, is_given=True), path)
    except ArtifactError as error:
        raise ArtifactError(f"{error} ({origin})") from error
