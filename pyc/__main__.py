"""`python -m pyc` is the same as the `pyc` command."""

from pyc.cli import entry

if __name__ == "__main__":
    entry()
