"""Recipes for the tests of mixed precision."""

from mixed_recipes import document, own_home

__all__ = ["document", "own_home"]
