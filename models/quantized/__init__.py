"""Checkpoints that are quantized already: a file for each way in which they are stored."""
