"""A lowered module to launches of kernels."""
