"""Where a command may write: what stands in the way is found before any work, and nothing is replaced unasked.

    output = OutputFile(output_path(text), sources=(("model.yaml", "the recipe"),), magic=MAGIC, force=False)
    output.check()          # before the work
    ...
    output.check()          # again just before the rename

A symbolic link at the target is judged by what it leads to, and a rename then replaces the link, never the file that
it leads to: a name changes its meaning, a file that others use under another name does not change its bytes.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from pyc.runtime.errors import ArtifactError, PycError
from pyc.runtime.host.files_read import role_of
from pyc.runtime.host.signal_handlers import unless_signalled

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
)

_DEVICES = ("/dev", "/dev/pts")
"""Folders whose names lead to devices and to what is open; as root a rename would replace one for everybody."""

_UNSHOWABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def output_path(text: str | os.PathLike[str], error: type[PycError] = ArtifactError) -> Path:
    """Return the file that `text` names; raises `error` when it names none, or one that a line of text cannot show."""
    written = os.fspath(text)
    if not written:
        raise error("the name of the file to write is empty; give one, such as -o model.pyca")
    if written == "-":
        raise error("-: nothing is written to standard output; give a file name, or ./- for a file of that name")
    require_showable(written, error, "give another name")
    if written.endswith("/") or Path(written).name in ("", ".."):
        raise error(f"{written}: names a folder, expected a file; add a file name")
    return Path(written)


def require_showable(
    name: str, error: type[PycError] = ArtifactError, remedy: str = "rename the file"
) -> None:
    """Raise `error`, with what to do, for a name that a line of text, or a document for others, cannot have."""
    if _UNSHOWABLE.search(name):
        raise error(f"{name!a}: control characters and undecodable bytes cannot stand in a file name here; {remedy}")


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that is about to be written.

    `sources` are (path, what it is) of files that the work reads: they are never replaced, by whatever name, link or
    hard link they are reached, and neither is what the command has read so far (`files_read`). A file that is there
    must begin with `magic` (empty: no file does), or `force` must be set; what is not a regular file is never replaced.
    `option` is how the user names the file.
    """

    path: Path
    sources: tuple[tuple[str, str], ...] = ()
    magic: bytes = b""
    what: str = "a pyc artifact"
    force: bool = False
    error: type[PycError] = ArtifactError
    option: str = "-o"

    def check(self) -> None:
        """Raise `error` when the file may not be written: its folder, its name, or what is there now."""
        try:
            self._check_folder()
            found = self._found()
            if found is None or stat.S_ISREG(found.st_mode):
                self._check_place()
            if found is not None:
                self._check_found(found)
        except ValueError as problem:  # NUL
            raise self.error(f"{str(self.path)!r}: not a usable path: {problem}") from problem
        except unless_signalled(OSError) as problem:
            raise self.error(f"{self.path}: cannot be written: {problem.strerror}") from problem

    def _check_folder(self) -> None:
        folder = self.path.parent
        if not folder.is_dir():
            raise self.error(
                f"{self.path}: the directory {folder} does not exist; make it, or choose another with {self.option}"
            )
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            reason = "is on a read-only file system" if os.statvfs(folder).f_flag & os.ST_RDONLY else "is not writable"
            raise self.error(f"{self.path}: the directory {folder} {reason}; choose another with {self.option}")
        size, limit = len(os.fsencode(self.path.name)), os.pathconf(folder, "PC_NAME_MAX")
        if size > limit:
            raise self.error(f"{self.path}: the file name has {size} bytes, the file system takes {limit}; shorten it")

    def _check_place(self) -> None:
        folder = str(self.path.parent.resolve())
        if folder in _DEVICES or f"{folder}/".startswith(("/proc/", "/sys/")):
            raise self.error(
                f"{self.path}: {folder} holds devices and what the system knows, expected a folder of files; choose "
                f"another with {self.option}"
            )

    def _found(self) -> os.stat_result | None:
        """What is there, links followed; None for nothing. A link that leads nowhere is what is there itself."""
        try:
            return self.path.stat()
        except FileNotFoundError:
            return self.path.lstat() if self.path.is_symlink() else None

    def _check_found(self, found: os.stat_result) -> None:
        role = role_of(found, self.sources)
        if role is not None:
            raise self.error(f"{self.path}: is {role}, which is read here; choose another name with {self.option}")
        kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), None)
        if kind is not None:
            raise self.error(f"{self.path}: is {kind}, expected a file name; choose one with {self.option}")
        if not self.force and not self._begins_right():
            than = f" and is not {self.what}" if self.magic else ""
            raise self.error(
                f"{self.path}: is there already{than}; choose another name with {self.option}, "
                "or give --force to replace it"
            )
        folder = self.path.parent.stat()
        if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, folder.st_uid, self.path.lstat().st_uid):
            raise self.error(f"{self.path}: belongs to another user; choose another name with {self.option}")

    def _begins_right(self) -> bool:
        if not self.magic:
            return False
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
        except unless_signalled(OSError):
            return False
        try:
            return os.read(descriptor, len(self.magic)) == self.magic
        finally:
            os.close(descriptor)
