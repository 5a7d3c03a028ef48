"""The TVM backend: TIR for norms and elementwise work, C kernels for products and attention, lists of calls of both."""
