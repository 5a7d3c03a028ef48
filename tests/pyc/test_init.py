"""pyc/__init__.py: the public names arrive at first use."""

import subprocess
import sys

import pytest

import pyc
from pyc.runtime import errors


def test_importing_pyc_imports_nothing_else():
    probe = "import sys, pyc; print(*[m for m in sys.modules if m.startswith('pyc.') or m == 'numpy'])"
    result = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize("name", pyc.__all__)
def test_every_public_name_is_there(name):
    assert getattr(pyc, name) is not None
    assert name in dir(pyc)


def test_every_error_that_docstrings_name_is_there():
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert kinds <= set(pyc.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"no attribute 'compile'.*BuildEvent, BuildResult.*build, load"):
        pyc.compile  # noqa: B018 -- the access is the test
