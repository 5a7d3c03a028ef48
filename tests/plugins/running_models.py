"""Small artifacts for the commands that execute them, signed by a key that the test's own home trusts."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyc.passes.driver.build import BuildResult
from pyc.runtime.artifact.reader import open_artifact
from pyc.runtime.artifact.trust.key_store import add_trusted
from pyc.runtime.artifact.trust.keys import PublicKey

CONTEXT = 64


def _trusted(result: BuildResult, capfd: pytest.CaptureFixture[str]) -> Path:
    capfd.readouterr()  # transformers draws a progress bar while it writes the checkpoint
    with open_artifact(result.path) as artifact:
        assert artifact.signature is not None
        add_trusted(PublicKey(artifact.signature.public_key))
    return Path(result.path)


@pytest.fixture
def decoder_artifact(
    key_home: Path,
    artifacts: Callable[..., BuildResult],
    tiny_checkpoint: Callable[..., Path],
    capfd: pytest.CaptureFixture[str],
) -> Path:
    """A llama of two layers with 64 tokens of context, a byte tokenizer and a chat template."""
    return _trusted(artifacts(tiny_checkpoint("llama")), capfd)


@pytest.fixture
def encoder_artifact(
    key_home: Path,
    artifacts: Callable[..., BuildResult],
    tiny_checkpoint: Callable[..., Path],
    capfd: pytest.CaptureFixture[str],
) -> Path:
    """A BERT of two layers that embeds texts."""
    return _trusted(artifacts(tiny_checkpoint("bert"), shapes={"tokens": [16, CONTEXT]}), capfd)


def json_lines(text: str) -> list[dict[str, object]]:
    """The documents of a command that prints one a line."""
    return [json.loads(line) for line in text.splitlines()]
