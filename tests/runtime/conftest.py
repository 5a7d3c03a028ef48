"""Fixtures for the tests of the runtime."""

import importlib.util
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest

from pyc.runtime.tokenizer import Tokenizer


@lru_cache
def _module(name: str) -> ModuleType:
    """A module of this folder that is no test."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module fake_model.py: small numpy models behind the Executor protocol."""
    return _module("fake_model")


@pytest.fixture(scope="session")
def tokenizer_documents() -> dict[str, bytes]:
    """tokenizer.json of each kind in tokenizers_made_here.py, by name."""
    return {name: make().to_str().encode() for name, make in _module("tokenizers_made_here").KINDS.items()}


@pytest.fixture(scope="session")
def tokenizers(tokenizer_documents: dict[str, bytes]) -> dict[str, Tokenizer]:
    """A Tokenizer of each kind, by name."""
    return {name: Tokenizer(document) for name, document in tokenizer_documents.items()}
