"""The passes of the CPU backend, one a file; `backend.py` has their order."""
