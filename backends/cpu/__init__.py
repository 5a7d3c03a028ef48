"""The CPU backend: TIR for norms and elementwise work, C kernels for matmuls and attention, lists of calls."""
