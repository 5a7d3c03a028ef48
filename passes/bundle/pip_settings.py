"""The settings of the user's that pip gets: where packages come from, and not where they go or whether they land.

pip has them from variables (PIP_INDEX_URL) and files (pip.conf of the system, the user and the environment), and so has
each pip that it starts itself to build a wheel. A target or a dry run there would leave the bundle without wheels.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from pyc.compiler.processes import Processes

KEPT = frozenset(
    (
        *("index-url", "pypi-url", "extra-index-url", "no-index", "find-links", "uploaded-prior-to"),
        *("constraint", "build-constraint", "no-build-isolation", "prefer-binary"),
        *("proxy", "no-proxy-env", "cert", "client-cert", "trusted-host", "keyring-provider", "no-input"),
        *("timeout", "default-timeout", "retries", "resume-retries", "cache-dir", "no-cache-dir"),
        *("use-feature", "use-deprecated"),
    )
)
"""pip's names of the settings that are handed on: of indexes, of the network, and of what versions may be."""

# By pip's own reader, which knows the files and their order; older versions of it have no level of files.
_PROGRAM = """
import json
from pip._internal.configuration import Configuration
settings = Configuration(isolated=False)
settings.load()
found = []
for key, value in settings.items():
    found += value.items() if isinstance(value, dict) else [(key, value)]
print(json.dumps(found))
"""


def pip_environment(command: str) -> dict[str, str]:
    """Return the variables for a `pip COMMAND`: those of this process, and of pip's settings those that are KEPT.

    Where settings cannot be read, return what this process has: pip then says what is wrong with them. Raises OSError,
    KeyboardInterrupt in a bundle that is interrupted.
    """
    arguments = [sys.executable, "-P", "-c", _PROGRAM]
    done = Processes().run(arguments, Path(), os.environ)
    try:
        found = msgspec.json.decode(done.stdout, type=list[tuple[str, str]])
    except msgspec.DecodeError:
        return dict(os.environ)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment["PIP_CONFIG_FILE"] = os.devnull
    for section in ("global", command, ":env:"):  # the later ones count
        for key, value in found:
            name = key.removeprefix(f"{section}.")
            if name != key and name in KEPT and value:
                variable = f"PIP_{name.upper().replace('-', '_')}"
                environment.pop(variable, None)
                environment[variable] = value
    return environment
