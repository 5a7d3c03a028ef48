"""Where a user's keys and measurements live, and how a file is put there."""

import os
import secrets
from pathlib import Path


def home_directory() -> Path:
    """Return the folder: $PYC_HOME, else $XDG_CONFIG_HOME/pyc, else ~/.config/pyc."""
    if os.environ.get("PYC_HOME"):
        return Path(os.environ["PYC_HOME"])
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "pyc"


def write_whole(path: Path, text: str, mode: int, *, replace: bool) -> bool:
    """Write a file whole or not at all; without `replace` an existing one wins and False is returned.

    Raises OSError, and leaves nothing then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                temporary.replace(path)
            else:
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError:
        return False
    return True
