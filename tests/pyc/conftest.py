"""Fixtures of the command line's tests."""

from tiny_checkpoints import tiny_checkpoint

__all__ = ["tiny_checkpoint"]
