"""Further signatures of an artifact that is pulled: they come along, and none that counts here is lost."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyc.runtime.artifact.format import SignatureRecord
    from pyc.runtime.artifact.reader import Artifact


class Signatures:
    """Those beside a URL, for the file beside `path`.

    `add` is called before the artifact's file is replaced: its signatures join those of the former file, so that each
    of the two counts at any moment. `tidy` is called after, and keeps those of the new one.
    """

    def __init__(self, path: Path, opened: "Artifact", *, force: bool = False) -> None:
        """Fetch them. A file that is not to be had is told about, and costs nothing else: what this machine asks for
        has been asked. Raises ArtifactError where a file that is none of ours has their name, but for `force`."""
        from pyc.commands.screen import tell
        from pyc.runtime.artifact.trust.signature_file import read_signatures
        from pyc.runtime.errors import ArtifactError

        self._path, self._opened, self._replaces = path, opened, force
        self._fetched: tuple[SignatureRecord, ...] = ()
        try:
            self._fetched = self._right(read_signatures(opened.path))
        except ArtifactError as error:
            tell(f"pyc: its further signatures are left out: {error}")
        if self._fetched:
            self._ours()

    def add(self) -> None:
        """Write them before those that are there. Raises ArtifactError."""
        from pyc.runtime.artifact.trust.signature_file import write_signatures

        if self._fetched:
            here = self._ours()
            write_signatures(self._path, (*self._fetched, *(each for each in here if each not in self._fetched)))

    def _ours(self) -> "tuple[SignatureRecord, ...]":
        """What lies beside the file. Raises ArtifactError where that holds no signatures, but for `force`."""
        from pyc.runtime.artifact.trust.signature_file import read_signatures, signature_file
        from pyc.runtime.errors import ArtifactError

        path, problem = signature_file(self._path), ""
        try:
            found = read_signatures(self._path)
        except ArtifactError as error:
            found, problem = (), f" ({error})"
        if not found and not self._replaces and os.path.lexists(path) and (problem or os.path.getsize(path)):
            raise ArtifactError(
                f"{path}: is there already, where the further signatures go, and holds none; move it, or give --force "
                f"to replace it{problem}"
            )
        return found

    def tidy(self) -> None:
        """Leave those of the artifact that is there now, and no file where it has none. Raises ArtifactError."""
        from pyc.runtime.artifact.trust.signature_file import remove_signatures, write_signatures

        here = self._here()
        kept = self._right(here)
        if here and not kept:
            remove_signatures(self._path)
        elif len(kept) != len(here):
            write_signatures(self._path, kept)

    def _here(self) -> "tuple[SignatureRecord, ...]":
        """What lies beside the file; what is malformed counts for nothing."""
        from pyc.runtime.artifact.trust.signature_file import read_signatures
        from pyc.runtime.errors import ArtifactError

        try:
            return read_signatures(self._path)
        except ArtifactError:
            return ()

    def _right(self, records: "tuple[SignatureRecord, ...]") -> "tuple[SignatureRecord, ...]":
        """Those over this artifact, one of each key."""
        from pyc.runtime.artifact.format import signed_message
        from pyc.runtime.artifact.trust.keys import is_signed

        message = signed_message(self._opened.prelude.pack())
        return tuple({each.public_key: each for each in records if is_signed(each, message)}.values())
