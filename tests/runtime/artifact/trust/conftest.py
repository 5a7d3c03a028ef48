"""One day for all tests of keys."""

from stopped_clock import stopped_clock

__all__ = ["stopped_clock"]
