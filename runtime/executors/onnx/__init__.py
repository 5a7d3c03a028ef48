"""Executes ONNX programs with ONNX Runtime."""
