"""The C kernels of a CPU library: what each is as a frozen spec, and the source text that compilers read."""
