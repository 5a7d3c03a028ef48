"""Checkpoints, adapters and arrays as sources for the tests of passes/jobs."""

from tiny_checkpoints import tiny_adapter, tiny_checkpoint
from weight_files import source

__all__ = ["source", "tiny_adapter", "tiny_checkpoint"]
