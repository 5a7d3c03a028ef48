"""The passes of the CUDA backend, one a file; `backend.py` has their order."""
