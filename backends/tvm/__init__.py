"""The TVM backend: Relax and TIR for the graph, C kernels for the matrix products."""
