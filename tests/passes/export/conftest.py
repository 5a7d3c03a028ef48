"""Checkpoints for the tests of passes/export/."""

from tiny_checkpoints import tiny_checkpoint

__all__ = ["tiny_checkpoint"]
