"""Writes into an environment the way to its interpreter, which run.sh and health.sh look at: what install.py runs.

Another user, as a service's, runs the environment only with an interpreter that all may reach: prints a warning where
they cannot, and the bundle is for them.

Arguments: the environment, the artifact, the Python that the wheels are for.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
import sys

MARKER = ".pyc-bundle"
MOST_LINKS = 40
"""As many as the system follows."""


def note_way(made: str, artifact: str, version: str) -> str:
    """Write the file; return the warning, or nothing. Raises OSError."""
    outside, inside = _way(os.path.join(made, "bin", "python")), os.path.realpath(made) + os.sep
    while any(each.startswith(inside) for each in outside):
        del outside[0]
    with open(os.path.join(made, MARKER), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(each + "\n" for each in outside)
    if _refused(_way(artifact), 4) or _refused(_way(os.path.dirname(os.path.abspath(made))), 1):
        return ""  # others are not meant to run it
    found = _refused(outside, 1) or _refused(_way(os.__file__), 4)
    if found is None:
        return ""
    script = shlex.quote(os.path.join(os.path.dirname(artifact), "install.sh"))
    return (
        f"warning: {found}, where the interpreter is, is closed to other users, so none of them, as a service's, can"
        f" run what is installed; for those: PYTHON=/usr/bin/python{version} sh {script}"
    )


def _way(path: str) -> list[str]:
    """Every folder on the way to a file, through links, and the file."""
    place, places, left, links = "/", [], os.path.abspath(path).split("/")[::-1], 0
    while left:
        part = left.pop()
        if part == "..":
            place = os.path.dirname(place)
        elif part not in ("", "."):
            following = os.path.join(place, part)
            if os.path.islink(following):
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(following)
                left += target.split("/")[::-1]
                place = "/" if target.startswith("/") else place
            else:
                place = following
                places.append(place)
    return places


def _refused(places: list[str], bit: int) -> str | None:
    """The first place that others may not enter or, at the end, use."""
    for place in places:
        mode = os.stat(place).st_mode
        if not mode & (1 if stat.S_ISDIR(mode) else bit):
            return place
    return None


if __name__ == "__main__":
    try:
        sys.stdout.buffer.write(os.fsencode(note_way(*sys.argv[1:])))
    except OSError as error:
        sys.exit(f"{error.filename or sys.argv[1]}: {error.strerror}")
