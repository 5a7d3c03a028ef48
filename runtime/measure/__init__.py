"""Measures a loaded model and the machine under it."""
