"""Checkpoints, arrays as sources, and programs for the tests of backends/torch_tensorrt/."""

import pytest
import torch
from tiny_checkpoints import tiny_adapter, tiny_checkpoint
from torch_programs import exported
from torch_tensorrt_double import torch_tensorrt
from weight_files import source

__all__ = ["exported", "source", "tiny_adapter", "tiny_checkpoint", "torch_tensorrt"]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The models are tiny."""
    torch.set_num_threads(1)
