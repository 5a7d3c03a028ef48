"""Installs the runtime of a bundle into a virtual environment, without a network: what install.sh starts.

It imports Python's own modules alone, as it runs where nothing is installed. The environment appears whole: made beside
its place and then renamed, so that an install which is ended, or two at once, leave none that is not. A signal ends
what this has started, and then this.

Arguments: the interpreter, the artifact, the place of the environment, the Python that the wheels are for, and a
command that this process becomes behind the install.
"""

from __future__ import annotations

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while the modules below are imported

import contextlib
import hashlib
import mmap
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from types import FrameType

EX_UNAVAILABLE, EX_CANTCREAT, EX_IOERR = 69, 73, 74
DAMAGED, INVALID, MISSING = 8, 9, 10
"""Exit codes, those of pyc."""
MARKER, REQUIREMENTS, TEMPORARY = ".pyc-bundle", ".pyc-requirements", "tmp"
"""In an environment: the way to its interpreter, which run.sh and health.sh look at, what it was made of, and a folder
that pip has meanwhile."""
LETTERS, COUNT = "bcdfghjkmnpqrstvwxz", 8
"""At the end of names of folders that are not whole: no day, number or word, which a user's folder might end with."""
_DAY_S = 86_400


class Ended(BaseException):
    """A signal asks this process to end; `args` is its number."""


class Signals:
    """Those that end a process: they raise Ended once, and not amid what has to be done as a whole."""

    def __init__(self) -> None:
        self._held = False
        self._asked = 0
        self._numbers: list[signal.Signals] = []

    def begin(self) -> None:
        """Take the signals that whoever started this does not have ignored."""
        every = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
        self._numbers = [each for each in every if signal.getsignal(each) is not signal.SIG_IGN]
        for each in self._numbers:
            signal.signal(each, self._end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self._held:
            self._asked = number
            return
        self.ignore()  # what was made goes first
        raise Ended(number)

    def ignore(self) -> None:
        """From now on."""
        for each in self._numbers:
            signal.signal(each, signal.SIG_IGN)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Have them wait until what follows is done."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            if self._asked:
                self._end(self._asked, None)


signals = Signals()


class InstallError(Exception):
    """`args` are one line for the user, and the exit code."""


def main(arguments: list[str]) -> int:
    """Install, and become the command that follows, or return the exit code."""
    python, artifact, place, version, *command = arguments
    mask = os.umask(0o022)  # the service's user enters what root installs, whatever root's umask is
    try:
        signals.begin()
        install(python, artifact, place, version)
        os.umask(mask)
        if command:
            for each in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program inherits that
                signal.signal(each, signal.SIG_DFL)
            try:
                os.execv(command[0], command)
            except OSError as error:
                raise InstallError(f"{command[0]}: does not start: {error.strerror}", EX_UNAVAILABLE) from error
        signals.ignore()
    except InstallError as error:
        signals.ignore()
        message, code = error.args
        say(message)
        return int(code)
    return 0


def say(message: str) -> None:
    """Write a line to stderr, paths as their bytes are; where there is none, nothing."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            os.write(sys.stderr.fileno(), b"install.sh: " + os.fsencode(message) + b"\n")


def install(python: str, artifact: str, place: str, version: str) -> None:
    """Make the environment for the bundle that `artifact` lies in, and put it at `place`. Raises InstallError."""
    here = os.path.dirname(artifact)
    place = place.rstrip("/") or "/"
    if os.path.lexists(place) and _number(place) is None and (not os.path.isdir(place) or _names(place)):
        problem = "is there, and this script did not make it; remove it, or name another with PYC_VENV=..."
        raise InstallError(f"{place} {problem}", EX_CANTCREAT)
    check_files(here, os.path.basename(artifact))
    parent, name = os.path.dirname(place), os.path.basename(place)
    _sweep(parent or ".", name)
    was_there = _number(place)
    token = "".join(secrets.choice(LETTERS) for _ in range(COUNT))
    made, former = f"{place}.pyc-new.{token}", f"{place}.pyc-old.{token}"
    try:
        try:
            with contextlib.suppress(FileExistsError):
                os.makedirs(parent or ".")
            os.mkdir(made)
            os.mkdir(os.path.join(made, TEMPORARY))
        except OSError as error:
            raise InstallError(
                f"{place}: cannot be made: {error.strerror}; name a place that can be written with PYC_VENV=..., here"
                " and for run.sh and health.sh",
                EX_IOERR,
            ) from error
        _require_exec(made, place)
        _fill(made, place, python, here, version)
        _note_way(made, place, python, artifact, version)
        _put(made, place, former, was_there)
    finally:
        with signals.held():
            shutil.rmtree(made, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.remove(former)  # a link
            shutil.rmtree(former, ignore_errors=True)


def _names(folder: str) -> list[str]:
    """What lies in a folder; something, where that cannot be seen."""
    try:
        return os.listdir(folder)
    except OSError:
        return ["?"]


def _number(place: str) -> int | None:
    """The number by which the system knows an environment of a bundle; None where there is none."""
    with contextlib.suppress(OSError):
        os.stat(os.path.join(place, MARKER))
        return os.lstat(place).st_ino
    return None


def _sweep(parent: str, name: str) -> None:
    """Remove what installs left here that were killed, a day ago or before."""
    pattern = re.compile(rf"{re.escape(name)}\.pyc-(new|old)\.[{LETTERS}]{{{COUNT}}}")
    with contextlib.suppress(OSError):
        for entry in os.scandir(parent):
            if pattern.fullmatch(entry.name) and entry.stat(follow_symlinks=False).st_mtime < time.time() - _DAY_S:
                shutil.rmtree(entry.path, ignore_errors=True)


def _opened(path: str, flags: int) -> int:
    """Without waiting for who writes into a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def check_files(here: str, artifact: str) -> None:
    """Raise InstallError where a byte of what an install takes has changed, of which pip would name no remedy, and
    where the artifact is missing."""

    def damaged(name: str, problem: str, code: int) -> InstallError:
        return InstallError(f"{os.path.join(here, name)}: {problem}; unpack the bundle again", code)

    def read(name: str) -> bytes:
        try:
            with open(os.path.join(here, name), "rb", opener=_opened) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise damaged(name, "is not a file", DAMAGED)
                return file.read()
        except FileNotFoundError as error:
            raise damaged(name, "is missing", MISSING) from error
        except OSError as error:
            raise damaged(name, f"cannot be read: {error.strerror}", EX_IOERR) from error

    if not os.path.exists(os.path.join(here, artifact)):
        raise damaged(artifact, "is missing", MISSING)
    needed = {"requirements.txt", "check_modules.py", "note_way.py"}
    lines = [line.partition("  ") for line in read("SHA256SUMS").decode("utf-8", "replace").splitlines()]
    if not needed <= {name for _, _, name in lines}:
        raise damaged("SHA256SUMS", "is damaged: it lacks files", DAMAGED)
    for digest, _, name in lines:
        used = name.startswith("wheels/") or name in needed
        if used and hashlib.sha256(read(name)).hexdigest() != digest:
            raise damaged(name, "is damaged: its SHA-256 is not that of SHA256SUMS", DAMAGED)


def _require_exec(made: str, place: str) -> None:
    """Raise InstallError where the file system lets nothing be loaded from it, as native modules are."""
    path = os.path.join(made, "library")
    with contextlib.suppress(OSError):  # venv says what it is about a folder that cannot be written
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o700)
        try:
            os.remove(path)
            os.ftruncate(file, mmap.PAGESIZE)
            mmap.mmap(file, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC).close()
        except PermissionError as error:
            is_noexec = os.statvfs(made).f_flag & os.ST_NOEXEC
            reason = "it is mounted noexec" if is_noexec else f"the system refuses it: {error.strerror}"
            raise InstallError(
                f"{place}: no native module is loaded from its file system: {reason}; name a place on another with"
                " PYC_VENV=..., here and for run.sh and health.sh, or have it mounted with exec",
                EX_IOERR,
            ) from error
        finally:
            os.close(file)


def _run(made: str, *command: str) -> tuple[int, str]:
    """Run a program to its end; return its exit code and what it says. Who ends this ends it, with all that it began.

    What decides on other machines where packages come from and go, as modules of a cluster set it, is not for this one.
    """
    variables = {name: value for name, value in os.environ.items() if not re.match("PIP_|PYTHON.", name)}
    variables["PIP_CONFIG_FILE"] = os.devnull  # which has pip read none: neither the user's, nor those of the system
    variables["TMPDIR"] = os.path.join(os.path.abspath(made), TEMPORARY)  # goes with `made`, whoever ends pip
    process = None
    try:
        with signals.held():  # a program that is not known yet would go on
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=variables,
                process_group=0,
            )
        said = process.communicate()[0]
    except OSError as error:
        return 1, f"{command[0]}: {error.strerror}"
    except Ended:
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise
    return process.returncode, os.fsdecode(said)


def _last_line(text: str) -> str:
    return text.rstrip("\n").rpartition("\n")[2]


def _fill(made: str, place: str, python: str, here: str, version: str) -> None:
    """Make an environment with the bundle's packages in which pyc starts. Raises InstallError."""
    # -I: no module of the working directory stands for one of Python's, and no variable of the user's matters.
    if _run(made, python, "-I", "-c", "import ensurepip")[0]:  # asked first: whatever stops venv, its message names it
        raise InstallError(
            f"{python} has no ensurepip, which an environment takes; install it (python{version}-venv), or name another"
            " Python with PYTHON=...",
            EX_UNAVAILABLE,
        )
    code, said = _run(made, python, "-I", "-m", "venv", made)
    if code:
        problem = f"{place}: {python} -m venv: {_last_line(said)}; make room, or name another place with PYC_VENV=..."
        raise InstallError(problem, EX_IOERR)
    wanted = os.path.join(made, REQUIREMENTS)
    try:
        # For run.sh and health.sh to compare, and for pip: what lies beside this may be another's at any time.
        shutil.copyfile(os.path.join(here, "requirements.txt"), wanted)
    except OSError as error:
        problem = f"{place}: cannot be written: {error.strerror}; make room, or name another place with PYC_VENV=..."
        raise InstallError(problem, EX_IOERR) from error
    own = os.path.join(made, "bin", "python")
    offline = ("--no-index", "--no-deps", "--require-hashes", "--only-binary", ":all:")
    source = ("--find-links", os.path.join(here, "wheels"), "-r", wanted)
    pip = ("-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    code, said = _run(made, own, *pip, *offline, *source)
    if code:
        errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
        reason = errors[0] if errors else _last_line(said)
        if "Errno" in said:
            raise InstallError(f"{place}: {reason}; make room, or name another place with PYC_VENV=...", EX_IOERR)
        raise InstallError(
            f"pip: {reason}; where this system's C library is older than the wheels ask for, make the bundle on one"
            " that is as old",
            INVALID,
        )
    # As run.sh starts it: an environment in which pyc does not begin, or a native module of a package, is not whole.
    for start in (("-m", "pyc", "--version"), (os.path.join(here, "check_modules.py"), made)):
        code, said = _run(made, own, "-I", *start)
        if code:
            raise InstallError(
                f"{place}: pyc does not start in it: {_last_line(said)}; name another Python {version} with PYTHON=...,"
                " or unpack the bundle again",
                INVALID,
            )


def _note_way(made: str, place: str, python: str, artifact: str, version: str) -> None:
    """Write the way to the interpreter, for run.sh and health.sh; warn where others cannot go it. Raises InstallError.
    """
    script = os.path.join(os.path.dirname(artifact), "note_way.py")
    code, said = _run(made, python, "-I", script, made, artifact, version)
    if code:
        raise InstallError(f"{place}: {_last_line(said)}", EX_IOERR)
    if _last_line(said).startswith("warning: "):
        say(_last_line(said))


def _put(made: str, place: str, former: str, was_there: int | None) -> None:
    """Put what was made to its place. Raises InstallError.

    What was there when this began goes, and what is of another bundle; another install's of this bundle, which came
    meanwhile and is in use perhaps, stays.
    """
    try:
        shutil.rmtree(os.path.join(made, TEMPORARY))
        for folder in (os.path.join(made, "bin"), made):
            for entry in os.scandir(folder):
                if entry.is_file(follow_symlinks=False):
                    _rename_in(entry.path, os.path.basename(made), os.path.basename(place))
    except OSError as error:
        raise InstallError(f"{place}: cannot be put there: {error.strerror}", EX_IOERR) from error
    try:
        with signals.held():
            with contextlib.suppress(FileNotFoundError):  # another install was faster
                number = _number(place)
                if number is not None and (number == was_there or _requirements(place) != _requirements(made)):
                    os.rename(place, former)
            os.rename(made, place)
    except OSError as error:
        if _number(place) is None:
            raise InstallError(f"{place}: cannot be put there: {error.strerror}", EX_IOERR) from error


def _rename_in(path: str, former: str, name: str) -> None:
    """Programs name their interpreter by the place where they were made: its last part is another now."""
    with open(path, "r+b") as file:
        text = file.read()
        named = text.replace(os.fsencode(former), os.fsencode(name))
        if named != text:
            file.seek(0)
            file.truncate()
            file.write(named)


def _requirements(environment: str) -> bytes | None:
    path = os.path.join(environment, REQUIREMENTS)
    with contextlib.suppress(FileNotFoundError), open(path, "rb", opener=_opened) as file:
        return file.read()
    return None


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Ended as ended:
        sys.exit(128 + int(ended.args[0]))
