"""Executes programs for TensorRT: builds their engines on this machine, keeps them, and runs them."""
