"""The CUDA backend: kernels in CUDA C++, and the functions of a model as lists of launches, which become graphs."""
