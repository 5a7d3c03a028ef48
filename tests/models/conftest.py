"""Checkpoints and adapters for the tests of models/."""

from tiny_checkpoints import tiny_adapter, tiny_checkpoint, tiny_copy

__all__ = ["tiny_adapter", "tiny_checkpoint", "tiny_copy"]
