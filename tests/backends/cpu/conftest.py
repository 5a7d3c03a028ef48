"""Checkpoints for the tests of backends/cpu/."""

from tiny_checkpoints import tiny_checkpoint

__all__ = ["tiny_checkpoint"]
