"""What the tests of this room have in common: tiny checkpoints, and artifacts of them."""

import pytest
from tiny_checkpoints import tiny_checkpoint

from pyc.passes.driver.build import build
from pyc.runtime.artifact.reader import open_artifact

__all__ = ["built", "tiny_checkpoint"]

SHAPES = {"tokens": [1, 4, 16], "logits": [1, 16]}
WIDE = {"tokenizer": False, "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2}


@pytest.fixture
def built(tiny_checkpoint, tmp_path):
    """`built(architecture, *backends, **recipe)`: the open artifact of a tiny checkpoint."""
    opened = []

    def make(architecture, *backends, config=None, **recipe):
        path = tiny_checkpoint(architecture, **(WIDE if config is None else config))
        targets = [{"backend": backend} for backend in backends]
        shapes = {**SHAPES, "tokens": [64]} if architecture == "bert" else SHAPES
        made = build(
            {"model": str(path), "shapes": shapes, "targets": targets, **recipe},
            output=tmp_path / f"{len(opened)}.pyca",
        )
        opened.append(open_artifact(made.path))
        return opened[-1]

    yield make
    for artifact in opened:
        artifact.close()
