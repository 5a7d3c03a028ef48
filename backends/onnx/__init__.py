"""The ONNX backend: functions as graphs for ONNX Runtime, and models for others to load."""
