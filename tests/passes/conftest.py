"""Checkpoints, adapters and arrays as sources for the tests of passes/."""

from tiny_checkpoints import tiny_adapter, tiny_checkpoint, tiny_copy
from weight_files import source

__all__ = ["source", "tiny_adapter", "tiny_checkpoint", "tiny_copy"]
