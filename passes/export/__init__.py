"""Exports: an artifact, or what a recipe makes, in the form of other tools; one form a file."""
