"""Headers of CUDA kernels."""
