"""NVRTC, and what its cubins say of themselves."""
