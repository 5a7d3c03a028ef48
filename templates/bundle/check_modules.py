"""Imports each native module of an environment, in its interpreter: what install.py runs of a bundle's.

Packages load some of theirs at first use alone. Some that pyc does not use ask for other packages, which is no error.

Argument: the environment. Ends with the traceback of what cannot be imported.
"""

from __future__ import annotations

import glob
import importlib
import importlib.machinery
import os
import sys


def check_modules(environment: str) -> None:
    """Import each native module; raise what importing one raises."""
    suffixes = [each for each in importlib.machinery.EXTENSION_SUFFIXES if each != ".so"]  # which libraries have, too
    for site in glob.glob(os.path.join(glob.escape(environment), "lib", "python*", "site-packages")):
        for name in sorted(os.listdir(site)):
            within = os.path.join(glob.escape(os.path.join(site, name)), "**", "*.so")
            if name.isidentifier() and glob.glob(within, recursive=True):
                importlib.import_module(name)
        for path in sorted(glob.glob(os.path.join(glob.escape(site), "**", "*.so"), recursive=True)):
            *packages, file = os.path.relpath(path, site).split(os.sep)
            name, dot, suffix = file.partition(".")
            if dot + suffix in suffixes and all(map(str.isidentifier, packages)):
                try:
                    importlib.import_module(".".join([*packages, name]))
                except Exception as error:
                    if type(error) is ImportError:
                        raise


if __name__ == "__main__":
    check_modules(sys.argv[1])
