"""Executes the compiled library of a CPU."""
