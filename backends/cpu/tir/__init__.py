"""Kernels in TIR, TVM's language: norms, elementwise work, rotary angles, and loops around C kernels."""
