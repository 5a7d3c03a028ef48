"""Whether a wheel installs where a bundle goes, by the tags in its file's name (PyPA's platform compatibility tags).

The place is CPython under Linux with glibc, which compiled programs need, too. How new a glibc a wheel wants is not
looked at: that of the other machine is not known here.
"""

from __future__ import annotations

import re
from itertools import product

_numbered = re.compile(r"(cp|py)3(\d+)")


def fits(file_name: str, machine: str, python: str) -> bool:
    """Return whether the wheel of this name installs on a machine as `uname -m` calls it, with a Python as "3.11"."""
    parts = file_name.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6):  # name, version, perhaps a build number, and the three tags
        return False
    minor = int(python.partition(".")[2])
    interpreters, abis, platforms = (part.split(".") for part in parts[-3:])
    tags = product(interpreters, abis, platforms)
    return any(_fits(interpreter, abi, platform, machine, minor) for interpreter, abi, platform in tags)


def _fits(interpreter: str, abi: str, platform: str, machine: str, minor: int) -> bool:
    is_native = re.fullmatch(rf"(?:linux|manylinux(?:1|2010|2014|_\d+_\d+))_{re.escape(machine)}", platform) is not None
    numbered = _numbered.fullmatch(interpreter)
    kind, oldest = (numbered[1], int(numbered[2])) if numbered else (interpreter, 0)
    if abi == "abi3":  # of that Python and later ones
        return is_native and numbered is not None and kind == "cp" and 2 <= oldest <= minor
    if abi == "none":
        is_for_python = interpreter == "py3" or (
            numbered is not None and (oldest <= minor if kind == "py" else oldest == minor)
        )
        return is_for_python and (is_native or platform == "any")
    return is_native and interpreter == abi == f"cp3{minor}"
