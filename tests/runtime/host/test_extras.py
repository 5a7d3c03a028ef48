"""runtime/host/extras.py: a module that is missing names the extra that would bring it."""

import tomllib
from pathlib import Path

import pytest

from pyc.runtime.errors import MissingExtraError
from pyc.runtime.host.extras import EXTRAS, install_line, interruption, missing_extra, naming_missing_extras

ROOT = Path(__file__).parents[3]


def test_every_extra_is_one_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) <= set(project["optional-dependencies"])
    for extra in EXTRAS:
        assert f"'.[{extra}]'" in install_line(extra)


@pytest.mark.parametrize(
    ("module", "extra"), [("tvm.relax", "compiler"), ("apache-tvm", "compiler"), ("huggingface_hub", "hub")]
)
def test_the_extra_of_a_missing_module(module, extra):
    error = ModuleNotFoundError("not there", name=module)
    found = missing_extra(error)
    assert found is not None
    assert (found.exit_code, module in str(found), install_line(extra) in str(found)) == (69, True, True)
    with pytest.raises(MissingExtraError, match=module) as caught, naming_missing_extras():
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("name", [None, "numpy", "pyc.runtime.nothing"])
def test_other_modules_are_missing_as_they_were(name):
    error = ModuleNotFoundError("not there", name=name)
    assert missing_extra(error) is None
    with pytest.raises(ModuleNotFoundError) as caught, naming_missing_extras():
        raise error
    assert caught.value is error


def test_the_interruption_behind_a_failed_import():
    """A module in C that Ctrl-C interrupts while it begins says "initialization failed"."""
    error = ImportError("initialization failed")
    assert interruption(error) is None
    error.__context__ = stopped = KeyboardInterrupt()
    assert interruption(error) is stopped
