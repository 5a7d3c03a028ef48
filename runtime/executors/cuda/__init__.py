"""Executes CUDA programs by the driver: one graph a function and bucket."""
