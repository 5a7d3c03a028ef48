"""Fixtures for the tests of the runtime."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module fake_model.py: small numpy models behind the Executor protocol."""
    spec = importlib.util.spec_from_file_location("fake_model", Path(__file__).with_name("fake_model.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
