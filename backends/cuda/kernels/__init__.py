"""CUDA kernels: what each is compiled from, and how it is launched."""
