"""The CPU backend: TIR for norms and elementwise work, C kernels for matrix products and attention, lists of calls."""
