"""A model whose requests run together."""

from scheduled_models import make

__all__ = ["make"]
