"""Adapters: a pass for each kind, which fuses it into the weights, and what decides which weights that are."""
