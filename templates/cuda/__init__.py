"""Templates of CUDA kernels."""
