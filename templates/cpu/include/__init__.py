"""Headers that the rendered kernels include."""
