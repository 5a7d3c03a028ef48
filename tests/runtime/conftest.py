"""Fixtures for the tests of the runtime. They need the base install only."""

from types import ModuleType

import fake_model
import pytest
from small_tokenizers import KINDS

from pyc.runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module fake_model: small numpy models behind the Executor protocol."""
    return fake_model


@pytest.fixture(scope="session")
def tokenizer_documents() -> dict[str, bytes]:
    """tokenizer.json of each kind in small_tokenizers, by name."""
    return {name: make().to_str().encode() for name, make in KINDS.items()}


@pytest.fixture(scope="session")
def tokenizers(tokenizer_documents: dict[str, bytes]) -> dict[str, Tokenizer]:
    """A Tokenizer of each kind, by name."""
    return {name: Tokenizer(document) for name, document in tokenizer_documents.items()}
