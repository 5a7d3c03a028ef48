"""`python -m pyc` is the same as the `pyc` command."""

from pyc.process import entry

if __name__ == "__main__":
    entry()
