"""`python -m pyc` is the same as the `pyc` command."""

import sys

from pyc.cli import main

if __name__ == "__main__":
    sys.exit(main())
