"""Whole builds against independent references: transformers, PEFT, float64 arithmetic."""

from collections.abc import Callable
from pathlib import Path

import pytest
from built_models import artifacts, built
from tiny_checkpoints import tiny_adapter, tiny_checkpoint, tiny_copy

__all__ = ["artifacts", "built", "tiny_adapter", "tiny_checkpoint", "tiny_copy"]


@pytest.fixture(scope="session", autouse=True)
def quiet_reference() -> None:
    """transformers without progress bars, torch on one thread: the models are tiny."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def reference() -> Callable[[Path], object]:
    """`reference(checkpoint)`: transformers' own model in float32, eager attention."""
    import torch
    import transformers

    def load(checkpoint: Path) -> object:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        )
        return model.eval()

    return load
