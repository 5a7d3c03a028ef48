"""What backends with kernels of their own share: passes, and the operators that these put in."""
