"""The passes of the ONNX backend, one a file; `backend.py` has their order."""
